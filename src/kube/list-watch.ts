// Lists objects of the API server and watches them from there on, for ever: reads pages, renews watches, lists again
// when the watch cannot continue. Keeps no object, so that a caller with many of them keeps only what it needs.
import { setTimeout as delay } from 'node:timers/promises';
import { createBackoff } from '../common/backoff.ts';
import { field, textAt } from '../common/json.ts';
import { describeApiError, retryAfterMsOf, statusOf } from './api-error.ts';
import { ANSWER_MS, getStream, type Query } from './call.ts';
import type { ApiConfig } from './config.ts';
import { createItemReader, readJsonLines } from './json-stream.ts';

type WatchedObjects<T, Kept, Listed = Kept> = {
  /** E.g. `/api/v1/pods`. */
  readonly path: string;
  /** Selectors. */
  readonly query?: Query;
  /** What the caller needs of one object. Called as each object arrives, so that no list is in memory as whole
   * objects. Times are texts in them. */
  readonly keep: (object: T) => Kept;
  /** Of a list the caller needs only objects whose JSON has this text, such as the key of an annotation. */
  readonly mentions?: string;
  /** Of a long list: takes in each object as it arrives and returns what `onList` needs of it. The list may fail after
   * that, and begin anew. */
  readonly onListed?: (object: Kept) => Listed;
  /** All objects. The list includes what was written before `startedMs` (`performance.now()`). */
  readonly onList: (items: readonly Listed[], startedMs: number) => void;
  readonly onChange: (object: Kept) => void;
  /** It was deleted, or the query no longer selects it. */
  readonly onGone: (object: Kept) => void;
  readonly onProblem: (text: string) => void;
  /** Between tries that fail; by default 250 ms to 15 s. */
  readonly pauseMs?: Parameters<typeof createBackoff>[0];
  /** What failed, or ended early, is tried again later by up to this, at random: for callers of which each node has
   * one, all of which fail at once when the API server restarts. */
  readonly spreadMs?: number;
  /** For tests. */
  readonly times?: Partial<WatchTimes>;
};

/** How long one page of a list may take, a watch may take to begin its answer, and be without an event. */
type WatchTimes = { readonly pageMs: number; readonly answerMs: number; readonly quietMs: number };

export type ListWatch = {
  /** Resolves when the first list is complete. */
  readonly ready: Promise<void>;
  /** The last list or watch was answered. */
  connected(): boolean;
  /** Lists again; resolves when a list that began after this call is complete. */
  relist(): Promise<void>;
  close(): Promise<void>;
};

const PAGE = 500;
const PAUSE_MS = { firstMs: 250, mostMs: 15_000 };
/** A connection that ends sooner counts as a failure. */
const SHORT_MS = 1000;
/** An API server ends a watch after 30 to 60 minutes (its --min-request-timeout), at random, and all when it stops. */
const LEAST_WATCH_MS = 1_800_000;
/**
 * An API server sends a bookmark about once a minute, so a watch without one for this long is not served. A peer that
 * is gone is noticed sooner, by TCP (connections.ts).
 */
const TIMES: WatchTimes = { pageMs: 30_000, answerMs: 2 * ANSWER_MS, quietMs: 150_000 };
/** After so many quiet connections in a row everything is listed: nothing changes, or events get lost. */
const MOST_QUIET = 4;

/** Where the watch continues; an empty version: everything is listed first. */
type Position = { version: string; quietConnections: number; isAnswered: boolean };

export function listAndWatch<T, Kept, Listed = Kept>(
  config: ApiConfig,
  objects: WatchedObjects<T, Kept, Listed>,
): ListWatch {
  const waiting: (() => void)[] = [];
  const { promise: ready, resolve: firstListed } = Promise.withResolvers<void>();
  const position: Position = { version: '', quietConnections: 0, isAnswered: false };
  const backoff = createBackoff(objects.pauseMs ?? PAUSE_MS);
  const closing = new AbortController();
  /** Ends the watch, or the pause, that is going on. */
  let interrupt = new AbortController();

  const listAll = async (): Promise<void> => {
    const served = waiting.splice(0);
    const startedMs = performance.now();
    try {
      const items = await readPages(config, objects, position, closing.signal);
      if (!closing.signal.aborted) objects.onList(items, startedMs);
    } catch (error) {
      waiting.push(...served);
      position.version = '';
      throw error;
    }
    position.quietConnections = 0;
    position.isAnswered = true;
    firstListed();
    for (const resolve of served) resolve();
  };

  const run = async (): Promise<void> => {
    while (!closing.signal.aborted) {
      interrupt = new AbortController();
      const startedMs = performance.now();
      let failed = false;
      let retryAfterMs = 0;
      try {
        if (position.version === '' || waiting.length > 0) await listAll();
        if (!closing.signal.aborted && waiting.length === 0)
          await watchOnce(config, objects, position, interrupt.signal);
      } catch (error) {
        failed = true;
        // A watch that was served before it broke: what it missed is asked for at once.
        if (position.isAnswered && performance.now() - startedMs >= SHORT_MS) backoff.reset();
        position.isAnswered = false;
        retryAfterMs = retryAfterMsOf(error);
        if (!closing.signal.aborted) objects.onProblem(describeApiError(error));
      }
      if (closing.signal.aborted || (waiting.length > 0 && !failed)) continue;
      const lastedMs = performance.now() - startedMs;
      // What cannot continue is listed soon: its watch has waited already.
      const isCut = failed || (lastedMs < LEAST_WATCH_MS && position.version !== '');
      let pauseMs = isCut ? Math.random() * (objects.spreadMs ?? 0) : 0;
      if (failed || lastedMs < SHORT_MS) pauseMs += backoff.nextMs(retryAfterMs);
      else backoff.reset();
      if (pauseMs > 0) await delay(pauseMs, undefined, { signal: interrupt.signal }).catch(() => undefined);
    }
  };

  const running = run();
  return {
    ready,
    connected: () => position.isAnswered,
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

/**
 * Reads a whole list and sets the version from which to watch. Passes no resource version: the answer would not have
 * to include the latest write. Rejects when `closed` is aborted.
 */
async function readPages<T, Kept, Listed>(
  config: ApiConfig,
  { path, query, keep, mentions, onListed, times }: WatchedObjects<T, Kept, Listed>,
  position: Position,
  closed: AbortSignal,
): Promise<readonly Listed[]> {
  const { pageMs } = { ...TIMES, ...times };
  const items: Listed[] = [];
  const take = onListed ?? ((object: Kept) => object as unknown as Listed);
  let from: string | undefined;
  do {
    const part = { ...query, limit: String(PAGE), ...(from !== undefined && { continue: from }) };
    const reader = createItemReader((object) => items.push(take(keep(object as T))), mentions);
    const page = await withDeadline(pageMs, closed, async (signal) => {
      for await (const piece of await getStream(config, path, part, signal)) reader.push(piece);
      return field(reader.end(), 'metadata');
    });
    from = textAt(page, 'continue') || undefined;
    position.version = textAt(page, 'resourceVersion') ?? '';
  } while (from !== undefined);
  return items;
}

async function withDeadline<R>(ms: number, closed: AbortSignal, work: (signal: AbortSignal) => Promise<R>): Promise<R> {
  const late = new AbortController();
  const timer = setTimeout(() => late.abort(new Error(`no answer within ${ms / 1000} s`)), ms);
  try {
    return await work(AbortSignal.any([late.signal, closed]));
  } finally {
    clearTimeout(timer);
  }
}

/** Watches until the connection ends, from either side, or `interrupted` is aborted. */
async function watchOnce<T, Kept, Listed>(
  config: ApiConfig,
  objects: WatchedObjects<T, Kept, Listed>,
  position: Position,
  interrupted: AbortSignal,
): Promise<void> {
  const { answerMs, quietMs } = { ...TIMES, ...objects.times };
  const connection = new AbortController();
  let late: 'unanswered' | 'quiet' | undefined;
  let timer: NodeJS.Timeout | undefined;
  const endAfter = (ms: number, why: typeof late) => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      late = why;
      connection.abort();
    }, ms);
  };
  const query = { ...objects.query, watch: 'true', resourceVersion: position.version, allowWatchBookmarks: 'true' };
  try {
    // The API server begins its answer at once, whether there is an event or not.
    endAfter(answerMs, 'unanswered');
    const signal = AbortSignal.any([connection.signal, interrupted]);
    const pieces = await getStream(config, objects.path, query, signal);
    position.isAnswered = true;
    endAfter(quietMs, 'quiet');
    for await (const event of readJsonLines(pieces)) {
      position.quietConnections = 0;
      endAfter(quietMs, 'quiet');
      if (applyEvent(objects, position, event) === 'ended') return;
    }
  } catch (error) {
    if (interrupted.aborted) return;
    if (late === 'unanswered') {
      position.version = '';
      throw new Error(`no answer to the watch within ${answerMs / 1000} s`);
    }
    if (late === 'quiet') {
      position.isAnswered = false;
      position.quietConnections += 1;
      if (position.quietConnections >= MOST_QUIET) position.version = '';
      return;
    }
    if (statusOf(error) !== 410) throw error;
    position.version = '';
  } finally {
    clearTimeout(timer);
    connection.abort();
  }
}

/** `ended`: the API server reports an error, and everything must be listed again. */
function applyEvent<T, Kept, Listed>(
  { keep, onGone, onChange }: WatchedObjects<T, Kept, Listed>,
  position: Position,
  event: unknown,
): 'ended' | 'applied' {
  const [type, object] = [textAt(event, 'type'), field(event, 'object')];
  if (type === 'ERROR') {
    position.version = '';
    return 'ended';
  }
  if (type === 'DELETED') onGone(keep(object as T));
  else if (type !== 'BOOKMARK') onChange(keep(object as T));
  position.version = textAt(field(object, 'metadata'), 'resourceVersion') ?? position.version;
  return 'applied';
}
