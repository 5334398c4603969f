// When the page is made: for scrapes that are expected, at once for others, and never for nobody; and what is said where it
// cannot be made. In the thread that an agent makes it in, by a clock of the test's own.
import { gunzipSync } from 'node:zlib';
import test from 'ava';
import { createRecorder } from '../../../../src/agent/snapshot/history.ts';
import { type Snapshot, staleSnapshot } from '../../../../src/agent/snapshot/snapshot.ts';
import { sourceHere, standingOf } from '../../../../src/agent/snapshot/source.ts';
import { startPage } from '../../../../src/exporter/metrics-cache.ts';
import { selfMetrics } from '../../../../src/exporter/process-metrics.ts';
import { createExporter } from '../../../../src/exporter/routes.ts';
import { startHttpServer } from '../../../../src/serving/http-server.ts';
import { seriesOf } from '../../../support/agent.ts';
import { eventually, type Teardown } from '../../../support/node.ts';
import { exampleSnapshot } from '../../../support/snapshots.ts';

type Limits = { readonly waitMs: number; readonly renderMs: number };
/** A machine that is short of time is no failure, but where that is what is tried. */
const PATIENT: Limits = { waitMs: 60_000, renderMs: 60_000 };

function pageOf(t: Teardown, limits = PATIENT) {
  const problems: string[] = [];
  let now = 1_000_000;
  let newest: Snapshot | undefined;
  const self = selfMetrics();
  const source = sourceHere({ snapshot: () => newest, history: createRecorder().history, own: () => self.metrics() });
  const page = startPage({
    processes: false,
    compatibility: '',
    nodeName: '',
    material: source.material,
    onProblem: (text) => problems.push(text),
    clock: () => now,
    limits,
  });
  t.teardown(page.close);
  let atMs = exampleSnapshot.atMs;
  return {
    ...page,
    problems,
    pass: (ms: number) => {
      now += ms;
    },
    publish: (change: (snapshot: Snapshot) => Snapshot = (snapshot) => snapshot) => {
      atMs += 1000;
      newest = change({ ...exampleSnapshot, atMs });
      page.publish(standingOf(newest));
      return atMs / 1000;
    },
    async text() {
      const body = await page.scrape('text');
      return typeof body === 'string' ? body : Buffer.from(body).toString();
    },
  };
}
/** Of which sample a page tells, in seconds. */
const sampleOf = (text: string) =>
  seriesOf(text, 'cotenant_exporter_collector_last_success_timestamp_seconds', { collector: 'device' });

test('where nobody scrapes nothing is rendered; the first scrape is answered with the newest snapshot', async (t) => {
  const page = pageOf(t);
  t.is(await page.scrape('text'), 'nothing', 'before the first snapshot');
  for (let second = 0; second < 60; second += 1) {
    page.publish();
    page.pass(1000);
  }
  t.deepEqual(page.renderings(), { expected: 0, asked: 0 });
  const newest = page.publish();
  t.is(sampleOf(await page.text()), newest);
  t.deepEqual(page.renderings(), { expected: 0, asked: 1 });
  t.deepEqual(page.problems, []);
});

test('who asks at the same moment shares one rendering, each in the form that it asked for', async (t) => {
  const page = pageOf(t);
  page.publish();
  const forms = ['text', 'text+gzip', 'openmetrics', 'openmetrics+gzip', 'text'] as const;
  const bodies = await Promise.all([...forms, ...forms].map((form) => page.scrape(form)));
  const [text, gzip, open, openGzip] = bodies.map((body) => Buffer.from(body as Uint8Array));
  t.deepEqual(page.renderings(), { expected: 0, asked: 1 });
  t.true(text && gzip && gunzipSync(gzip).equals(text));
  t.true(open && openGzip && gunzipSync(openGzip).equals(open));
  t.regex(String(open), /# EOF\n$/);
  t.true(String(open).includes(String(text).split('\n').at(-2) ?? '-'), 'the process tells of itself in both');
  t.deepEqual(bodies.slice(forms.length), bodies.slice(0, forms.length));
  const again = await page.text();
  t.is(again, String(text));
  t.deepEqual(page.renderings(), { expected: 0, asked: 1 });
});

test('a server that comes every 15 s finds its page made; seconds in which it does not come cost nothing', async (t) => {
  const page = pageOf(t);
  let scrapes = 0;
  const second = async (scraped: boolean) => {
    const before = page.renderings().expected;
    const sample = page.publish();
    page.pass(500);
    if (!scraped) return;
    scrapes += 1;
    if (scrapes > 3) t.is(page.renderings().expected, before + 1, `scrape ${scrapes}`);
    t.is(sampleOf(await page.text()), sample);
  };
  for (let at = 0; at < 151; at += 1) {
    await second(at % 15 === 0);
    page.pass(500);
  }
  t.is(scrapes, 11);
  t.deepEqual(page.renderings(), { expected: 8, asked: 3 });
});

test('a page is handed out for the moment that the next one takes, and no longer', async (t) => {
  const page = pageOf(t);
  page.publish();
  page.pass(1000);
  const first = page.publish();
  t.is(sampleOf(await page.text()), first);
  page.pass(1000);
  const second = page.publish();
  page.pass(249);
  t.is(sampleOf(await page.text()), first);
  page.pass(2);
  t.is(sampleOf(await page.text()), second);
});

test('what a silent driver leaves is told at once, and its return, too', async (t) => {
  const page = pageOf(t);
  page.publish();
  page.pass(1000);
  page.publish();
  t.is(seriesOf(await page.text(), 'cotenant_up'), 1);
  page.publish((snapshot) => staleSnapshot(snapshot, 30_000, { abandoned: 1, hung: 0 }));
  const stale = await page.text();
  t.is(seriesOf(stale, 'cotenant_up'), 0);
  t.is(seriesOf(stale, 'cotenant_device_memory_used_bytes'), undefined);
  page.publish();
  t.is(seriesOf(await page.text(), 'cotenant_up'), 1);
});

test('while snapshots come faster than pages are made every scrape is answered, with none older than when it came', async (t) => {
  const page = pageOf(t);
  let newest = page.publish();
  const snapshots = setInterval(() => {
    page.pass(1);
    newest = page.publish();
  }, 1);
  t.teardown(() => clearInterval(snapshots));
  for (let scrape = 0; scrape < 20; scrape += 1) {
    // Of the one before it within the moment that it takes to make a page.
    const oldest = newest - 1;
    t.true((sampleOf(await page.text()) ?? 0) >= oldest);
  }
});

test('a thread that ends leaves no page, and is told of; the next scrape starts another', async (t) => {
  const page = pageOf(t);
  page.publish();
  t.is(typeof (await page.text()), 'string');
  page.pass(1000);
  // Nothing that a sample holds, and nothing that a page can be made of.
  page.publish((snapshot) => ({ ...snapshot, atMs: 1n as unknown as number }));
  page.pass(1000);
  t.is(await page.scrape('text'), 'nothing', 'rather than the page before');
  t.regex(page.problems.join('\n'), /^the page cannot be rendered: TypeError: .*BigInt/);
  const good = page.publish();
  t.is(sampleOf(await page.text()), good);
  page.publish((snapshot) => ({ ...snapshot, recent: (() => []) as never }));
  page.pass(1000);
  t.is(await page.scrape('text'), 'nothing');
  t.regex(page.problems.at(-1) ?? '', /^the page cannot be rendered: DataCloneError/);
  t.is(page.problems.length, 2);
});

test('a thread that nobody had a page of for a quarter of an hour is ended; the next scrape starts another', async (t) => {
  const page = pageOf(t);
  // On a thread's first page there is no time of the page before.
  const isFirst = async () => seriesOf(await page.text(), 'cotenant_exporter_render_duration_seconds') === undefined;
  const after = async (ms: number) => {
    page.pass(ms);
    page.publish();
    page.pass(1000);
    page.publish();
    page.pass(1000);
    return isFirst();
  };
  page.publish();
  t.true(await isFirst());
  t.false(await after(0));
  t.false(await after(14 * 60_000));
  t.true(await after(15 * 60_000));
  t.deepEqual(page.renderings(), { expected: 0, asked: 4 });
  t.deepEqual(page.problems, []);
});

test('a scrape that would wait too long is told so, and a thread that hangs is ended', async (t) => {
  const slow = pageOf(t, { waitMs: 1, renderMs: 60_000 });
  slow.publish();
  t.is(await slow.scrape('text'), 'late');
  const body = await eventually(async () => {
    const found = await slow.scrape('text');
    return found === 'late' ? undefined : found;
  }, 'it was made all the same');
  t.true(body instanceof Uint8Array);
  t.is(slow.renderings().asked, 1);

  const hung = pageOf(t, { waitMs: 60_000, renderMs: 1 });
  hung.publish();
  t.is(await hung.scrape('text'), 'nothing');
  t.deepEqual(hung.problems, ['the page was not rendered in 1 ms; its thread is started again']);
});

test('over HTTP a page that is late is 503 with the reason, and one that is not there says down', async (t) => {
  let answer: 'late' | 'nothing' = 'late';
  const history = createRecorder().history;
  const source = sourceHere({ own: async () => 'own 1\n', snapshot: () => undefined, history });
  const exporter = createExporter({ ...source, scrape: async () => answer });
  const { port, close } = await startHttpServer(exporter, { listen: { host: '127.0.0.1', port: 0 } });
  t.teardown(close);
  const late = await fetch(`http://127.0.0.1:${port}/metrics`);
  t.is(late.status, 503);
  t.regex(await late.text(), /^the page is not made yet: /);
  answer = 'nothing';
  const down = await fetch(`http://127.0.0.1:${port}/metrics`);
  t.is(down.status, 200);
  const text = await down.text();
  t.is(seriesOf(text, 'cotenant_up'), 0);
  t.is(seriesOf(text, 'own'), 1);
});
