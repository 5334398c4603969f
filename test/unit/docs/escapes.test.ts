// The page on ways out: what it says was tried is tried, with that end, and what is tested elsewhere is tested by what it names.
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { ESCAPES } from '../../integration/agent/enforcement/escape-programs.ts';
import { quoted, ROOT, readPage, rowsWith } from '../../support/docs.ts';

const page = readPage('docs/operate/escapes.md');

test('the rows that are tried by a program are those of the test, with their ends', (t) => {
  t.deepEqual(
    rowsWith(page, 'what a tenant does', 'end', 'why').map((row) => [row['what a tenant does'], row.end]),
    ESCAPES.map(({ what, end }) => [what, end === 'refused' ? end : `stopped: \`${end}\``]),
  );
});

const held = rowsWith(page, 'what a tenant does', 'end', 'where it is tried');
/** `path`: *title*, *title*: titles, or parts of them that stand in the file as they are. */
const named = held.flatMap((row) =>
  [...(row['where it is tried'] ?? '').matchAll(/`([^`]+\.test\.ts)`: (\*[^*]+\*(?:, \*[^*]+\*)*)/g)].flatMap(
    ([, path = '', titles = '']) => [...titles.matchAll(/\*([^*]+)\*/g)].map(([, title = '']) => ({ path, title })),
  ),
);

test('every row that is held by another test names tests by their titles, and each of them is in its file', (t) => {
  t.true(held.length > 20);
  for (const row of held) {
    const cell = row['where it is tried'] ?? '';
    t.regex(cell, /^`test\/\S+\.test\.ts`: \*[^*]{10,}\*/, row['what a tenant does']);
    for (const path of quoted(cell)) t.true(named.some((one) => one.path === path) || !path.startsWith('test/'), path);
  }
  t.true(named.length > held.length);
  for (const { path, title } of named) {
    t.true(existsSync(join(ROOT, path)), path);
    const text = readFileSync(join(ROOT, path), 'utf8').replaceAll("\\'", "'");
    t.true(text.includes(title), `${path}: ${title}`);
  }
});

test('what no fence covers is told with a reason', (t) => {
  const rows = rowsWith(page, 'what a tenant does', 'why, and what is left');
  t.true(rows.length > 5);
  for (const row of rows) t.regex(row['why, and what is left'] ?? '', /.{20}/, row['what a tenant does']);
});

test('each of the twenty classes of ways out has rows of its own, tried or told of', (t) => {
  const classes = rowsWith(page, 'class', 'what it is', 'rows');
  t.deepEqual(
    classes.map((row) => row.class),
    Array.from({ length: 20 }, (_, index) => String(index + 1)),
  );
  const tried = [...rowsWith(page, 'what a tenant does', 'end', 'why'), ...held].map(
    (row) => row['what a tenant does'],
  );
  const told = rowsWith(page, 'what a tenant does', 'why, and what is left').map((row) => row['what a tenant does']);
  for (const row of classes) {
    const named = (row.rows ?? '').split('<br>');
    for (const one of named) t.true([...tried, ...told].includes(one), `class ${row.class}: ${one}`);
    t.true(
      named.some((one) => tried.includes(one)),
      `class ${row.class} is tried`,
    );
  }
});
