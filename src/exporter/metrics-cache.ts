// The page of metrics of the newest snapshot, rendered by a worker thread when the first scrape asks for it and shared by all scrapes
// of the same snapshot. A node that nothing scrapes renders nothing.
import type { SnapshotHealth, Source } from '../agent/snapshot/source.ts';
import { showsProcesses } from '../api/compat-exporters.ts';
import type { Logger } from '../common/logger.ts';
import type { Format } from './render.ts';
import { createRenderThread, type ThreadLimits } from './render-thread.ts';
import type { Page, RenderOptions } from './render-worker.ts';

/** Or: there is no snapshot, or rendering failed; or it takes too long. */
export type Scraped = Page | 'nothing' | 'late';

export type MetricsCache = {
  /** There is a newer snapshot. */
  publish(health: SnapshotHealth): void;
  /** The node half is gone: what was rendered from its snapshots would look fresh. */
  withdraw(): void;
  scrape(format: Format): Promise<Scraped>;
  /** Pages rendered so far. */
  renderings(): number;
  close(): Promise<void>;
};

type CacheLimits = ThreadLimits & {
  /** Of a scrape. */
  readonly waitMs: number;
};
const LIMITS: CacheLimits = {
  // Less than Prometheus waits (10 s), so that it receives the reason.
  waitMs: 8000,
  renderMs: 20_000,
  // Prometheus scrapes at least every few minutes.
  idleMs: 15 * 60 * 1000,
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
    readonly log: Pick<Logger, 'warn'>;
    readonly limits?: CacheLimits;
  },
): MetricsCache {
  const { processes, compatibility, nodeName, log, limits = LIMITS } = options;
  const thread = createRenderThread({ processes, compatibility, nodeName }, limits, log);
  const material = () => options.material(processes || showsProcesses(compatibility));
  /** Number of the newest snapshot. */
  let newest = 0;
  let isThere = false;
  let renderings = 0;
  const pages = new Map<Format, { readonly page: Promise<Page | undefined>; isDone: boolean }>();

  const render = (format: Format): Promise<Page | undefined> => {
    const of = newest;
    renderings += 1;
    const rendering = { page: thread.render(format, material), isDone: false };
    pages.set(format, rendering);
    void rendering.page.then((page) => {
      rendering.isDone = true;
      // A page of an older snapshot is only for the scrapes that wait for it.
      if ((!page || of !== newest) && pages.get(format) === rendering) pages.delete(format);
    });
    return rendering.page;
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
      const page = await within(pages.get(format)?.page ?? render(format), limits.waitMs);
      return page ?? 'nothing';
    },
    renderings: () => renderings,
    close: thread.close,
  };
}
