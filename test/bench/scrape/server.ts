// The agent's metrics and HTTP code as a process, with a generated snapshot every second: `server.ts SERIES`. It sends
// its port to its parent, and answers `reset` and `read` with the durations of its event loop iterations. A bare server
// in a process of its own (`server.ts bare SERIES`) serves the same bytes, as the reference for the cost of HTTP.
import { createServer } from 'node:http';
import { createRecorder } from '../../../src/agent/snapshot/history.ts';
import type { Snapshot } from '../../../src/agent/snapshot/snapshot.ts';
import { createLocalSource } from '../../../src/agent/snapshot/source.ts';
import { createMetricsCache } from '../../../src/exporter/metrics-cache.ts';
import type { Page } from '../../../src/exporter/render-worker.ts';
import { createExporter } from '../../../src/exporter/routes.ts';
import { startHttpServer } from '../../../src/serving/http-server.ts';
import { selfMetrics, serializeMetrics } from '../../../src/serving/process-metrics.ts';
import { snapshotOfSize } from './snapshot.ts';

export type Ready = { readonly port: number; readonly series: number; readonly bytes: number };
export type Reading = {
  /** Most CPU time that the event loop's thread spent between two of its turns since `reset`, milliseconds. */
  readonly blockMs: number;
  /** Longest time between two turns, what other processes took of the machine included. */
  readonly delayMs: number;
  /** Snapshots that there were since `reset`, with the one that was there then. */
  readonly published: number;
  readonly renderings: number;
};

const PUBLISH_MS = 1000;
const PROBE_MS = 1;
const bare = process.argv[2] === 'bare';
const wanted = Number(process.argv[bare ? 3 : 2]);

const self = selfMetrics();
let snapshot: Snapshot | undefined;
const source = createLocalSource({
  snapshot: () => snapshot,
  history: createRecorder().history,
  own: () => serializeMetrics(self),
});
const page = createMetricsCache({
  processes: false,
  compatibility: '',
  nodeName: '',
  source,
  log: { info: () => {}, warn: (text) => console.error(text) },
});

async function scraped(): Promise<Page> {
  const found = await page.scrape('text');
  if (typeof found === 'string') throw new Error(`no page was rendered: ${found}`);
  return found;
}

async function seriesOf(containers: number): Promise<number> {
  snapshot = snapshotOfSize(containers, 0);
  return Buffer.from((await scraped()).plain)
    .toString()
    .split('\n')
    .filter((line) => line !== '' && !line.startsWith('#')).length;
}

// Two sizes tell what the rest of the page and what a container has, and so how many containers make the size.
const few = await seriesOf(10);
const perContainer = ((await seriesOf(20)) - few) / 10;
const containers = Math.ceil((wanted - few) / perContainer) + 10;
const series = await seriesOf(containers);
const { plain: plainBody, gzip: body } = await scraped();
const ready = { series, bytes: plainBody.byteLength };

const cpuMs = (): number => {
  const { user, system } = process.threadCpuUsage();
  return (user + system) / 1000;
};
let longest = { blockMs: 0, delayMs: 0 };
/** A timer that is due in each turn: what passes between two of them is one turn. Time is also counted as the thread's
 * own CPU time, which a busy machine does not stretch. */
function watchLoop(): void {
  const probe = (before: { cpu: number; wall: number }) => {
    const now = { cpu: cpuMs(), wall: performance.now() };
    longest = {
      blockMs: Math.max(longest.blockMs, now.cpu - before.cpu),
      delayMs: Math.max(longest.delayMs, now.wall - before.wall - PROBE_MS),
    };
    setTimeout(probe, PROBE_MS, now);
  };
  probe({ cpu: cpuMs(), wall: performance.now() });
}
let published = 0;
let before = page.renderings();
const read = (): Reading => ({ ...longest, published, renderings: page.renderings() - before });

if (bare) {
  await page.close();
  const server = createServer((request, response) => {
    const gzip = request.headers['accept-encoding'] === 'gzip';
    const bytes = gzip ? body : plainBody;
    response.writeHead(200, { 'Content-Length': bytes.byteLength });
    response.end(bytes);
  });
  server.listen(0, '127.0.0.1', () => {
    const address = server.address();
    process.send?.({ ...ready, port: typeof address === 'object' && address !== null ? address.port : 0 });
  });
} else {
  let coming = snapshotOfSize(containers, 1);
  const exporter = createExporter({ ...source, scrape: page.scrape });
  const { port } = await startHttpServer(exporter, { listen: { host: '127.0.0.1', port: 0 } });
  setInterval(() => {
    published += 1;
    snapshot = coming;
    // In a turn of its own: an agent does not build its snapshot here.
    setTimeout(() => {
      coming = snapshotOfSize(containers, published + 1);
    }, PUBLISH_MS / 2);
  }, PUBLISH_MS);
  watchLoop();
  process.send?.({ ...ready, port });
}

process.on('message', (request) => {
  if (request === 'reset') {
    longest = { blockMs: 0, delayMs: 0 };
    published = 1; // the one that is there already
    before = page.renderings();
  }
  process.send?.(read());
});
