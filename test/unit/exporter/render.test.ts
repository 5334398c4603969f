// The page of metrics: whole, against a golden file, and in part, when a collector fails; and what it guards against of
// prom-client. After a wanted change: UPDATE_GOLDEN=1 ava test/unit/exporter/render.test.ts
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { METRICS } from '../../../dashboards/lib/metrics.ts';
import { staleSnapshot } from '../../../src/agent/snapshot/snapshot.ts';
import { type Collector, gauge } from '../../../src/exporter/collectors/collector.ts';
import { device } from '../../../src/exporter/collectors/device.ts';
import { processes } from '../../../src/exporter/collectors/process.ts';
import { COLLECTORS, createRenderer } from '../../../src/exporter/render.ts';
import { createMetrics as createSchedulerMetrics } from '../../../src/scheduler/metrics.ts';
import { createMetrics as createWebhookMetrics } from '../../../webhook/metrics.ts';
import { seriesOf } from '../../support/product/agent.ts';
import { exampleContainer, exampleSnapshot } from '../../support/product/snapshots.ts';

const GOLDEN = join(import.meta.dirname, '../../golden/metrics/page.txt');
const ALL = [...COLLECTORS, processes];

/** Times of the rendering itself differ from run to run; that they are numbers is all that is said of them. */
const masked = (page: string): string =>
  page.replace(/^(cotenant_exporter_\w+_duration_seconds(?:\{.*\})?) [\d.e-]+$/gm, '$1 (time)');
const seriesNames = (page: string): Set<string> =>
  new Set(page.split('\n').flatMap((line) => /^[a-z]\w*/.exec(line)?.[0] ?? []));

test('the last stop is the newest of all results', async (t) => {
  const kill = { ...exampleSnapshot.kills[0], count: 1 } as (typeof exampleSnapshot.kills)[number];
  const kills = [
    { ...kill, result: 'released', lastMs: 5000 },
    { ...kill, result: 'stuck', lastMs: 3000 },
  ];
  const { text: page } = await createRenderer(COLLECTORS)({ ...exampleSnapshot, kills });
  t.regex(page, /^cotenant_container_last_kill_timestamp_seconds\{[^}]*\} 5$/m);
});

test('the page matches the golden file', async (t) => {
  const make = createRenderer(ALL);
  await make(exampleSnapshot);
  const { text, problems } = await make(exampleSnapshot);
  t.deepEqual(problems, []);
  const shown = masked(text);
  if (process.env.UPDATE_GOLDEN) writeFileSync(GOLDEN, shown);
  t.is(shown, readFileSync(GOLDEN, 'utf8'));
});

test('the example has every metric of the dashboards', async (t) => {
  const make = createRenderer(ALL);
  await make(exampleSnapshot);
  const { text } = await make({
    ...exampleSnapshot,
    assigned: [],
    // More processes than the page shows.
    containers: [
      {
        ...exampleContainer,
        podGoneSinceMs: 1,
        processes: Array.from({ length: 60 }, (_, pid) => ({
          pid,
          command: 'many',
          usedBytes: pid,
          smPercent: 0,
          types: 1,
          inLedger: true,
        })),
      },
    ],
  });
  const webhook = createWebhookMetrics();
  webhook.certificateLoaded(new Date());
  webhook.observe('mutate', 'allowed', 0.001);
  const scheduler = createSchedulerMetrics();
  scheduler.observe('filter', 'ok', 0.001);
  const none = () => 0;
  scheduler.addState({
    epoch: () => undefined,
    ...{ nodes: none, grantedPods: none, bindingsInFlight: none, overcommittedGpus: none },
    invalid: () => ({ pods: 0, nodes: 0 }),
  });
  const shown = seriesNames([text, await webhook.render(), await scheduler.render()].join('\n'));
  t.deepEqual(
    Object.keys(METRICS).filter((name) => name.startsWith('cotenant_') && !shown.has(name)),
    [],
  );
  t.is(seriesOf(text, 'cotenant_exporter_series_dropped_total'), 10);
});

test('a full page drops the last series and counts them by collector', async (t) => {
  const samples = (page: string) =>
    page.split('\n').filter((line) => /^cotenant_(?!exporter_(collector|render|series))/.test(line));
  const whole = samples((await createRenderer(ALL)(exampleSnapshot)).text);
  const make = createRenderer(ALL, 60);
  const first = samples((await make(exampleSnapshot)).text);
  t.is(first.length, 60);
  t.deepEqual(
    first.filter((line) => !whole.includes(line)),
    [],
  );
  const { text } = await make(exampleSnapshot);
  const left = (collector: string) => seriesOf(text, 'cotenant_exporter_series_dropped_total', { collector });
  t.is(left('agent'), 0, 'there from the start, so that the first one is seen');
  t.is(seriesOf(text, 'cotenant_exporter_series_dropped_total'), 2 * (whole.length - 60));
  t.true((left('process') ?? 0) > 0);
});

test('a full page keeps running containers, and of ended ones the newest', async (t) => {
  const [totals] = exampleSnapshot.containerTotals;
  const [stray] = exampleSnapshot.foreignTotals;
  if (!totals || !stray) return t.fail();
  const flood = Array.from({ length: 400 }, (_, number) => ({
    pod: `run-${number}`,
    atMs: exampleSnapshot.atMs - 1000 * (400 - number),
  }));
  const whole = (await createRenderer(ALL)(exampleSnapshot)).text;
  const names = (page: string) =>
    page.split('\n').filter((line) => /^cotenant_(?!exporter_)/.test(line) && !line.includes('run-'));
  const make = createRenderer(ALL, names(whole).length + 200);
  const { text } = await make({
    ...exampleSnapshot,
    containerTotals: [
      ...flood.map(({ pod, atMs }) => ({ ...totals, pod, grantId: pod, seenMs: atMs })),
      ...exampleSnapshot.containerTotals,
    ],
    foreignTotals: [
      ...flood.map(({ pod, atMs }) => ({ ...stray, pod, containerId: pod, seenMs: atMs })),
      ...exampleSnapshot.foreignTotals,
    ],
  });
  const shown = new Set(text.split('\n'));
  t.deepEqual(
    names(whole).filter((line) => !shown.has(line) && !/_container_(?!kills).*rogue/.test(line)),
    [],
    'all that is there without the flood, but for what has ended, too',
  );
  const ended = (pod: string) => seriesOf(text, 'cotenant_container_sm_seconds_total', { pod });
  t.deepEqual([ended('run-399'), ended('run-0')], [12.5, undefined]);
});

test('a collector that throws costs only its own metrics', async (t) => {
  for (const broken of ALL) {
    const collectors = ALL.map((collector): Collector => {
      if (collector !== broken) return collector;
      return {
        ...collector,
        collect(snapshot, series) {
          collector.collect(snapshot, series); // as far as it came
          throw new Error('on purpose');
        },
      };
    });
    const whole = await createRenderer(ALL)(exampleSnapshot);
    const { text, problems } = await createRenderer(collectors)(exampleSnapshot);
    t.deepEqual(problems, [`the collector ${broken.name} failed: Error: on purpose`]);
    for (const { name } of ALL) {
      const success = seriesOf(text, 'cotenant_exporter_collector_success', { collector: name });
      t.is(success, name === broken.name ? 0 : 1, name);
    }
    const only = await createRenderer([broken])(exampleSnapshot);
    const own = [...seriesNames(only.text)].filter(
      (name) => !/^cotenant_exporter_(collector_|render_|series_)/.test(name),
    );
    t.true(own.length > 0, broken.name);
    const missing = [...seriesNames(whole.text)].filter((name) => !seriesNames(text).has(name));
    t.deepEqual(missing.sort(), own.sort(), broken.name);
  }
});

test('a collector that failed once recovers with the next snapshot', async (t) => {
  let fail = true;
  const flaky: Collector = {
    ...device,
    collect(snapshot, series) {
      if (fail) throw new Error('on purpose');
      device.collect(snapshot, series);
    },
  };
  const make = createRenderer([flaky]);
  const first = await make(exampleSnapshot);
  t.is(seriesOf(first.text, 'cotenant_device_memory_total_bytes'), undefined);
  fail = false;
  const second = await make(exampleSnapshot);
  t.is(seriesOf(second.text, 'cotenant_device_memory_total_bytes', { gpu: '0' }), 24 * 2 ** 30);
  t.is(seriesOf(second.text, 'cotenant_exporter_collector_success', { collector: 'device' }), 1);
});

test('a stale snapshot has cotenant_up 0, counters, and no gauges', async (t) => {
  const stale = staleSnapshot(exampleSnapshot, 31_400, { abandoned: 2, hung: 0 });
  const { text } = await createRenderer(ALL)(stale);
  t.is(seriesOf(text, 'cotenant_up'), 0);
  t.is(seriesOf(text, 'cotenant_container_sm_seconds_total', { pod: 'train' }), 12.5);
  t.is(seriesOf(text, 'cotenant_container_kills_total', { pod: 'rogue' }), 1);
  const gauges = [...seriesNames(text)].filter(
    (name) => /^cotenant_(device|container|foreign)_/.test(name) && !name.endsWith('_total'),
  );
  // What happened has happened.
  t.deepEqual(gauges, ['cotenant_device_xid_last_timestamp_seconds', 'cotenant_container_last_kill_timestamp_seconds']);
  t.is(seriesOf(text, 'cotenant_exporter_samplers_abandoned_total'), 2, 'also what came after the last sample');
  t.is(stale.self.problem, 'the last sample is 31 s old');
});

test('series that left the snapshot disappear', async (t) => {
  const make = createRenderer(ALL);
  await make(exampleSnapshot);
  const { text } = await make({
    ...exampleSnapshot,
    containers: [],
    assigned: [],
    foreign: [],
    devices: exampleSnapshot.devices.slice(0, 1),
  });
  t.is(seriesOf(text, 'cotenant_container_memory_used_bytes'), undefined);
  t.is(seriesOf(text, 'cotenant_foreign_memory_used_bytes'), undefined);
  t.is(seriesOf(text, 'cotenant_device_memory_total_bytes', { gpu: '1' }), undefined);
  t.is(seriesOf(text, 'cotenant_device_memory_total_bytes', { gpu: '0' }), 24 * 2 ** 30);
});

const one = (collect: Collector['collect']): Collector => ({
  name: 'one',
  metrics: {
    one_bytes: gauge('A "quoted" help,\nwith a \\ in it.', ['pod']),
    bare_bytes: gauge('Without labels.'),
    counted_total: { type: 'counter', help: 'Counted.', labels: ['pod'] },
    COUNTED: { type: 'counter', help: 'Counted, under the name of another exporter.', labels: [] },
  },
  collect,
});
const samples = (page: string) => page.split('\n').filter((line) => /^(one|bare|counted|COUNTED)/.test(line));

test('values are exact, equal labels are added up, non-finite values are absent', async (t) => {
  const { text } = await createRenderer([
    one((_, { set }) => {
      set('one_bytes', { pod: 'a' }, 0.1 + 0.2);
      set('one_bytes', { pod: 'b' }, 2 ** 53 - 1);
      set('one_bytes', { pod: 'c' }, Number.NaN);
      set('one_bytes', { pod: 'd' }, Number.POSITIVE_INFINITY);
      set('one_bytes', { pod: 'e' }, undefined);
      set('one_bytes', { pod: 'f"\n\\' }, 1e-7);
      set('counted_total', { pod: 'a' }, 1.5);
      set('counted_total', { pod: 'a' }, 2);
    }),
  ])(exampleSnapshot);
  t.deepEqual(samples(text), [
    'one_bytes{pod="a"} 0.30000000000000004',
    'one_bytes{pod="b"} 9007199254740991',
    'one_bytes{pod="f\\"\\n\\\\"} 1e-7',
    'counted_total{pod="a"} 3.5',
  ]);
});

test('a metric without labels is absent until set and after its collector failed', async (t) => {
  const render = createRenderer([one(() => {})]);
  t.deepEqual(samples((await render(exampleSnapshot)).text), []);
  const failing = createRenderer([
    one((_, { set }) => {
      set('bare_bytes', {}, 1);
      throw new Error('on purpose');
    }),
  ]);
  t.deepEqual(samples((await failing(exampleSnapshot)).text), []);
});

test('OpenMetrics: names of counters, unknown type, and end of the page', async (t) => {
  const render = createRenderer([
    one((_, { set }) => {
      set('bare_bytes', {}, 1);
      set('counted_total', { pod: 'a' }, 2);
      set('COUNTED', {}, 3);
    }),
  ]);
  const own = JSON.stringify([
    { name: 'own_seconds_total', help: 'Own.', type: 'counter', values: [{ labels: {}, value: 4 }] },
  ]);
  const { text } = await render(exampleSnapshot, 'openmetrics', own);
  t.deepEqual(samples(text), ['bare_bytes 1', 'counted_total{pod="a"} 2', 'COUNTED 3']);
  t.regex(text, /^# TYPE counted counter$/m);
  t.regex(text, /^# TYPE COUNTED unknown$/m);
  t.regex(text, /^# TYPE own_seconds counter\nown_seconds_total 4$/m);
  t.regex(text, /\n# EOF\n$/);
  t.regex(
    (await render(exampleSnapshot, 'text', own)).text,
    /^# TYPE own_seconds_total counter\nown_seconds_total 4$/m,
  );
});

test('a label that is not declared fails its collector', async (t) => {
  const { problems } = await createRenderer([one((_, { set }) => set('one_bytes', { node: 'a' }, 1))])(exampleSnapshot);
  t.regex(problems[0] ?? '', /^the collector one failed: Error: .*"node"/);
});
