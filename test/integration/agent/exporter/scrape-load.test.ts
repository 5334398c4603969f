// When the metrics page is rendered: once for all scrapes of a snapshot, and never unasked; and what a scraper gets
// when it cannot be. In the worker thread of the agent, without HTTP but for the last test.
import { gunzipSync } from 'node:zlib';
import test from 'ava';
import { createRecorder } from '../../../../src/agent/snapshot/history.ts';
import { type Snapshot, staleSnapshot } from '../../../../src/agent/snapshot/snapshot.ts';
import { createLocalSource } from '../../../../src/agent/snapshot/source.ts';
import { createMetricsCache } from '../../../../src/exporter/metrics-cache.ts';
import { createExporter } from '../../../../src/exporter/routes.ts';
import { startHttpServer } from '../../../../src/serving/http-server.ts';
import { selfMetrics, serializeMetrics } from '../../../../src/serving/process-metrics.ts';
import { eventually, type Teardown } from '../../../support/native/node.ts';
import { seriesOf } from '../../../support/product/agent.ts';
import { exampleSnapshot } from '../../../support/product/snapshots.ts';

/** A machine that is short of CPU time is no failure, except where that is what is tested. */
const PATIENT = { waitMs: 60_000, renderMs: 60_000, idleMs: 60_000 };

function cacheOf(t: Teardown, limits: Partial<typeof PATIENT> = {}) {
  const problems: string[] = [];
  let newest: Snapshot | undefined;
  let isAway = false;
  let atMs = exampleSnapshot.atMs;
  const self = selfMetrics();
  const source = createLocalSource({
    snapshot: () => newest,
    history: createRecorder().history,
    own: () => serializeMetrics(self),
  });
  const cache = createMetricsCache({
    processes: false,
    compatibility: '',
    nodeName: '',
    source: { ...source, health: () => (isAway ? Promise.reject(new Error('away')) : source.health()) },
    log: { info: () => {}, warn: (text) => void problems.push(text) },
    limits: { ...PATIENT, ...limits },
  });
  t.teardown(cache.close);
  return {
    ...cache,
    problems,
    /** Returns its time in seconds. */
    publish: (change: (snapshot: Snapshot) => Snapshot = (snapshot) => snapshot): number => {
      atMs += 1000;
      newest = change({ ...exampleSnapshot, atMs });
      return atMs / 1000;
    },
    withdraw: () => {
      isAway = true;
    },
    async text(): Promise<string> {
      const page = await cache.scrape('text');
      return typeof page === 'string' ? page : Buffer.from(page.plain).toString();
    },
  };
}
/** Time of the snapshot of a page, in seconds. */
const snapshotTimeOf = (text: string) =>
  seriesOf(text, 'cotenant_exporter_collector_last_success_timestamp_seconds', { collector: 'device' });

test('without a scrape nothing is rendered; the first scrape gets the newest snapshot', async (t) => {
  const cache = cacheOf(t);
  for (let second = 0; second < 60; second += 1) cache.publish();
  t.is(cache.renderings(), 0);
  const newest = cache.publish();
  t.is(snapshotTimeOf(await cache.text()), newest);
  t.is(cache.renderings(), 1);
  t.deepEqual(cache.problems, []);
});

test('before the first snapshot a page has cotenant_up 0 and process metrics', async (t) => {
  const cache = cacheOf(t);
  const text = await cache.text();
  t.is(seriesOf(text, 'cotenant_up'), 0);
  t.true((seriesOf(text, 'process_start_time_seconds') ?? 0) > 0);
  t.is(snapshotTimeOf(text), undefined);
  const first = cache.publish();
  t.is(snapshotTimeOf(await cache.text()), first);
  t.deepEqual(cache.problems, []);
});

test('scrapes of one snapshot share one rendering of each format', async (t) => {
  const cache = cacheOf(t);
  cache.publish();
  const formats = ['text', 'openmetrics', 'text', 'text'] as const;
  const pages = await Promise.all([...formats, ...formats].map((format) => cache.scrape(format)));
  t.is(cache.renderings(), 2);
  const [text, openmetrics] = pages.map((page) => page as Exclude<typeof page, string>);
  if (!text || !openmetrics) return t.fail();
  for (const { plain, gzip } of [text, openmetrics]) t.true(gunzipSync(gzip).equals(plain));
  t.regex(Buffer.from(openmetrics.plain).toString(), /^# TYPE process_cpu_seconds counter$[\s\S]*\n# EOF\n$/m);
  t.regex(Buffer.from(text.plain).toString(), /^# TYPE process_cpu_seconds_total counter$/m);
  t.deepEqual(pages.slice(formats.length), pages.slice(0, formats.length));
  await cache.scrape('text');
  t.is(cache.renderings(), 2);
});

test('each snapshot is rendered again, and a silent driver shows at once', async (t) => {
  const cache = cacheOf(t);
  const first = cache.publish();
  t.is(snapshotTimeOf(await cache.text()), first);
  const second = cache.publish();
  const text = await cache.text();
  t.is(snapshotTimeOf(text), second);
  t.is(seriesOf(text, 'cotenant_up'), 1);
  cache.publish((snapshot) => staleSnapshot(snapshot, 30_000, { abandoned: 1, hung: 0 }));
  const stale = await cache.text();
  t.is(seriesOf(stale, 'cotenant_up'), 0);
  t.is(seriesOf(stale, 'cotenant_device_memory_used_bytes'), undefined);
  cache.publish();
  t.is(seriesOf(await cache.text(), 'cotenant_up'), 1);
  t.is(cache.renderings(), 4);
  cache.withdraw();
  t.is(await cache.scrape('text'), 'nothing', 'without the node half');
});

test('every scrape gets a page, also when snapshots come faster than pages', async (t) => {
  const cache = cacheOf(t);
  let newest = cache.publish();
  const snapshots = setInterval(() => {
    newest = cache.publish();
  }, 1);
  t.teardown(() => clearInterval(snapshots));
  for (let scrape = 0; scrape < 20; scrape += 1) {
    const before = newest;
    t.true((snapshotTimeOf(await cache.text()) ?? 0) >= before, 'not older than the scrape');
  }
});

test('if the worker thread fails, the next scrape starts another', async (t) => {
  const cache = cacheOf(t);
  const good = cache.publish();
  t.is(snapshotTimeOf(await cache.text()), good);
  // No collector reads what cannot be added to a number, so rendering itself fails.
  cache.publish((snapshot) => ({ ...snapshot, atMs: 1n as unknown as number }));
  t.is(await cache.scrape('text'), 'nothing', 'rather than the page before');
  t.regex(cache.problems.join('\n'), /^the metrics cannot be rendered: TypeError: .*BigInt/);
  const next = cache.publish();
  t.is(snapshotTimeOf(await cache.text()), next);
  cache.publish((snapshot) => ({ ...snapshot, recent: (() => []) as never }));
  t.is(await cache.scrape('text'), 'nothing');
  t.regex(cache.problems.at(-1) ?? '', /^the metrics cannot be rendered: DataCloneError/);
  t.is(cache.problems.length, 2);
});

test('an idle worker thread ends; the next scrape starts another', async (t) => {
  const cache = cacheOf(t, { idleMs: 1 });
  // The first page of a worker has no time of the page before.
  const isFirst = async () => seriesOf(await cache.text(), 'cotenant_exporter_render_duration_seconds') === undefined;
  cache.publish();
  t.true(await isFirst());
  await eventually(async () => {
    cache.publish();
    return (await isFirst()) || undefined;
  }, 'another worker');
  t.deepEqual(cache.problems, []);
});

test('a late scrape is refused, and a hung worker thread is ended', async (t) => {
  const slow = cacheOf(t, { waitMs: 1 });
  slow.publish();
  t.is(await slow.scrape('text'), 'late');
  const page = await eventually(async () => {
    const found = await slow.scrape('text');
    return found === 'late' ? undefined : found;
  }, 'it was rendered all the same');
  t.not(page, 'nothing');
  t.is(slow.renderings(), 1);

  const hung = cacheOf(t, { renderMs: 1 });
  hung.publish();
  t.is(await hung.scrape('text'), 'nothing');
  t.deepEqual(hung.problems, ['rendering the metrics took longer than 1 ms; the worker thread is restarted']);
});

test('HTTP: a late page is 503, and without a page cotenant_up is 0', async (t) => {
  let answer: 'late' | 'nothing' = 'late';
  const history = createRecorder().history;
  const source = createLocalSource({ own: async () => '', snapshot: () => undefined, history });
  const exporter = createExporter({ ...source, scrape: async () => answer });
  const { port, close } = await startHttpServer(exporter, { listen: { host: '127.0.0.1', port: 0 } });
  t.teardown(close);
  const late = await fetch(`http://127.0.0.1:${port}/metrics`);
  t.is(late.status, 503);
  t.regex(await late.text(), /^the metrics are not rendered yet: /);
  answer = 'nothing';
  const down = await fetch(`http://127.0.0.1:${port}/metrics`);
  t.is(down.status, 200);
  t.is(seriesOf(await down.text(), 'cotenant_up'), 0);
});
