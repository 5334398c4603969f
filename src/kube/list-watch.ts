// Follows objects of the API server: a complete list, then a watch from there, for ever. Owns paging, going on after a cut, and
// listing again; keeps no object, so that a caller with many of them keeps only what it needs.
import { type KubeConfig, Watch } from '@kubernetes/client-node';
import { field } from '../common/json.ts';
import { describeApiError } from './api-error.ts';

/** One page of a list, as the client library gives it. */
export type Listed<T> = {
  readonly items: readonly T[];
  readonly metadata?: { readonly resourceVersion?: string; readonly _continue?: string };
};

export type WatchedObjects<T, Kept> = {
  /** Path and query of the watch, e.g. `/api/v1/pods`. */
  readonly path: string;
  readonly query?: Readonly<Record<string, string>>;
  /** One page. No resource version is given with it, so that the answer is never an older one than was written last. */
  readonly list: (limit: number, from: string | undefined) => Promise<Listed<T>>;
  /** What the caller needs of one object. Called as each page arrives, so that no list is in memory as whole objects. */
  readonly keep: (object: T) => Kept;
  /** Everything there is. `startedMs`: what was written before that (`performance.now()`) is in it. */
  readonly onList: (items: readonly Kept[], startedMs: number) => void;
  readonly onChange: (object: Kept) => void;
  /** It is gone, or is no longer one of those that the query names. */
  readonly onGone: (object: Kept) => void;
  readonly onProblem: (text: string) => void;
  /** Other than the usual ones, for tests. */
  readonly times?: { readonly answerMs: number; readonly quietMs: number };
};

export type ListWatch = {
  /** Resolves when the first list is in. */
  readonly ready: Promise<void>;
  /** Lists again; resolves when a list that began after this call is in. */
  relist(): Promise<void>;
  close(): Promise<void>;
};

const PAGE = 500;
const PAUSE_MS = { first: 250, most: 15_000 };
/** A connection that ends sooner counts as a failure, whatever it said. */
const SHORT_MS = 1000;
/** `quietMs` is shorter than the library's own 30 s. */
const TIMES = { answerMs: 10_000, quietMs: 25_000 };
/** Quiet connections in a row after which is asked for everything: nothing happens, or nothing gets through. */
const MOST_QUIET = 4;

export function listAndWatch<T extends object, Kept>(config: KubeConfig, what: WatchedObjects<T, Kept>): ListWatch {
  const watch = new Watch(config);
  const { answerMs, quietMs } = what.times ?? TIMES;
  const waiting: (() => void)[] = [];
  const { promise: ready, resolve: listed } = Promise.withResolvers<void>();
  const closing = new AbortController();
  let version = '';
  let quiet = 0;
  let running: AbortController | undefined;
  let wake: (() => void) | undefined;

  const beforeClosing = async <R>(asked: Promise<R>): Promise<R> => {
    const { promise: closed, reject } = Promise.withResolvers<never>();
    const stop = () => reject(new Error('closed'));
    closing.signal.addEventListener('abort', stop);
    try {
      return await Promise.race([asked, closed]);
    } finally {
      closing.signal.removeEventListener('abort', stop);
    }
  };

  const listAll = async (): Promise<void> => {
    const served = waiting.splice(0);
    const startedMs = performance.now();
    try {
      const items: Kept[] = [];
      let from: string | undefined;
      do {
        const page: Listed<T> = await beforeClosing(what.list(PAGE, from));
        for (const item of page.items) items.push(what.keep(item));
        from = page.metadata?._continue || undefined;
        version = page.metadata?.resourceVersion ?? '';
      } while (from !== undefined);
      if (!closing.signal.aborted) what.onList(items, startedMs);
    } catch (error) {
      waiting.push(...served);
      version = '';
      throw error;
    }
    quiet = 0;
    listed();
    for (const resolve of served) resolve();
  };

  /** Until the connection ends, from whichever side. */
  const watchOnce = async (): Promise<void> => {
    const { promise: ended, resolve, reject } = Promise.withResolvers<void>();
    const connection = new AbortController();
    running = connection;
    connection.signal.addEventListener('abort', () => resolve());
    let over = false;
    let timer: NodeJS.Timeout | undefined;
    const endsAfter = (ms: number, end: () => void) => {
      clearTimeout(timer);
      timer = setTimeout(end, ms);
    };
    const fallsQuiet = () => {
      quiet += 1;
      if (quiet >= MOST_QUIET) version = '';
      resolve();
    };
    // The API server begins its answer at once, whether there is anything to tell or not.
    endsAfter(answerMs, () => {
      version = '';
      reject(new Error(`no answer to the watch within ${answerMs / 1000} s`));
    });
    const heard = (type: string, object: unknown) => {
      if (over) return;
      quiet = 0;
      endsAfter(quietMs, fallsQuiet);
      // The library swallows what is thrown here.
      try {
        if (type === 'ERROR') {
          version = '';
          resolve();
          return;
        }
        if (type === 'DELETED') what.onGone(what.keep(object as T));
        else if (type !== 'BOOKMARK') what.onChange(what.keep(object as T));
        const next = field(field(object, 'metadata'), 'resourceVersion');
        if (typeof next === 'string') version = next;
      } catch (error) {
        reject(error);
      }
    };
    const query = { ...what.query, resourceVersion: version, allowWatchBookmarks: 'true' };
    watch
      .watch(what.path, query, heard, (error) => {
        if (over) return;
        const { statusCode, name } = (error ?? {}) as { statusCode?: number; name?: string };
        if (statusCode === 410) version = '';
        if (!error || statusCode === 410 || name === 'AbortError') resolve();
        else reject(error);
      })
      .then((open) => {
        connection.signal.addEventListener('abort', () => open.abort());
        if (over) open.abort();
        else endsAfter(quietMs, fallsQuiet);
      }, reject);
    try {
      await ended;
    } finally {
      over = true;
      clearTimeout(timer);
      connection.abort();
    }
  };

  const run = async (): Promise<void> => {
    let failures = 0;
    while (!closing.signal.aborted) {
      const startedMs = performance.now();
      let failed = false;
      try {
        if (version === '' || waiting.length > 0) await listAll();
        if (!closing.signal.aborted && waiting.length === 0) await watchOnce();
      } catch (error) {
        failed = true;
        if (!closing.signal.aborted) what.onProblem(describeApiError(error));
      }
      if (waiting.length > 0 && !failed) continue;
      failures = failed || performance.now() - startedMs < SHORT_MS ? failures + 1 : 0;
      if (failures === 0 || closing.signal.aborted) continue;
      const { promise: woken, resolve } = Promise.withResolvers<void>();
      const timer = setTimeout(resolve, Math.min(PAUSE_MS.first * 2 ** (failures - 1), PAUSE_MS.most));
      wake = resolve;
      await woken;
      clearTimeout(timer);
    }
  };
  const ran = run();
  return {
    ready,
    async relist() {
      const { promise, resolve } = Promise.withResolvers<void>();
      waiting.push(resolve);
      running?.abort();
      wake?.();
      await promise;
    },
    async close() {
      closing.abort();
      running?.abort();
      wake?.();
      await ran;
    },
  };
}
