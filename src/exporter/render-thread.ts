// The worker thread that renders pages (render-worker.ts): started with the first page, ended when it has had nothing
// to do for long, and restarted when it hangs or fails.
import { Worker } from 'node:worker_threads';
import type { Encoded, Material } from '../agent/snapshot/source.ts';
import type { Logger } from '../common/logger.ts';
import type { Format } from './render.ts';
import type { Page, RenderAnswer, RenderOptions, RenderRequest } from './render-worker.ts';

type RenderThread = {
  /** Undefined: it could not be rendered; the log has the reason. */
  render(format: Format, material: () => Promise<Material | Encoded>): Promise<Page | undefined>;
  close(): Promise<void>;
};

export type ThreadLimits = {
  /** A page that takes longer means that the thread hangs. Includes its start, on a machine that is short of CPU
   * time. */
  readonly renderMs: number;
  /** Without a page for so long, the thread and its memory are released. */
  readonly idleMs: number;
};

export function createRenderThread(
  options: RenderOptions,
  { renderMs, idleMs }: ThreadLimits,
  log: Pick<Logger, 'warn'>,
): RenderThread {
  const running = new Map<number, (page: Page | undefined) => void>();
  let started = 0;
  let worker: Worker | undefined;
  let idle: NodeJS.Timeout | undefined;

  const finish = (id: number, page: Page | undefined) => {
    running.get(id)?.(page);
    running.delete(id);
  };
  const end = async () => {
    const ended = worker;
    worker = undefined;
    clearTimeout(idle);
    for (const id of [...running.keys()]) finish(id, undefined);
    await ended?.terminate();
  };
  const start = (): Worker => {
    const fresh = new Worker(new URL('./render-worker.ts', import.meta.url), {
      workerData: options,
      // A page's strings are garbage soon; a larger young generation would only be more memory of the agent.
      resourceLimits: { maxOldGenerationSizeMb: 96, maxYoungGenerationSizeMb: 6 },
    });
    fresh.on('message', ({ id, page, problems }: RenderAnswer) => {
      if (worker !== fresh) return;
      for (const problem of problems) log.warn(problem);
      finish(id, page);
    });
    fresh.on('error', (error) => log.warn(`the metrics cannot be rendered: ${String(error)}`));
    fresh.on('exit', () => {
      if (worker === fresh) void end();
    });
    fresh.unref();
    return fresh;
  };
  const send = async (id: number, format: Format, material: () => Promise<Material | Encoded>) => {
    try {
      const of = await material();
      if (!running.has(id)) return;
      worker ??= start();
      const request: RenderRequest = { id, format, material: of };
      worker.postMessage(request, of instanceof Uint8Array ? [of.buffer] : []);
    } catch (error) {
      log.warn(`the metrics cannot be rendered: ${String(error)}`);
      finish(id, undefined);
    }
  };
  const endHung = () => {
    log.warn(`rendering the metrics took longer than ${renderMs} ms; the worker thread is restarted`);
    void end();
  };

  return {
    async render(format, material) {
      const { promise, resolve } = Promise.withResolvers<Page | undefined>();
      started += 1;
      running.set(started, resolve);
      const timer = setTimeout(endHung, renderMs).unref();
      clearTimeout(idle);
      void send(started, format, material);
      try {
        return await promise;
      } finally {
        clearTimeout(timer);
        if (worker && running.size === 0) idle = setTimeout(end, idleMs).unref();
      }
    },
    close: end,
  };
}
