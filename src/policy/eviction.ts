// Is the eviction of a pod due because its containers were stopped too often? Pure. A container that restarts after
// each stop and exceeds its grant again costs its neighbors more than its absence would.

export type EvictionPolicy = {
  /** Stops of a pod's containers within the window after which it is evicted; 0: never. */
  readonly evictAfterStops: number;
  readonly evictWindowSeconds: number;
};

export const DEFAULT_EVICTION: EvictionPolicy = { evictAfterStops: 0, evictWindowSeconds: 600 };

/** Those of a pod's stops that still count at `nowMs`. */
export const stopsWithin = (stopsMs: readonly number[], nowMs: number, policy: EvictionPolicy): readonly number[] =>
  stopsMs.filter((atMs) => nowMs - atMs < policy.evictWindowSeconds * 1000);

export function isEvictionDue(stopsMs: readonly number[], nowMs: number, policy: EvictionPolicy): boolean {
  return policy.evictAfterStops > 0 && stopsWithin(stopsMs, nowMs, policy).length >= policy.evictAfterStops;
}
