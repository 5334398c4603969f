// Lists objects of the API server and watches them from there on, for ever: reads pages, renews watches, lists again
// when the watch cannot continue. Keeps no object, so that a caller with many of them keeps only what it needs.
import { setTimeout as delay } from 'node:timers/promises';
import { type KubeConfig, Watch } from '@kubernetes/client-node';
import { createBackoff } from '../common/backoff.ts';
import { field } from '../common/json.ts';
import { describeApiError } from './api-error.ts';
import { withKeptConnections } from './connections.ts';

/** One page of a list, as the client library gives it. */
export type Listed<T> = {
  readonly items: readonly T[];
  readonly metadata?: { readonly resourceVersion?: string; readonly _continue?: string };
};

export type WatchedObjects<T, Kept> = {
  /** Path and query of the watch, e.g. `/api/v1/pods`. */
  readonly path: string;
  readonly query?: Readonly<Record<string, string>>;
  /** One page. Must not pass a resource version: the answer would not have to include the latest write. */
  readonly list: (limit: number, from: string | undefined) => Promise<Listed<T>>;
  /** What the caller needs of one object. Called as each page arrives, so that no list is in memory as whole
   * objects. */
  readonly keep: (object: T) => Kept;
  /** All objects. The list includes what was written before `startedMs` (`performance.now()`). */
  readonly onList: (items: readonly Kept[], startedMs: number) => void;
  readonly onChange: (object: Kept) => void;
  /** It was deleted, or the query no longer selects it. */
  readonly onGone: (object: Kept) => void;
  readonly onProblem: (text: string) => void;
  /** Between tries that fail; by default 250 ms to 15 s. */
  readonly pauseMs?: Parameters<typeof createBackoff>[0];
  /** For tests. */
  readonly times?: WatchTimes;
};

/** How long a watch may take to begin its answer, and how long it may be without an event. */
type WatchTimes = { readonly answerMs: number; readonly quietMs: number };

export type ListWatch = {
  /** Resolves when the first list is complete. */
  readonly ready: Promise<void>;
  /** Lists again; resolves when a list that began after this call is complete. */
  relist(): Promise<void>;
  close(): Promise<void>;
};

const PAGE = 500;
const PAUSE_MS = { firstMs: 250, mostMs: 15_000 };
/** A connection that ends sooner counts as a failure. */
const SHORT_MS = 1000;
/**
 * An API server sends a bookmark about once a minute, so a watch without one for this long is not served. A peer that
 * is gone is noticed sooner, by TCP (connections.ts).
 */
const TIMES: WatchTimes = { answerMs: 10_000, quietMs: 150_000 };
/** After so many quiet connections in a row everything is listed: nothing changes, or events get lost. */
const MOST_QUIET = 4;

/** Where the watch continues; an empty version: everything is listed first. */
type Position = { version: string; quietConnections: number };

export function listAndWatch<T extends object, Kept>(config: KubeConfig, objects: WatchedObjects<T, Kept>): ListWatch {
  // The library's own limit on silence must not end a watch before ours.
  const requestTimeoutMs = 2 * Math.max(TIMES.quietMs, objects.times?.quietMs ?? 0);
  const watch = Object.assign(new Watch(withKeptConnections(config)), { requestTimeoutMs });
  const waiting: (() => void)[] = [];
  const { promise: ready, resolve: firstListed } = Promise.withResolvers<void>();
  const position: Position = { version: '', quietConnections: 0 };
  const backoff = createBackoff(objects.pauseMs ?? PAUSE_MS);
  const closing = new AbortController();
  /** Ends the watch, or the pause, that is going on. */
  let interrupt = new AbortController();

  const listAll = async (): Promise<void> => {
    const served = waiting.splice(0);
    const startedMs = performance.now();
    try {
      const items = await readPages(objects, position, closing.signal);
      if (!closing.signal.aborted) objects.onList(items, startedMs);
    } catch (error) {
      waiting.push(...served);
      position.version = '';
      throw error;
    }
    position.quietConnections = 0;
    firstListed();
    for (const resolve of served) resolve();
  };

  const run = async (): Promise<void> => {
    while (!closing.signal.aborted) {
      interrupt = new AbortController();
      const startedMs = performance.now();
      let failed = false;
      try {
        if (position.version === '' || waiting.length > 0) await listAll();
        if (!closing.signal.aborted && waiting.length === 0)
          await watchOnce(watch, objects, position, interrupt.signal);
      } catch (error) {
        failed = true;
        if (!closing.signal.aborted) objects.onProblem(describeApiError(error));
      }
      if (closing.signal.aborted || (waiting.length > 0 && !failed)) continue;
      if (failed || performance.now() - startedMs < SHORT_MS)
        await delay(backoff.nextMs(), undefined, { signal: interrupt.signal }).catch(() => undefined);
      else backoff.reset();
    }
  };

  const running = run();
  return {
    ready,
    async relist() {
      const { promise, resolve } = Promise.withResolvers<void>();
      waiting.push(resolve);
      interrupt.abort();
      await promise;
    },
    async close() {
      closing.abort();
      interrupt.abort();
      await running;
    },
  };
}

/** Reads a whole list and sets the version from which to watch. Rejects when `closed` is aborted. */
async function readPages<T, Kept>(
  { list, keep }: WatchedObjects<T, Kept>,
  position: Position,
  closed: AbortSignal,
): Promise<readonly Kept[]> {
  const items: Kept[] = [];
  let from: string | undefined;
  do {
    const page = await unlessAborted(list(PAGE, from), closed);
    for (const item of page.items) items.push(keep(item));
    from = page.metadata?._continue || undefined;
    position.version = page.metadata?.resourceVersion ?? '';
  } while (from !== undefined);
  return items;
}

async function unlessAborted<R>(promise: Promise<R>, signal: AbortSignal): Promise<R> {
  const { promise: aborted, reject } = Promise.withResolvers<never>();
  const stop = () => reject(new Error('closed'));
  signal.addEventListener('abort', stop);
  try {
    return await Promise.race([promise, aborted]);
  } finally {
    signal.removeEventListener('abort', stop);
  }
}

/** Watches until the connection ends, from either side, or `interrupted` is aborted. */
async function watchOnce<T, Kept>(
  watch: Watch,
  objects: WatchedObjects<T, Kept>,
  position: Position,
  interrupted: AbortSignal,
): Promise<void> {
  const { answerMs, quietMs } = objects.times ?? TIMES;
  const { promise: ended, resolve, reject } = Promise.withResolvers<void>();
  const connection = new AbortController();
  interrupted.addEventListener('abort', () => resolve());
  if (interrupted.aborted) resolve();
  let over = false;
  let timer: NodeJS.Timeout | undefined;
  const endAfter = (ms: number, end: () => void) => {
    clearTimeout(timer);
    timer = setTimeout(end, ms);
  };
  const endQuiet = () => {
    position.quietConnections += 1;
    if (position.quietConnections >= MOST_QUIET) position.version = '';
    resolve();
  };
  // The API server begins its answer at once, whether there is an event or not.
  endAfter(answerMs, () => {
    position.version = '';
    reject(new Error(`no answer to the watch within ${answerMs / 1000} s`));
  });
  const onEvent = (type: string, object: unknown) => {
    if (over) return;
    position.quietConnections = 0;
    endAfter(quietMs, endQuiet);
    // The library swallows exceptions of this callback.
    try {
      if (applyEvent(objects, position, type, object as T) === 'ended') resolve();
    } catch (error) {
      reject(error);
    }
  };
  const onEnd = (error: unknown) => {
    if (over) return;
    const { statusCode, name } = (error ?? {}) as { statusCode?: number; name?: string };
    if (statusCode === 410) position.version = '';
    if (!error || statusCode === 410 || name === 'AbortError') resolve();
    else reject(error);
  };
  const query = { ...objects.query, resourceVersion: position.version, allowWatchBookmarks: 'true' };
  watch.watch(objects.path, query, onEvent, onEnd).then((open) => {
    connection.signal.addEventListener('abort', () => open.abort());
    if (over) open.abort();
    else endAfter(quietMs, endQuiet);
  }, reject);
  try {
    await ended;
  } finally {
    over = true;
    clearTimeout(timer);
    connection.abort();
  }
}

/** `ended`: the API server reports an error, and everything must be listed again. */
function applyEvent<T, Kept>(
  { keep, onGone, onChange }: WatchedObjects<T, Kept>,
  position: Position,
  type: string,
  object: T,
): 'ended' | 'applied' {
  if (type === 'ERROR') {
    position.version = '';
    return 'ended';
  }
  if (type === 'DELETED') onGone(keep(object));
  else if (type !== 'BOOKMARK') onChange(keep(object));
  const version = field(field(object, 'metadata'), 'resourceVersion');
  if (typeof version === 'string') position.version = version;
  return 'applied';
}
