// The page of metrics of the newest snapshot, rendered by a worker thread when the first scrape asks for it and shared by all scrapes
// of the same snapshot. A node that nothing scrapes renders nothing and has no worker.
import { Worker } from 'node:worker_threads';
import type { Source, Standing } from '../agent/snapshot/source.ts';
import { showsProcesses } from '../api/compat-exporters.ts';
import type { Format } from './render.ts';
import type { Page, RenderAnswer, RenderOptions, RenderRequest } from './render-worker.ts';

/** Or: there is no snapshot, or rendering failed; or it takes too long. */
export type Scraped = Page | 'nothing' | 'late';

export type MetricsCache = {
  /** There is a newer snapshot. */
  publish(standing: Standing): void;
  /** The node half is gone: what was rendered from its snapshots would look fresh. */
  withdraw(): void;
  scrape(format: Format): Promise<Scraped>;
  /** Pages rendered so far. */
  renderings(): number;
  close(): Promise<void>;
};

export const CACHE_LIMITS = {
  /** Of a scrape. Less than Prometheus waits (10 s), so that it receives the reason. */
  waitMs: 8000,
  /** A worker that takes longer hangs. Includes its start, on a machine that is short of CPU time. */
  renderMs: 20_000,
  /** Prometheus scrapes at least every few minutes; after this the worker and its memory are released. */
  idleMs: 15 * 60 * 1000,
} as const;

type Rendering = PromiseWithResolvers<Page | undefined> & {
  readonly format: Format;
  /** The number of the snapshot that was the newest when it began. */
  readonly of: number;
  isDone: boolean;
};

async function within<T>(promise: Promise<T>, ms: number): Promise<T | 'late'> {
  const { promise: late, resolve } = Promise.withResolvers<'late'>();
  const timer = setTimeout(resolve, ms, 'late');
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

export function createMetricsCache(
  options: RenderOptions & {
    readonly material: Source['material'];
    readonly onProblem: (text: string) => void;
    readonly limits?: { readonly waitMs: number; readonly renderMs: number; readonly idleMs: number };
  },
): MetricsCache {
  const { material, onProblem, limits = CACHE_LIMITS, processes, compatibility, nodeName } = options;
  const withProcesses = processes || showsProcesses(compatibility);
  let newest = 0;
  let isThere = false;
  const pages = new Map<Format, Rendering>();
  /** Those that the worker has, by number. */
  const running = new Map<number, Rendering>();
  let started = 0;
  let worker: Worker | undefined;
  let idle: NodeJS.Timeout | undefined;

  const finish = (id: number, page: Page | undefined) => {
    const rendering = running.get(id);
    if (!rendering) return;
    running.delete(id);
    rendering.isDone = true;
    // An older page is for those who asked while it was rendered, and nobody else.
    if ((!page || rendering.of !== newest) && pages.get(rendering.format) === rendering) pages.delete(rendering.format);
    rendering.resolve(page);
  };
  const endWorker = async () => {
    const ended = worker;
    worker = undefined;
    clearTimeout(idle);
    for (const id of [...running.keys()]) finish(id, undefined);
    await ended?.terminate();
  };
  const startWorker = (): Worker => {
    const fresh = new Worker(new URL('./render-worker.ts', import.meta.url), {
      workerData: { processes, compatibility, nodeName } satisfies RenderOptions,
      // A page's strings are garbage soon; a larger young generation would only be more memory of the agent.
      resourceLimits: { maxOldGenerationSizeMb: 96, maxYoungGenerationSizeMb: 6 },
    });
    fresh.on('message', ({ id, page, problems }: RenderAnswer) => {
      if (worker !== fresh) return;
      for (const problem of problems) onProblem(problem);
      finish(id, page);
    });
    fresh.on('error', (error) => onProblem(`the metrics cannot be rendered: ${String(error)}`));
    fresh.on('exit', () => {
      if (worker === fresh) void endWorker(); // the next rendering starts another one
    });
    fresh.unref();
    return fresh;
  };
  const endIfHung = async (rendering: Rendering) => {
    if ((await within(rendering.promise, limits.renderMs)) !== 'late') return;
    onProblem(`rendering the metrics took longer than ${limits.renderMs} ms; the worker thread is restarted`);
    await endWorker();
  };
  const send = async (id: number, format: Format) => {
    try {
      const of = await material(withProcesses);
      if (!running.has(id)) return;
      worker ??= startWorker();
      const request: RenderRequest = { id, format, material: of };
      worker.postMessage(request, of instanceof Uint8Array ? [of.buffer] : []);
    } catch (error) {
      onProblem(`the metrics cannot be rendered: ${String(error)}`);
      finish(id, undefined);
    }
  };
  const render = (format: Format): Rendering => {
    started += 1;
    const rendering = { ...Promise.withResolvers<Page | undefined>(), format, of: newest, isDone: false };
    running.set(started, rendering);
    pages.set(format, rendering);
    void send(started, format);
    void endIfHung(rendering);
    clearTimeout(idle);
    idle = setTimeout(endWorker, limits.idleMs).unref();
    return rendering;
  };

  return {
    publish() {
      newest += 1;
      isThere = true;
      for (const [format, { isDone }] of pages) if (isDone) pages.delete(format);
    },
    withdraw() {
      newest += 1;
      isThere = false;
      pages.clear();
    },
    async scrape(format) {
      if (!isThere) return 'nothing';
      const { promise } = pages.get(format) ?? render(format);
      const page = await within(promise, limits.waitMs);
      return page ?? 'nothing';
    },
    renderings: () => started,
    close: endWorker,
  };
}
