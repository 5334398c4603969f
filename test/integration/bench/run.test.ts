// The benchmarks' command line and the shape of what they print. No figure is judged here: machines differ.
import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';

const ROOT = join(import.meta.dirname, '../../..');

function bench(...args: string[]) {
  const result = spawnSync(process.execPath, [join(ROOT, 'test/bench/run.ts'), ...args], { encoding: 'utf8' });
  return { code: result.status, rows: result.stdout.split('\n').filter((line) => line !== ''), text: result.stderr };
}

const LATER = ['operate', 'placement'];

test('with --json each line is one row of five fields plus the measurements', (t) => {
  t.timeout(120_000);
  const { code, rows } = bench('storm', '--json', '--quick');
  t.is(code, 0);
  t.true(rows.length >= 6);
  for (const line of rows) {
    const row = JSON.parse(line);
    t.deepEqual(Object.keys(row), ['name', 'value', 'unit', 'reference', 'ratio']);
    t.regex(row.name, /^storm(\.[a-z0-9_]+)+$/);
    t.true(Number.isFinite(row.value), line);
    t.deepEqual(Object.keys(row.reference), ['value', 'what']);
    const { value: beside } = row.reference;
    t.true(beside > 0 && Math.abs(row.ratio - row.value / beside) <= Math.abs(row.ratio) * 0.01, line);
  }
  t.is(new Set(rows.map((line) => JSON.parse(line).name)).size, rows.length, 'each name once');
});

test('an unknown name is refused with the list of known names', (t) => {
  const { code, rows, text } = bench('storm', 'sturm');
  t.is(code, 2);
  t.deepEqual(rows, []);
  t.regex(text, /no such benchmark: sturm\n/);
  for (const name of [
    'interposer',
    'storm',
    'agent',
    'scrape',
    'webhook',
    'extender',
    'scale',
    'burst',
    'compute',
    ...LATER,
  ])
    t.true(text.includes(name), name);
});

for (const name of LATER) {
  test(`${name} measures nothing yet, says so and exits with 2`, (t) => {
    const { code, rows, text } = bench(name, '--quick');
    t.is(code, 2);
    t.deepEqual(rows, []);
    t.regex(text, new RegExp(`^${name}: not measured: `));
  });
}

test('the page about benchmarks has every name', (t) => {
  const page = readFileSync(join(ROOT, 'docs/develop/benchmarks.md'), 'utf8');
  for (const name of [
    'interposer',
    'storm',
    'agent',
    'scrape',
    'webhook',
    'extender',
    'scale',
    'burst',
    'compute',
    ...LATER,
  ])
    t.true(page.includes(`\`${name}\``), name);
});
