// What the API server said about tokens, remembered for a while: a scrape every few seconds must not be as many reviews, and
// a flood of wrong tokens neither as many calls nor memory without end. Owns these bounds; the calls are kube/token-review.ts'.
import { createHash } from 'node:crypto';
import type { ReviewCall, Reviewed } from '../kube/token-review.ts';

const ALLOWED_MS = 60_000;
const REFUSED_MS = 10_000;
const MOST_KEPT = 256;
/** Reviews under way of tokens that were not let in before. */
const MOST_STRANGERS = 8;

export type TokenReviewCache = {
  /** Rejects where nobody can say: the API server does not answer, or too many ask at once. */
  of(token: string, path: string): Promise<Reviewed>;
};

type Kept = { readonly said: Reviewed; readonly untilMs: number };

export function createTokenReviewCache(call: ReviewCall, now: () => number): TokenReviewCache {
  // Apart, so that no number of wrong tokens pushes out a right one. Tokens themselves are not kept.
  const allowed = new Map<string, Kept>();
  const refused = new Map<string, Kept>();
  const underWay = new Map<string, Promise<Reviewed>>();
  let strangers = 0;

  const keep = (key: string, said: Reviewed) => {
    allowed.delete(key);
    refused.delete(key);
    const [into, ms] = said === 'allowed' ? [allowed, ALLOWED_MS] : [refused, REFUSED_MS];
    into.set(key, { said, untilMs: now() + ms });
    const [oldest] = into.keys();
    if (into.size > MOST_KEPT && oldest !== undefined) into.delete(oldest);
  };
  const review = async (key: string, token: string, path: string): Promise<Reviewed> => {
    // One whose time is over is still no stranger: a flood must not keep Prometheus out.
    const isStranger = !allowed.has(key);
    if (isStranger && strangers >= MOST_STRANGERS) throw new Error('too many tokens are being reviewed at once');
    if (isStranger) strangers += 1;
    try {
      const said = await call(token, path);
      keep(key, said);
      return said;
    } finally {
      if (isStranger) strangers -= 1;
    }
  };
  return {
    async of(token, path) {
      const key = createHash('sha256').update(`${path}\n${token}`).digest('base64');
      const kept = allowed.get(key) ?? refused.get(key);
      if (kept && now() < kept.untilMs) return kept.said;
      const running = underWay.get(key);
      if (running) return running;
      const begun = review(key, token, path);
      underWay.set(key, begun);
      try {
        return await begun;
      } finally {
        underWay.delete(key);
      }
    },
  };
}
