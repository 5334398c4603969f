// The benchmarks' command line and the shape of what they print. No figure is judged here: machines differ.
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'ava';

const ROOT = join(import.meta.dirname, '../../..');

function bench(...args: string[]) {
  const result = spawnSync(process.execPath, [join(ROOT, 'test/bench/run.ts'), ...args], { encoding: 'utf8' });
  return { code: result.status, rows: result.stdout.split('\n').filter((line) => line !== ''), text: result.stderr };
}

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
    'nvml',
    'scrape',
    'webhook',
    'extender',
    'scheduler',
    'scale',
    'burst',
    'compute',
    'placement',
    'operate',
  ])
    t.true(text.includes(name), name);
});

test('placement replays a trace under every policy, and says so where none is named', (t) => {
  t.timeout(120_000);
  const [none] = bench('placement', '--json').rows.map((line) => JSON.parse(line));
  t.like(none, { name: 'placement.openb', value: null });
  t.regex(none.reference.what, /--trace DIR/);
  const folder = mkdtempSync(join(tmpdir(), 'trace-'));
  t.teardown(() => rmSync(folder, { recursive: true }));
  const nodes = ['n1,16000,65536,2,T4', 'n2,16000,65536,2,P100'];
  const pods = Array.from({ length: 8 }, (_, index) => `p${index},1000,1024,1,500,`);
  writeFileSync(
    join(folder, 'openb_node_list_gpu_node.csv'),
    ['sn,cpu_milli,memory_mib,gpu,model', ...nodes, ''].join('\n'),
  );
  const head = 'name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec';
  writeFileSync(join(folder, 'openb_pod_list_tiny.csv'), [head, ...pods, ''].join('\n'));
  const { code, rows } = bench('placement', '--json', '--trace', folder);
  t.is(code, 0);
  const values = rows.map((line) => JSON.parse(line)).map(({ name, value }) => [name, value] as const);
  const allocated = values.filter(([name]) => name.endsWith('.allocated_percent_at_100'));
  t.true(allocated.length >= 9);
  // Halves of GPUs leave nothing over under any policy.
  for (const [name, value] of allocated) t.is(value, 100, name);
  t.true(values.some(([name]) => name === 'placement.openb.tiny.cotenant_fragmentation.allocated_percent_at_100'));
  t.deepEqual(values.at(-1), ['placement.openb.tiny.cotenant_fragmentation.change_by_renaming', 0]);
});

test('the page about benchmarks has every name', (t) => {
  const page = readFileSync(join(ROOT, 'docs/develop/benchmarks.md'), 'utf8');
  for (const name of [
    'interposer',
    'storm',
    'agent',
    'nvml',
    'scrape',
    'webhook',
    'extender',
    'scheduler',
    'scale',
    'burst',
    'compute',
    'placement',
    'operate',
  ])
    t.true(page.includes(`\`${name}\``), name);
});
