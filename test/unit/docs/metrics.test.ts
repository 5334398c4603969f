// docs/reference/metrics.md and what the collectors declare.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { processes } from '../../../src/exporter/collectors/process.ts';
import { COLLECTORS, PAGE_METRICS } from '../../../src/exporter/render.ts';
import { blocks, quoted, readPage, rowsWith } from '../../support/docs.ts';

const page = readPage('docs/reference/metrics.md');
const D = ['gpu', 'gpu_uuid'];
const C = [...D, 'namespace', 'pod', 'container', 'mode'];

type Shape = { readonly type: string; readonly labels: readonly string[] };

/** Everything on the page of a node. */
const served = (): ReadonlyMap<string, Shape> =>
  new Map(
    [...COLLECTORS, processes, { metrics: PAGE_METRICS }].flatMap(({ metrics }) =>
      Object.entries(metrics).map(([name, { type, labels }]) => [name, { type, labels: [...labels].sort() }] as const),
    ),
  );

const labelsOf = (cell = ''): string[] => [...(/^D\b/.test(cell) ? D : /^C\b/.test(cell) ? C : []), ...quoted(cell)];

test('the tables have every metric once, with its type and labels', async (t) => {
  const rows = rowsWith(page, 'metric', 'type', 'labels', 'unit', 'meaning');
  const documented = rows.map((row): [string, Shape] => [
    quoted(row.metric)[0] ?? '',
    { type: row.type ?? '', labels: labelsOf(row.labels).sort() },
  ]);
  t.is(new Map(documented).size, documented.length, 'a metric stands there twice');
  const byName = (a: readonly [string, unknown], b: readonly [string, unknown]) => (a[0] < b[0] ? -1 : 1);
  t.deepEqual(documented.toSorted(byName), [...served()].toSorted(byName));
  t.true(documented.length > 50);
  for (const row of rows) t.true((row.unit ?? '') !== '' && (row.meaning ?? '') !== '', row.metric);
});

test('every metric that the page names exists', async (t) => {
  const known = served();
  const named = new Set([...page.matchAll(/\bcotenant_[a-z_]+[a-z]\b/g)].map(([name]) => name));
  t.true(named.size > 50);
  t.deepEqual(
    [...named].filter((name) => !known.has(name)),
    [],
  );
});

test('the standard errors on the page follow from its formula', (t) => {
  const file = join(import.meta.dirname, '../../gpu/observed/h100-580.159.04.json');
  const { steps } = JSON.parse(readFileSync(file, 'utf8'));
  const { periodS } = steps.find(({ id }: { id: string }) => id === 'nvml.utilization').data;
  const rate = Math.round(1 / periodS);
  const points = (p: number, seconds: number) => (100 * Math.sqrt((p * (1 - p)) / (rate * seconds))).toFixed(1);
  t.true(page.includes(`sqrt(p (1 − p) / (${rate} T))`));
  const [, eighth, half, short] =
    /is (\d\.\d) percentage points at p = 1\/8 and (\d\.\d) at p = 1\/2; over a single second it is (\d+)/.exec(
      page.replaceAll(/\s+/g, ' '),
    ) ?? [];
  t.is(eighth, points(1 / 8, 60));
  t.is(half, points(1 / 2, 60));
  t.is(short, Number(points(1 / 2, 1)).toFixed(0));
});

test('there are example queries, one per line', (t) => {
  const queries = blocks(page, 'promql').flatMap((block) => block.trim().split('\n'));
  t.true(queries.length >= 8);
});
