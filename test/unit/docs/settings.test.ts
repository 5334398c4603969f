// The agent's page and its settings.
import test from 'ava';
import { configure, DEFAULTS } from '../../../src/agent/config.ts';
import { quoted, readPage, rowsWith, section } from '../../support/docs.ts';

const rows = rowsWith(section(readPage('docs/operate/agent.md'), '## Settings'), 'setting', 'default', 'range');

/** Dotted path -> default, as far as values are no maps. */
function flat(value: object, prefix = ''): [string, unknown][] {
  return Object.entries(value).flatMap(([key, inner]): [string, unknown][] =>
    typeof inner === 'object' && Object.keys(inner).length > 0
      ? flat(inner as object, `${prefix}${key}.`)
      : [[`${prefix}${key}`, inner]],
  );
}

/** What a setting must be, as the refusal of an impossible value says it. */
function wanted(path: string): string {
  try {
    configure({ [path]: [] }, 'test');
  } catch (error) {
    return /; write (.*)$/m.exec((error as Error).message)?.[1] ?? String(error);
  }
  throw new Error(`${path} may be anything`);
}

test('the table names every setting once, with its default', (t) => {
  const named = rows.map((row): [string, string] => [quoted(row.setting)[0] ?? '', quoted(row.default)[0] ?? '']);
  const byPath = (a: readonly [string, string], b: readonly [string, string]) => (a[0] < b[0] ? -1 : 1);
  const held = flat(DEFAULTS).map(([path, value]): [string, string] => [
    path,
    typeof value === 'object' ? JSON.stringify(value) : String(value),
  ]);
  t.deepEqual(named.toSorted(byPath), held.toSorted(byPath));
  t.true(named.length > 20);
});

test('the table gives the range of every setting', (t) => {
  for (const row of rows) {
    const [path = ''] = quoted(row.setting);
    t.is(row.range, wanted(path), path);
  }
});

test('settings that depend on one another refer to it in the table', (t) => {
  const meaning = (path: string) => rows.find((row) => quoted(row.setting)[0] === path)?.meaning ?? '';
  t.regex(meaning('silenceMs'), /At least twice `intervalMs`/);
  t.regex(meaning('enforcement.hardRatio'), /At least `ratio`/);
});

test('commands on the pages name settings that there are', (t) => {
  const pages = ['operate/agent', 'use/cli', 'develop/simulator'].map((name) => readPage(`docs/${name}.md`)).join('\n');
  const commands = pages.split('\n').filter((line) => line.includes('cotenant agent '));
  const paths = commands.flatMap((line) => [...line.matchAll(/--set ([\w.]+)=/g)].map(([, path]) => path ?? ''));
  t.true(paths.length >= 4);
  const known = flat(DEFAULTS).map(([path]) => path);
  t.deepEqual(
    paths.filter((path) => !known.includes(path)),
    [],
  );
});
