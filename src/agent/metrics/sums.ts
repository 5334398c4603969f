// Counters of containers as a page has them: whoever has the same labels, alive or ended, is one series, and the base of that name
// with them. Pure.
import type { BaseTotals } from '../bases.ts';
import type { View } from '../view.ts';

/** Of one container on a card, or of all with the same labels. */
export type Counts = Omit<BaseTotals, 'mode' | 'overLimitSeconds' | 'denied' | 'unknownEntryPoints'> & {
  readonly mode: string;
  /** Of grants alone. */
  readonly overLimitSeconds?: number;
  readonly denied?: number;
  readonly computeTold: boolean;
  /** Of the last sample that had it; undefined: it is there. */
  readonly seenMs: number | undefined;
};
export type Sum = Counts & { readonly lives: boolean };

const keyOf = (of: Pick<Counts, 'namespace' | 'pod' | 'container' | 'mode' | 'gpuUuid' | 'gpuIndex'>): string =>
  JSON.stringify([of.namespace, of.pod, of.container, of.mode, of.gpuUuid, of.gpuIndex]);

const plus = (a: number | undefined, b: number | undefined): number | undefined =>
  a === undefined && b === undefined ? undefined : (a ?? 0) + (b ?? 0);

/** Whether compute is told is for those to say that live; where none does, for any of the others. */
function sumOf(a: Sum, b: Sum): Sum {
  const alike = a.lives === b.lives;
  const overLimitSeconds = plus(a.overLimitSeconds, b.overLimitSeconds);
  const denied = plus(a.denied, b.denied);
  return {
    ...a,
    smSeconds: a.smSeconds + b.smSeconds,
    memoryBusySeconds: a.memoryBusySeconds + b.memoryBusySeconds,
    encoderSeconds: a.encoderSeconds + b.encoderSeconds,
    decoderSeconds: a.decoderSeconds + b.decoderSeconds,
    ...(overLimitSeconds !== undefined && { overLimitSeconds }),
    ...(denied !== undefined && { denied }),
    computeTold: alike ? a.computeTold || b.computeTold : a.lives ? a.computeTold : b.computeTold,
    seenMs: Math.max(a.seenMs ?? 0, b.seenMs ?? 0),
    lives: a.lives || b.lives,
  };
}

/** Those that live first, then those that ended last: where a page has no room for all, the oldest are left out. */
export function sumsOf(counts: readonly Counts[], { atMs, bases = [] }: Pick<View, 'atMs' | 'bases'>): readonly Sum[] {
  const sums = new Map<string, Sum>();
  for (const one of counts) {
    const sum = { ...one, lives: one.seenMs === undefined || one.seenMs >= atMs };
    const key = keyOf(one);
    const last = sums.get(key);
    sums.set(key, last ? sumOf(last, sum) : sum);
  }
  for (const { overLimitSeconds, denied, ...base } of bases) {
    const key = keyOf(base);
    const sum = sums.get(key);
    if (!sum) continue;
    const ofGrant = sum.denied === undefined ? {} : { overLimitSeconds, denied };
    sums.set(key, sumOf(sum, { ...base, ...ofGrant, computeTold: false, seenMs: undefined, lives: false }));
  }
  return [...sums.values()].toSorted((a, b) => Number(b.lives) - Number(a.lives) || (b.seenMs ?? 0) - (a.seenMs ?? 0));
}
