// The page on defects of others: each test that it names is there, by its title, and each test that is named after a
// defect stands on the page.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { ROOT, readPage, rowsWith } from '../../support/docs.ts';

const page = readPage('docs/develop/defects.md');
const rows = rowsWith(page, 'what goes wrong', 'tests');
/** `path`: *title*, or the part of a title that stands in the file as it is. */
const named = rows.flatMap(({ tests = '' }) =>
  [...tests.matchAll(/`([^`]+\.test\.ts)`: \*([^*]+)\*/g)].map(([, path = '', title = '']) => ({ path, title })),
);
const textOf = (path: string) => readFileSync(join(ROOT, path), 'utf8').replaceAll("\\'", "'");

test('every row names a test, and each of them is in its file', (t) => {
  t.true(rows.length > 80);
  for (const row of rows) t.regex(row.tests ?? '', /`test\/\S+\.test\.ts`: \*[^*]{20,}\*/, row['what goes wrong']);
  for (const { path, title } of named) t.true(textOf(path).includes(title), `${path}: ${title}`);
});

test('every test that is named after a defect is on the page', (t) => {
  let count = 0;
  for (const path of ['test/unit/agent/defects.test.ts', 'test/unit/agent/defects-hami.test.ts']) {
    const titles = [...textOf(path).matchAll(/^test\((['"])(.+)\1, /gm)].map(([, , title = '']) => title);
    count += titles.length;
    const documented = new Set(named.filter((one) => one.path === path).map(({ title }) => title));
    t.deepEqual(
      titles.filter((title) => !documented.has(title)),
      [],
      path,
    );
  }
  t.true(count > 20);
});

test('all ten defects of dcgm-exporter and all fourteen of MetaGPU have a row', (t) => {
  const numbersOf = (heading: string) => {
    const [, body = ''] = page.split(`\n## ${heading}\n`);
    return rowsWith(body.split('\n## ')[0] ?? '', '', 'tests').flatMap(({ '': number = '' }) =>
      number === '' ? [] : number.split(', ').map(Number),
    );
  };
  const upTo = (last: number) => Array.from({ length: last }, (_, index) => index + 1);
  t.deepEqual(numbersOf('dcgm-exporter'), upTo(10));
  t.deepEqual(numbersOf('MetaGPU'), upTo(14));
});
