// The requests of pods from filter until bind, so that bind need not read the pod. Bounded in size and time; what is no
// longer here is read again.

import type { PodAspects } from './filter-and-score.ts';

export type CachedRequest = {
  readonly text: string;
  readonly aspects: PodAspects;
  /** Of the pod, by which it displaces others. */
  readonly priority: number;
  /** kube-scheduler got only the best of the nodes that fit. */
  readonly hasOnlyBest?: boolean;
};

export type RequestCache = {
  put(podUid: string, request: CachedRequest): void;
  get(podUid: string): CachedRequest | undefined;
  forget(podUid: string): void;
  /** Characters of all texts. */
  readonly length: number;
};

type Bounds = { readonly mostLength: number; readonly mostMs: number };

/**
 * A text has a few hundred characters, in the worst case some hundred thousand. kube-scheduler tries each pod at least
 * every 5 minutes and 30 seconds.
 */
const BOUNDS: Bounds = { mostLength: 8 * 2 ** 20, mostMs: 360_000 };

export function createRequestCache(now: () => number, { mostLength, mostMs }: Bounds = BOUNDS): RequestCache {
  /** Oldest first. */
  const requests = new Map<string, CachedRequest & { readonly atMs: number }>();
  let length = 0;
  const forget = (podUid: string): void => {
    length -= requests.get(podUid)?.text.length ?? 0;
    requests.delete(podUid);
  };
  return {
    put(podUid, request) {
      forget(podUid);
      requests.set(podUid, { ...request, atMs: now() });
      length += request.text.length;
      for (const [uid, { atMs }] of requests) {
        if (length <= mostLength && now() - atMs <= mostMs) return;
        forget(uid);
      }
    },
    get: (podUid) => requests.get(podUid),
    forget,
    get length() {
      return length;
    },
  };
}
