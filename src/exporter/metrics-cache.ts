// The page of metrics of the newest snapshot, rendered by a worker thread when the first scrape asks for it and shared
// by all scrapes of the same snapshot. A node that nothing scrapes renders nothing.
import type { Source } from '../agent/snapshot/source.ts';
import { showsProcesses } from '../api/compat-exporters.ts';
import type { Logger } from '../common/logger.ts';
import type { Format } from './render.ts';
import { createRenderThread, type ThreadLimits } from './render-thread.ts';
import type { Page, RenderOptions } from './render-worker.ts';

/** Or: the node half does not answer, or rendering failed; or it takes too long. */
export type Scraped = Page | 'nothing' | 'late';

type MetricsCache = {
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

type Rendering = {
  /** Of its snapshot, or of one before it. */
  readonly number: number;
  readonly page: Promise<Page | undefined>;
  isDone: boolean;
};

export function createMetricsCache(
  options: RenderOptions & {
    readonly source: Pick<Source, 'health' | 'material'>;
    readonly log: Pick<Logger, 'info' | 'warn'>;
    readonly limits?: CacheLimits;
  },
): MetricsCache {
  const { processes, compatibility, nodeName, source, log, limits = LIMITS } = options;
  const thread = createRenderThread({ processes, compatibility, nodeName }, limits, log);
  const material = () => source.material(processes || showsProcesses(compatibility));
  let renderings = 0;
  let isAway = false;
  const pages = new Map<Format, Rendering>();

  const render = (format: Format, number: number): Rendering => {
    renderings += 1;
    const page = thread.render(format, material);
    const rendering = { number, page, isDone: false };
    pages.set(format, rendering);
    void page.then((done) => {
      rendering.isDone = true;
      if (!done && pages.get(format) === rendering) pages.delete(format);
    });
    return rendering;
  };
  const scrape = async (format: Format): Promise<Scraped> => {
    const health = await source.health().catch((error: Error) => log.warn(error.message));
    if (health && isAway) log.info('the node half answers again');
    isAway = !health;
    // What was rendered from its snapshots would look fresh.
    if (!health) return 'nothing';
    const last = pages.get(format);
    // A page of an older snapshot is only for the scrapes that come while it is rendered.
    const isUsable = last && (last.number === health.number || !last.isDone);
    return (await (isUsable ? last : render(format, health.number)).page) ?? 'nothing';
  };

  return {
    scrape: (format) => within(scrape(format), limits.waitMs),
    renderings: () => renderings,
    close: thread.close,
  };
}
