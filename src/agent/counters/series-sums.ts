// Which counters a series shows where several containers have its labels (a pod of a StatefulSet that was replaced, a
// container that was restarted): those of the containers that exist, else those of the one that ended last. So a series
// starts again at a small value, which Prometheus recognizes as a reset. Pure.
import { USE_COUNTS, type UseCounts } from '../compute/usage-account.ts';
import type { ForeignTotals } from './totals.ts';

/** Of one container on a GPU. */
type Counts = Omit<ForeignTotals, 'containerId' | 'podUid'> & {
  readonly [K in keyof UseCounts]?: number | undefined;
} & {
  /** `none`: it has no grant. */
  readonly mode: string;
  /** Of grants only. */
  readonly overLimitSeconds?: number;
  readonly denied?: number;
};
export type Sum = Counts & { readonly lives: boolean };

type Seen = Pick<Counts, 'seenMs'>;

/** Of rows with the same key, those that exist, else the one that ended last. */
export function currentRows<T extends Seen>(
  rows: readonly T[],
  keyOf: (row: T) => string,
): readonly { readonly rows: readonly [T, ...T[]]; readonly lives: boolean }[] {
  const all = [...Map.groupBy(rows, keyOf).values()] as [T, ...T[]][];
  return all.map((group) => {
    const [first, ...others] = group.filter(({ seenMs }) => seenMs === undefined);
    if (first) return { rows: [first, ...others], lives: true };
    const last = group.reduce((newest, row) => ((row.seenMs ?? 0) > (newest.seenMs ?? 0) ? row : newest));
    return { rows: [last], lives: false };
  });
}

const keyOf = (of: Counts): string =>
  JSON.stringify([of.namespace, of.pod, of.container, of.mode, of.gpuUuid, of.gpuIndex]);

const ADDED = [
  ...['smSeconds', 'memoryBusySeconds', 'encoderSeconds', 'decoderSeconds', 'overLimitSeconds', 'denied'],
  ...USE_COUNTS,
] as readonly (keyof Counts)[];

/** A count that neither has stays absent. */
const sumOf = (a: Counts, b: Counts): Counts => ({
  ...a,
  ...Object.fromEntries(
    ADDED.flatMap((name) =>
      a[name] === undefined && b[name] === undefined ? [] : [[name, Number(a[name] ?? 0) + Number(b[name] ?? 0)]],
    ),
  ),
  utilizationKnown: a.utilizationKnown || b.utilizationKnown,
});

/** One per series: those of containers that exist first, then those that ended last, which a full page leaves out
 * last. */
export function sumsOf(counts: readonly Counts[]): readonly Sum[] {
  return currentRows(counts, keyOf)
    .map(({ rows: [first, ...others], lives }) => ({ ...others.reduce(sumOf, first as Counts), lives }))
    .toSorted((a, b) => Number(b.lives) - Number(a.lives) || (b.seenMs ?? 0) - (a.seenMs ?? 0));
}
