// The page on the interposer: its verbs and groups are those of the table, its routes those that are walked.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { quoted, ROOT, readPage, rowsWith, section } from '../../support/docs.ts';

const page = readPage('docs/develop/interposer.md');
const source = (path: string) => readFileSync(join(ROOT, path), 'utf8');
type Group = { readonly verb: string; readonly group: string; readonly names: readonly string[] };

/** The rows of verbs.txt. */
function groups(): readonly Group[] {
  const found: Group[] = [];
  for (const line of source('native/interposer/verbs.txt').split('\n')) {
    const [, verb = '', group = ''] = /^= (\S+) (\S+):/.exec(line) ?? [];
    if (verb !== '') found.push({ verb, group, names: [] });
    else if (!line.startsWith('#')) {
      const last = found.pop();
      if (last) found.push({ ...last, names: [...last.names, ...line.split(' ').filter((name) => name !== '')] });
    }
  }
  return found;
}

test('the table has a row for every group that is not passed through', (t) => {
  const rows = rowsWith(page, 'verb', 'group', 'what happens');
  const documented = rows.map((row) => `${row.verb} ${row.group}`);
  const held = groups().filter(({ verb }) => verb !== 'pass');
  t.deepEqual(
    [...documented].sort(),
    [...held.map(({ verb, group }) => `${verb} ${group}`), 'pass all other groups'].sort(),
  );
  t.true(held.length > 10);
  for (const { verb, group, names } of held) {
    const row = rows.find((entry) => entry.verb === verb && entry.group === group);
    const named = quoted(row?.['what happens']).filter((name) => name.startsWith('cu'));
    if (named.length > 0) t.deepEqual([...named].sort(), [...names].sort(), `${verb} ${group}`);
  }
});

test('the page names the groups that pass and may take memory', (t) => {
  const documented = [...page.matchAll(/`(uncounted-\w+|undocumented)`/g)].map(([, group]) => group ?? '');
  const table = groups().flatMap(({ group }) => (/^(uncounted-|undocumented)/.test(group) ? [group] : []));
  t.deepEqual([...documented].sort(), [...table].sort());
});

test('the routes of the page are those of the test, and one of them escapes', (t) => {
  const rows = rowsWith(section(page, '### Ways to look up an entry point'), 'way', 'caught');
  const program = source('test/native/programs/symbols/routes.c');
  const walked = [...program.matchAll(/\b(?:show|plugin)\("([a-z-]+)"/g)].map(([, way]) => way ?? '');
  const documented = rows.flatMap((row) => quoted(row.way).filter((way) => walked.includes(way)));
  t.deepEqual([...documented].sort(), [...walked].sort());
  t.is(walked.length, 15);
  const escaping = rows.filter((row) => row.caught !== 'yes').flatMap((row) => quoted(row.way).slice(0, 1));
  t.deepEqual(escaping, ['plugin-dlmopen']);
  t.true(source('test/native/interposer/symbols/routes.test.ts').includes(`[['plugin-dlmopen', whole]]`));
});

test('the page has every reason for which the GPU stays closed', (t) => {
  const said = [...source('native/interposer/engine/accounting/attach.c').matchAll(/\bclose_gpu\("([^"]+)"/g)].map(
    ([, what]) => what ?? '',
  );
  const documented = rowsWith(section(page, '## When the grant cannot be read'), 'the line says').flatMap((row) =>
    quoted(row['the line says']),
  );
  t.deepEqual([...documented].sort(), [...new Set(said)].sort());
  t.true(said.length > 8);
});
