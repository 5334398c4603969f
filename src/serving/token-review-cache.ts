// Caches token reviews of the API server: a scrape every few seconds must not cause as many reviews, and a flood of
// wrong tokens must cause neither as many calls nor unbounded memory.
import { createHash } from 'node:crypto';
import type { ReviewCall, Reviewed } from '../kube/token-review.ts';

const ALLOWED_MS = 60_000;
const REFUSED_MS = 10_000;
const MOST_ENTRIES = 256;
/** Reviews in flight of tokens that were not allowed before. */
const MOST_UNKNOWN = 8;

export type TokenReviewCache = {
  /** Rejects where the API server does not answer, or too many unknown tokens come at once. */
  of(token: string, path: string): Promise<Reviewed>;
};

type Entry = { readonly result: Reviewed; readonly untilMs: number };

export function createTokenReviewCache(call: ReviewCall, now: () => number): TokenReviewCache {
  // Two maps, so that wrong tokens never push out a right one. Tokens themselves are not kept, only their digests.
  const allowed = new Map<string, Entry>();
  const refused = new Map<string, Entry>();
  const inFlight = new Map<string, Promise<Reviewed>>();
  let unknownInFlight = 0;

  const store = (key: string, result: Reviewed) => {
    allowed.delete(key);
    refused.delete(key);
    const [entries, ms] = result === 'allowed' ? [allowed, ALLOWED_MS] : [refused, REFUSED_MS];
    entries.set(key, { result, untilMs: now() + ms });
    const [oldest] = entries.keys();
    if (entries.size > MOST_ENTRIES && oldest !== undefined) entries.delete(oldest);
  };
  const review = async (key: string, token: string, path: string): Promise<Reviewed> => {
    // A token whose entry has expired is still known: a flood must not keep Prometheus out.
    const isUnknown = !allowed.has(key);
    if (isUnknown && unknownInFlight >= MOST_UNKNOWN) throw new Error('too many tokens are being reviewed at once');
    if (isUnknown) unknownInFlight += 1;
    try {
      const result = await call(token, path);
      store(key, result);
      return result;
    } finally {
      if (isUnknown) unknownInFlight -= 1;
    }
  };
  return {
    async of(token, path) {
      const key = createHash('sha256').update(`${path}\n${token}`).digest('base64');
      const entry = allowed.get(key) ?? refused.get(key);
      if (entry && now() < entry.untilMs) return entry.result;
      const running = inFlight.get(key);
      if (running) return running;
      const started = review(key, token, path);
      inFlight.set(key, started);
      try {
        return await started;
      } finally {
        inFlight.delete(key);
      }
    },
  };
}
