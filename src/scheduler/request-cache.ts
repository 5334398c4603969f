// The requests of pods from filter until bind, so that bind need not read the pod. Bounded in size and time; what is no
// longer here is read again.

export type RequestCache = {
  put(podUid: string, text: string): void;
  get(podUid: string): string | undefined;
  forget(podUid: string): void;
  /** Characters of all texts. */
  readonly length: number;
};

export type Bounds = { readonly mostLength: number; readonly mostMs: number };

/** A text has a few hundred characters, in the worst case some hundred thousand. */
const BOUNDS: Bounds = { mostLength: 8 * 2 ** 20, mostMs: 300_000 };

export function createRequestCache(now: () => number, { mostLength, mostMs }: Bounds = BOUNDS): RequestCache {
  /** Oldest first. */
  const texts = new Map<string, { readonly text: string; readonly atMs: number }>();
  let length = 0;
  const forget = (podUid: string): void => {
    length -= texts.get(podUid)?.text.length ?? 0;
    texts.delete(podUid);
  };
  return {
    put(podUid, text) {
      forget(podUid);
      texts.set(podUid, { text, atMs: now() });
      length += text.length;
      for (const [uid, { atMs }] of texts) {
        if (length <= mostLength && now() - atMs <= mostMs) return;
        forget(uid);
      }
    },
    get: (podUid) => texts.get(podUid)?.text,
    forget,
    get length() {
      return length;
    },
  };
}
