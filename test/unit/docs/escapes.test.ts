// The page on escapes: its first table is what escapes.test.ts tries, and the tests that other rows cite exist.
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { ESCAPES } from '../../integration/agent/enforcement/escape-programs.ts';
import { quoted, ROOT, readPage, rowsWith } from '../../support/docs.ts';

const page = readPage('docs/operate/escapes.md');

test('the first table lists the escapes that the integration test tries, with ends', (t) => {
  t.deepEqual(
    rowsWith(page, 'what a tenant does', 'end', 'why').map((row) => [row['what a tenant does'], row.end]),
    ESCAPES.map(({ what, end }) => [what, end === 'refused' ? end : `stopped: \`${end}\``]),
  );
});

const testedElsewhere = rowsWith(page, 'what a tenant does', 'end', 'where it is tried');
/** Cells have the form `path`: *title*, *title*; a title may be part of the one in the file. */
const named = testedElsewhere.flatMap((row) =>
  [...(row['where it is tried'] ?? '').matchAll(/`([^`]+\.test\.ts)`: (\*[^*]+\*(?:, \*[^*]+\*)*)/g)].flatMap(
    ([, path = '', titles = '']) => [...titles.matchAll(/\*([^*]+)\*/g)].map(([, title = '']) => ({ path, title })),
  ),
);

test('every row of the second table cites test titles that exist in their files', (t) => {
  t.true(testedElsewhere.length > 20);
  for (const row of testedElsewhere) {
    const cell = row['where it is tried'] ?? '';
    t.regex(cell, /^`test\/\S+\.test\.ts`: \*[^*]{10,}\*/, row['what a tenant does']);
    for (const path of quoted(cell)) t.true(named.some((one) => one.path === path) || !path.startsWith('test/'), path);
  }
  t.true(named.length > testedElsewhere.length);
  for (const { path, title } of named) {
    t.true(existsSync(join(ROOT, path)), path);
    const text = readFileSync(join(ROOT, path), 'utf8').replaceAll("\\'", "'");
    t.true(text.includes(title), `${path}: ${title}`);
  }
});

test('every escape that is not covered has a reason', (t) => {
  const rows = rowsWith(page, 'what a tenant does', 'why, and what is left');
  t.true(rows.length > 5);
  for (const row of rows) t.regex(row['why, and what is left'] ?? '', /.{20}/, row['what a tenant does']);
});

test('each of the twenty classes lists rows of the tables, at least one of them tried', (t) => {
  const classes = rowsWith(page, 'class', 'what it is', 'rows');
  t.deepEqual(
    classes.map((row) => row.class),
    Array.from({ length: 20 }, (_, index) => String(index + 1)),
  );
  const tried = [...rowsWith(page, 'what a tenant does', 'end', 'why'), ...testedElsewhere].map(
    (row) => row['what a tenant does'],
  );
  const uncovered = rowsWith(page, 'what a tenant does', 'why, and what is left').map(
    (row) => row['what a tenant does'],
  );
  for (const row of classes) {
    const named = (row.rows ?? '').split('<br>');
    for (const one of named) t.true([...tried, ...uncovered].includes(one), `class ${row.class}: ${one}`);
    t.true(
      named.some((one) => tried.includes(one)),
      `class ${row.class} is tried`,
    );
  }
});
