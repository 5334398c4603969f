// Time of a test's own: the clocks and timers that the product uses stand still until the test moves them, so that the
// same calls have the same results on every machine.
import { syncBuiltinESMExports } from 'node:module';
import promises from 'node:timers/promises';

type Timer = { atMs: number; readonly everyMs: number | undefined; readonly run: () => void };

export type VirtualTime = {
  readonly nowMs: number;
  readonly date: Date;
  /** Moves on; all that is due happens in its order, and `between` after each. */
  pass(ms: number): Promise<void>;
  /** Moves on until it settles. */
  until<T>(promise: Promise<T>): Promise<T>;
  /** Gives the process its clocks and timers back. */
  restore(): void;
};

const EPOCH_MS = Date.UTC(2026, 0, 1);
/** Promises and streams go on in these turns of the event loop; none of them waits for anything outside. */
const TURNS = 3;
/** More than any call may take. */
const LONGEST_MS = 200_000;

export function virtualTime(between: () => void): VirtualTime {
  const timers = new Set<Timer>();
  const turn = setImmediate;
  let nowMs = 1_000_000;

  const start = (run: () => void, ms = 0, everyMs?: number) => {
    const timer: Timer = { atMs: nowMs + Math.max(ms, 1), everyMs, run };
    timers.add(timer);
    return Object.assign(timer, { ref: () => timer, unref: () => timer, hasRef: () => true });
  };
  const stop = (timer: unknown): void => void timers.delete(timer as Timer);
  const wait = (ms: number, value?: unknown, { signal }: { readonly signal?: AbortSignal } = {}) =>
    new Promise((resolve, reject) => {
      const abort = () => reject(signal?.reason);
      if (signal?.aborted) return abort();
      signal?.addEventListener('abort', abort, { once: true });
      start(() => resolve(value), ms);
    });
  const timeout = (ms: number): AbortSignal => {
    const late = new AbortController();
    start(() => late.abort(new DOMException('late', 'TimeoutError')), ms);
    return late.signal;
  };
  const replaced = [
    replace(globalThis, 'setTimeout', start),
    replace(globalThis, 'setInterval', (run: () => void, ms: number) => start(run, ms, ms)),
    replace(globalThis, 'clearTimeout', stop),
    replace(globalThis, 'clearInterval', stop),
    replace(performance, 'now', () => nowMs),
    replace(Date, 'now', () => EPOCH_MS + nowMs),
    replace(AbortSignal, 'timeout', timeout),
    replace(promises, 'setTimeout', wait),
  ];
  syncBuiltinESMExports();

  const settle = async (): Promise<void> => {
    for (let turns = 0; turns < TURNS; turns += 1) await new Promise((resolve) => turn(resolve));
  };
  const next = (untilMs: number): Timer | undefined => {
    let first: Timer | undefined;
    for (const timer of timers) if (timer.atMs <= untilMs && (!first || timer.atMs < first.atMs)) first = timer;
    return first;
  };
  const runNext = async (untilMs: number): Promise<boolean> => {
    const timer = next(untilMs);
    if (!timer) return false;
    nowMs = Math.max(nowMs, timer.atMs);
    if (timer.everyMs === undefined) timers.delete(timer);
    else timer.atMs = nowMs + timer.everyMs;
    timer.run();
    await settle();
    between();
    await settle();
    return true;
  };
  return {
    get nowMs() {
      return nowMs;
    },
    get date() {
      return new Date(EPOCH_MS + nowMs);
    },
    async pass(ms) {
      const untilMs = nowMs + ms;
      await settle();
      while (await runNext(untilMs));
      nowMs = untilMs;
    },
    async until(promise) {
      let isSettled = false;
      const settled = promise.finally(() => {
        isSettled = true;
      });
      settled.catch(() => undefined);
      await settle();
      const untilMs = nowMs + LONGEST_MS;
      while (!isSettled && (await runNext(untilMs)));
      if (!isSettled) throw new Error(`not settled after ${LONGEST_MS / 1000} s`);
      return settled;
    },
    restore() {
      for (const restore of replaced) restore();
      syncBuiltinESMExports();
    },
  };
}

function replace(owner: object, key: string, value: unknown): () => void {
  const before = Object.getOwnPropertyDescriptor(owner, key);
  Object.defineProperty(owner, key, { configurable: true, writable: true, enumerable: true, value });
  return () => {
    if (before) Object.defineProperty(owner, key, before);
    else Reflect.deleteProperty(owner, key);
  };
}
