// What the compatibility collectors share: units, the containers of each GPU, rates, and a bound on the number of
// processes.
import type { Snapshot, SnapshotContainer, SnapshotDevice, SnapshotProcess } from '../../agent/snapshot/snapshot.ts';
import type { Series } from '../collectors/collector.ts';
import { MAX_PROCESSES } from '../collectors/process.ts';

export const toMib = (bytes: number | undefined): number | undefined =>
  bytes === undefined ? undefined : bytes / 2 ** 20;

export type CompatContext = {
  /** Value of their label for the node. */
  readonly nodeName: string;
};

/** A container on a GPU, by a grant or from another device plugin. */
export type Holder = {
  readonly namespace: string;
  readonly pod: string;
  readonly container: string;
  readonly mode: string;
  readonly gpuUuid: string;
  readonly usedBytes: number | undefined;
  /** Undefined: the driver did not report it. */
  readonly smPercent?: number | undefined;
  readonly lastActiveMs: number | undefined;
  readonly processes: readonly Omit<SnapshotProcess, 'inLedger'>[];
  /** With a grant only. */
  readonly grant: SnapshotContainer | undefined;
};

export function holdersOf(snapshot: Snapshot): readonly Holder[] {
  return [
    ...snapshot.containers.map((grant) => ({
      ...grant,
      mode: 'shared',
      usedBytes: grant.memoryKnown ? grant.usedBytes : undefined,
      grant,
    })),
    ...snapshot.assigned.map((entry) => ({ ...entry, grant: undefined })),
  ];
}

export const deviceOf = (snapshot: Snapshot, gpuUuid: string): SnapshotDevice | undefined =>
  snapshot.devices.find(({ gpu }) => gpu.uuid === gpuUuid);

/** As in "NVIDIA L4 MIG 1g.6gb". Empty: not a MIG instance. */
export const profileOf = ({ name }: SnapshotDevice['gpu']): string => name.split(' MIG ')[1] ?? '';

/** The GPU of a MIG instance. */
export const parentOf = (snapshot: Snapshot, { parent }: SnapshotDevice['gpu']): SnapshotDevice['gpu'] | undefined =>
  parent === undefined ? undefined : snapshot.devices.find(({ gpu }) => gpu.index === parent)?.gpu;

/** The shortest time for a rate: PCIe and NVLink counters are read at every fifth sample. */
const RATE_MS = 10_000;
type Point = { readonly atMs: number; readonly total: number };

/**
 * Rates per second of counters, for metrics that carry rates. The result is for one snapshot, and forgets each counter
 * that it is not asked for. Undefined until a counter was seen for RATE_MS, and again after it fell.
 */
export function createRates(): (atMs: number) => (key: string, total: number | undefined) => number | undefined {
  let kept = new Map<string, readonly Point[]>();
  return (atMs) => {
    const before = kept;
    const now = new Map<string, readonly Point[]>();
    kept = now;
    return (key, total) => {
      if (total === undefined) return undefined;
      const seen = before.get(key) ?? [];
      const last = seen.at(-1);
      const isGoingOn = last !== undefined && last.total <= total && last.atMs <= atMs;
      // A snapshot that is rendered in both formats adds one point.
      const points = isGoingOn ? [...seen.filter((point) => point.atMs < atMs), { atMs, total }] : [{ atMs, total }];
      const start = points.findLastIndex((point) => atMs - point.atMs >= RATE_MS);
      now.set(key, start > 0 ? points.slice(start) : points);
      const from = points[start];
      return from && ((total - from.total) * 1000) / (atMs - from.atMs);
    };
  };
}

/** The processes with the most memory, so that tenants cannot grow the page. The others are counted as dropped. */
export function largestProcesses(holders: readonly Holder[], { drop }: Pick<Series<string>, 'drop'>) {
  const all = holders.flatMap((holder) => holder.processes.map((one) => ({ holder, one })));
  drop(Math.max(0, all.length - MAX_PROCESSES));
  return all.toSorted((a, b) => (b.one.usedBytes ?? 0) - (a.one.usedBytes ?? 0)).slice(0, MAX_PROCESSES);
}
