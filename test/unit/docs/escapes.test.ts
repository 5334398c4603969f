// The page on ways out: what it says was tried is tried, with that end, and what is tested elsewhere is tested in a file that
// is there.
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { ESCAPES } from '../../integration/agent/escape-ways.ts';
import { quoted, ROOT, readPage, rowsWith } from '../../support/pages.ts';

const page = readPage('docs/escapes.md');

test('the rows that are tried by a program are those of the test, with their ends', (t) => {
  t.deepEqual(
    rowsWith(page, 'what a tenant does', 'end', 'why').map((row) => [row['what a tenant does'], row.end]),
    ESCAPES.map(({ what, end }) => [what, end === 'refused' ? end : `stopped: \`${end}\``]),
  );
});

test('the tests that the page names are there', (t) => {
  const named = rowsWith(page, 'where it is tried').flatMap((row) => quoted(row['where it is tried']));
  t.true(named.length > 10);
  for (const path of named) t.true(existsSync(join(ROOT, path)), path);
});
