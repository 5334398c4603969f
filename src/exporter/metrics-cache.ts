// The page that all scrapers share. It is made in a thread of its own, when a scrape is expected before the next sample, or when
// one came that was not: a node that nobody scrapes renders nothing. A page is handed out as long as it is of the newest snapshot,
// and for the moment that the next one takes to be made.
import { Worker } from 'node:worker_threads';
import type { Source, Standing } from '../agent/snapshot/source.ts';
import { showsProcesses } from '../api/compat-exporters.ts';
import type { PageAnswer, PageForm, PageOptions, PageRequest } from './render-worker.ts';
import { type Arrivals, graceMs, isWanted, withArrival } from './scrape-prediction.ts';

/** Bytes; or that there is nothing to tell of, or no thread that could; or that it took too long. */
export type Scraped = Uint8Array | 'nothing' | 'late';

export type PageServer = {
  /** There is a newer snapshot. */
  publish(standing: Standing): void;
  /** Whoever has snapshots is away: what was made of them would pass for fresh. */
  withdraw(): void;
  scrape(form: PageForm): Promise<Scraped>;
  /** Pages made so far, because a scrape was expected, or because one came. */
  renderings(): { readonly expected: number; readonly asked: number };
  close(): Promise<void>;
};

export const PAGE_LIMITS = {
  /** Of a scrape. Less than Prometheus waits (10 s), so that it hears why. */
  waitMs: 8000,
  /** A thread that takes longer hangs. Its start is in it, on a machine that is short of time. */
  renderMs: 20_000,
} as const;
/** Prometheus scrapes at least every few minutes: then the thread and its memory are given back. */
const IDLE_MS = 15 * 60 * 1000;

/** Which snapshot a page is of. The snapshot itself is asked for when a page is made, and is the newest then. */
type Published = {
  readonly up: boolean;
  /** When the next snapshot came. */
  followedMs?: number;
};
type Made = { readonly of: Published; readonly bodies: Map<PageForm, Uint8Array> };
type Job = PromiseWithResolvers<Made | undefined> & { readonly forms: Set<PageForm>; asked: boolean };

async function within<T>(promise: Promise<T>, ms: number): Promise<T | 'late'> {
  const { promise: late, resolve } = Promise.withResolvers<'late'>();
  const timer = setTimeout(resolve, ms, 'late');
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

export function startPage(
  options: PageOptions & {
    readonly material: Source['material'];
    readonly onProblem: (text: string) => void;
    /** A clock that nobody sets, in milliseconds. */
    readonly clock?: () => number;
    readonly limits?: { readonly waitMs: number; readonly renderMs: number };
  },
): PageServer {
  const { material, onProblem, clock = () => performance.now(), limits = PAGE_LIMITS } = options;
  const showsEach = options.processes || showsProcesses(options.compatibility);
  let newest: Published | undefined;
  let publishedMs = Number.NEGATIVE_INFINITY;
  let intervalMs = 0;
  let page: Made | undefined;
  let running: (Job & { readonly of: Published }) | undefined;
  let next: Job | undefined;
  let worker: Worker | undefined;
  let usedMs = 0;
  const scrapes = new Map<PageForm, Arrivals>();
  const count = { expected: 0, asked: 0 };

  const startWorker = (): Worker => {
    const fresh = new Worker(new URL('./render-worker.ts', import.meta.url), {
      workerData: {
        processes: options.processes,
        compatibility: options.compatibility,
        nodeName: options.nodeName,
      } satisfies PageOptions,
      // A page's strings die young in whatever room they get: more of it would only be more memory of the agent's.
      resourceLimits: { maxOldGenerationSizeMb: 96, maxYoungGenerationSizeMb: 6 },
    });
    fresh.on('message', (answer: PageAnswer) => {
      if (worker !== fresh || !running) return;
      for (const problem of answer.problems) onProblem(problem);
      const before = page?.of === running.of ? page.bodies : [];
      page = { of: running.of, bodies: new Map([...before, ...answer.bodies]) };
      goOn(page);
    });
    fresh.on('error', (error) => onProblem(`the page cannot be rendered: ${String(error)}`));
    fresh.on('exit', () => {
      if (worker !== fresh) return;
      // An old page would pass for a fresh one. The next rendering starts the next thread.
      endWorker();
      goOn(undefined);
    });
    fresh.unref();
    return fresh;
  };
  const endWorker = () => {
    const ended = worker;
    worker = undefined;
    page = undefined;
    return ended?.terminate();
  };
  const goOn = (made: Made | undefined) => {
    running?.resolve(made);
    running = undefined;
    if (next && newest) void begin(next, newest);
    else if (next) {
      next.resolve(undefined);
      next = undefined;
    }
  };
  const begin = async (job: Job, of: Published) => {
    next = undefined;
    const current = { ...job, of };
    running = current;
    usedMs = clock();
    void endLate(current);
    const isMade = page?.of === of;
    if (!isMade) count[job.asked ? 'asked' : 'expected'] += 1;
    try {
      const rendering = isMade ? undefined : await material(showsEach);
      if (running !== current) return; // the thread has ended meanwhile
      worker ??= startWorker();
      const request: PageRequest = { ...(rendering && { rendering }), forms: [...job.forms] };
      worker.postMessage(request, rendering instanceof Uint8Array ? [rendering.buffer] : []);
    } catch (error) {
      if (running !== current) return;
      onProblem(`the page cannot be rendered: ${String(error)}`);
      goOn(undefined);
    }
  };
  const endLate = async (current: NonNullable<typeof running>) => {
    if ((await within(current.promise, limits.renderMs)) !== 'late' || running !== current) return;
    onProblem(`the page was not rendered in ${limits.renderMs} ms; its thread is started again`);
    void endWorker();
    goOn(undefined);
  };

  /** The newest snapshot in these forms; whoever wants them at the same time shares one rendering. */
  const make = (of: Published, forms: readonly PageForm[], asked: boolean) => {
    if (running?.of === of && forms.every((form) => running?.forms.has(form))) return running.promise;
    next ??= { ...Promise.withResolvers<Made | undefined>(), forms: new Set(), asked };
    for (const form of forms) next.forms.add(form);
    next.asked ||= asked;
    const { promise } = next;
    if (!running) void begin(next, of);
    return promise;
  };

  /** What was made last, unless it would pass for newer than it is. */
  const ready = (form: PageForm): Uint8Array | undefined => {
    if (!page || !newest) return undefined;
    if (page.of !== newest) {
      // What ends or begins with a snapshot (the driver is silent, or back) is told at once.
      if (!page.of.up || !newest.up) return undefined;
      if (clock() - (page.of.followedMs ?? 0) > graceMs(intervalMs)) return undefined;
    }
    return page.bodies.get(form);
  };

  return {
    publish({ up }) {
      const now = clock();
      if (newest) {
        newest.followedMs = now;
        intervalMs = now - publishedMs;
      }
      newest = { up };
      publishedMs = now;
      const wanted = [...scrapes].flatMap(([form, arrivals]) => (isWanted(arrivals, now, intervalMs) ? [form] : []));
      if (wanted.length > 0) void make(newest, wanted, false);
      else if (worker && !running && now - usedMs > IDLE_MS) void endWorker();
    },
    withdraw() {
      newest = undefined;
      page = undefined;
    },
    async scrape(form) {
      scrapes.set(form, withArrival(scrapes.get(form) ?? [], clock()));
      const there = ready(form);
      if (there) return there;
      if (!newest) return 'nothing';
      const made = await within(make(newest, [form], true), limits.waitMs);
      return made === 'late' ? made : (made?.bodies.get(form) ?? 'nothing');
    },
    renderings: () => ({ ...count }),
    async close() {
      await endWorker();
      running?.resolve(undefined);
      next?.resolve(undefined);
    },
  };
}
