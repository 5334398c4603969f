// What namespaces were granted, used and left idle, in GPU-hours: one hour of one whole GPU's memory, or of its
// compute. Pure: the sums of a Prometheus in, rows out.

export type Amounts = { readonly granted: number; readonly used: number; readonly wasted: number };

export type Kind = 'memory' | 'compute';
export const KINDS: readonly Kind[] = ['memory', 'compute'];
export const AMOUNTS = ['granted', 'used', 'wasted'] as const satisfies readonly (keyof Amounts)[];

type Share = { readonly namespace: string } & Readonly<Record<Kind, Amounts>>;

export type Showback = {
  readonly shares: readonly Share[];
  readonly total: Readonly<Record<Kind, Amounts>>;
  /** What all GPUs together had. */
  readonly gpuHours: number;
};

/** Hours by namespace. */
type Hours = ReadonlyMap<string, number>;

/** The most expensive first: by what was granted of memory, for that is what keeps others out. */
export function showbackOf(hours: (kind: Kind, amount: keyof Amounts) => Hours, gpuHours: number): Showback {
  const names = new Set(KINDS.flatMap((kind) => AMOUNTS.flatMap((amount) => [...hours(kind, amount).keys()])));
  const amounts = (of: (one: Hours) => number, kind: Kind): Amounts => ({
    granted: of(hours(kind, 'granted')),
    used: of(hours(kind, 'used')),
    wasted: of(hours(kind, 'wasted')),
  });
  const both = (of: (one: Hours) => number) => ({ memory: amounts(of, 'memory'), compute: amounts(of, 'compute') });
  const shares = [...names].map((namespace) => ({ namespace, ...both((one) => one.get(namespace) ?? 0) }));
  return {
    shares: shares.toSorted((a, b) => b.memory.granted - a.memory.granted || (a.namespace < b.namespace ? -1 : 1)),
    total: both((one) => [...one.values()].reduce((sum, value) => sum + value, 0)),
    gpuHours,
  };
}
