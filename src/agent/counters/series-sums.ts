// Counters of containers as a page has them: whoever has the same labels, alive or ended, is one series, and the base of that name
// with them. Pure.

import { USE_COUNTS, type UseCounts } from '../compute/usage-account.ts';
import type { Snapshot } from '../snapshot/snapshot.ts';
import { type BaseTotals, plus } from './retired-series.ts';

/** Of grants that the arbiter holds. */
type Uses = { readonly [K in keyof UseCounts]?: number | undefined };

/** Of one container on a GPU, or of all with the same labels. */
export type Counts = Uses &
  Omit<BaseTotals, 'mode' | 'overLimitSeconds' | 'denied' | 'unknownEntryPoints' | keyof UseCounts> & {
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

const NO_USES = Object.fromEntries(USE_COUNTS.map((name) => [name, undefined])) as Uses;
const usesOf = (a: Uses, b: Uses): Uses =>
  Object.fromEntries(USE_COUNTS.map((name) => [name, plus(a[name], b[name])])) as Uses;

/** Whether compute is told, and whether the arbiter holds it, is for those to say that live; where none does, for any of the others. */
function sumOf(a: Sum, b: Sum): Sum {
  const alike = a.lives === b.lives;
  const isHeld = alike || (a.lives ? a : b).chargedSeconds !== undefined;
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
    ...(isHeld ? usesOf(a, b) : NO_USES),
    computeTold: alike ? a.computeTold || b.computeTold : a.lives ? a.computeTold : b.computeTold,
    seenMs: Math.max(a.seenMs ?? 0, b.seenMs ?? 0),
    lives: a.lives || b.lives,
  };
}

/** Those that live first, then those that ended last: where a page has no room for all, the oldest are left out. */
export function sumsOf(
  counts: readonly Counts[],
  { atMs, bases = [] }: Pick<Snapshot, 'atMs' | 'bases'>,
): readonly Sum[] {
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
    // Where the arbiter counts for nobody of that name, its counters are absent.
    const uses = sum.chargedSeconds === undefined ? NO_USES : {};
    sums.set(key, sumOf(sum, { ...base, ...uses, ...ofGrant, computeTold: false, seenMs: undefined, lives: false }));
  }
  return [...sums.values()].toSorted((a, b) => Number(b.lives) - Number(a.lives) || (b.seenMs ?? 0) - (a.seenMs ?? 0));
}
