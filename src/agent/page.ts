// The finished page that all scrapers share: one rendering per sample, in the worker; a scrape only hands out bytes. While a
// rendering is under way newer views wait, and only the newest of them is rendered next.
import { Worker } from 'node:worker_threads';
import { collectDefaultMetrics, Registry } from 'prom-client';
import type { PageAnswer, PageRequest } from './metrics/page-worker.ts';
import type { View } from './view.ts';

export type Page = { readonly plain: Uint8Array; readonly gzip: Uint8Array };

export type PageServer = {
  publish(view: View): void;
  current(): Page | undefined;
  /** Renderings so far; a scrape adds none. */
  renderings(): number;
  close(): Promise<void>;
};

/** The process about itself; these names are prom-client's own and common to all Node programs. */
export function selfMetrics(): Registry {
  const registry = new Registry();
  collectDefaultMetrics({ register: registry });
  return registry;
}

export function startPage(options: {
  readonly processes: boolean;
  readonly self: Registry;
  readonly onProblem: (text: string) => void;
}): PageServer {
  let page: Page | undefined;
  let waiting: View | undefined;
  let busy = false;
  let count = 0;
  let closing = false;
  let worker: Worker | undefined;

  const begin = (): Worker => {
    const fresh = new Worker(new URL('./metrics/page-worker.ts', import.meta.url), {
      workerData: { processes: options.processes },
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
    const request: PageRequest = { view, append };
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
    renderings: () => count,
    async close() {
      closing = true;
      await worker?.terminate();
    },
  };
}
