// Pauses between retries: each twice as long as the one before, up to a bound.

export type Backoff = {
  /** How long to wait before the next try. */
  nextMs(): number;
  /** After a success. */
  reset(): void;
};

export function createBackoff({ firstMs, mostMs }: { readonly firstMs: number; readonly mostMs: number }): Backoff {
  let waitMs = firstMs;
  return {
    nextMs() {
      const now = waitMs;
      waitMs = Math.min(2 * waitMs, mostMs);
      return now;
    },
    reset() {
      waitMs = firstMs;
    },
  };
}
