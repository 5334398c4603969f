// The finished page that all scrapers share: one rendering per sample, in the worker; a scrape only hands out bytes. While a
// rendering is under way newer views wait, and only the newest of them is rendered next.

import { Worker } from 'node:worker_threads';
import { gzipSync } from 'node:zlib';
import { toOpenMetrics } from './metrics/open-metrics.ts';
import type { PageAnswer, PageForm, PageOptions, PageRequest } from './metrics/page-worker.ts';
import { collectDefaultMetrics, Registry } from './metrics/prom-client.ts';
import type { View } from './view.ts';

export type Page = PageForm;

export type PageServer = {
  publish(view: View): void;
  current(): Page | undefined;
  /** The same page as OpenMetrics. Whoever asks first waits for it; from then on it is there with each page. */
  openMetrics(): Page | undefined;
  /** Renderings so far; a scrape adds none. */
  renderings(): number;
  close(): Promise<void>;
};

/** The process about itself; these names are prom-client's own and common to all Node programs. */
export function selfMetrics(): Registry {
  const registry = new Registry();
  collectDefaultMetrics(registry);
  return registry;
}

/** Nobody reads a form that was not asked for in so many pages. */
const PAGES_WITHOUT_READER = 600;

export function startPage(
  options: PageOptions & {
    readonly self: Registry;
    readonly onProblem: (text: string) => void;
  },
): PageServer {
  let page: PageAnswer | undefined;
  let unread = PAGES_WITHOUT_READER;
  let waiting: View | undefined;
  let busy = false;
  let count = 0;
  let closing = false;
  let worker: Worker | undefined;

  const begin = (): Worker => {
    const fresh = new Worker(new URL('./metrics/page-worker.ts', import.meta.url), {
      workerData: {
        processes: options.processes,
        compatibility: options.compatibility,
        nodeName: options.nodeName,
      } satisfies PageOptions,
      // A page's strings die young in whatever room they get: more of it would only be more memory of the agent's.
      resourceLimits: { maxOldGenerationSizeMb: 96, maxYoungGenerationSizeMb: 6 },
    });
    fresh.on('message', (answer: PageAnswer) => {
      page = answer;
      count += 1;
      for (const problem of answer.problems) options.onProblem(problem);
      goOn();
    });
    fresh.on('error', (error) => options.onProblem(`the page cannot be rendered: ${String(error)}`));
    fresh.on('exit', () => {
      if (closing) return;
      // An old page would pass for a fresh one. The next view starts the next worker.
      page = undefined;
      worker = undefined;
      goOn();
    });
    fresh.unref();
    return fresh;
  };
  const send = async (view: View) => {
    busy = true;
    const append = await options.self.metrics().catch((error: unknown) => {
      options.onProblem(`the process's own metrics cannot be read: ${String(error)}`);
      return '';
    });
    unread += 1;
    const request: PageRequest = { view, append, openMetrics: unread < PAGES_WITHOUT_READER };
    worker ??= begin();
    worker.postMessage(request);
  };
  const goOn = () => {
    busy = false;
    const next = waiting;
    waiting = undefined;
    if (next) void send(next);
  };

  return {
    publish(view) {
      if (busy) waiting = view;
      else void send(view);
    },
    current: () => page,
    openMetrics() {
      unread = 0;
      if (!page) return undefined;
      if (page.openMetrics) return page.openMetrics;
      const plain = Buffer.from(toOpenMetrics(Buffer.from(page.plain).toString()));
      const openMetrics = { plain, gzip: gzipSync(plain, { level: 1 }) };
      page = { ...page, openMetrics };
      return openMetrics;
    },
    renderings: () => count,
    async close() {
      closing = true;
      await worker?.terminate();
    },
  };
}
