// Pauses between retries: each twice as long as the one before, up to a bound, and shorter by up to a half at random,
// so that many callers that failed at once do not come back at once.

export type Backoff = {
  /** How long to wait before the next try; at least so long as the server asked for. */
  nextMs(leastMs?: number): number;
  /** After a success. */
  reset(): void;
};

type BackoffOptions = {
  readonly firstMs: number;
  readonly mostMs: number;
  /** From 0 to 1. */
  readonly random?: () => number;
};

export function createBackoff({ firstMs, mostMs, random = Math.random }: BackoffOptions): Backoff {
  let waitMs = firstMs;
  return {
    nextMs(leastMs = 0) {
      const now = waitMs;
      waitMs = Math.min(2 * waitMs, mostMs);
      return leastMs + now * (1 - random() / 2);
    },
    reset() {
      waitMs = firstMs;
    },
  };
}
