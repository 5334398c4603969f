// A quota per key: so many at once, then one in a while. With the figures of the spam filter in client-go's
// EventCorrelator (k8s.io/client-go/tools/record/events_cache.go), for what one container can cause without end.

type Quota = {
  /** Whether one more is within the key's quota, which then counts it. */
  take(key: string, nowMs: number): boolean;
};

type QuotaLimits = { readonly burst: number; readonly everyMs: number; readonly mostKeys: number };

export const EVENT_QUOTA: QuotaLimits = { burst: 25, everyMs: 300_000, mostKeys: 4096 };

/** The least recently used key is forgotten first, so that keys that tenants make up use no memory without end. */
export function createQuota({ burst, everyMs, mostKeys }: QuotaLimits = EVENT_QUOTA): Quota {
  const left = new Map<string, { readonly count: number; readonly atMs: number }>();
  return {
    take(key, nowMs) {
      const before = left.get(key) ?? { count: burst, atMs: nowMs };
      const count = Math.min(burst, before.count + Math.max(0, nowMs - before.atMs) / everyMs);
      remember(left, key, { count: count >= 1 ? count - 1 : count, atMs: nowMs }, mostKeys);
      return count >= 1;
    },
  };
}

/** Makes the entry the most recently used one, and forgets the least recently used one beyond `most`. */
export function remember<K, V>(entries: Map<K, V>, key: K, value: V, most: number): void {
  entries.delete(key);
  entries.set(key, value);
  for (const oldest of entries.keys()) {
    if (entries.size <= most) return;
    entries.delete(oldest);
  }
}
