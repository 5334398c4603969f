// What the families of other exporters have in common: their units, who is alone on a GPU, and a bound on single processes.
import type { Snapshot, SnapshotContainer, SnapshotDevice, SnapshotProcess } from '../../agent/snapshot/snapshot.ts';
import { MOST_PROCESSES } from '../families/process.ts';
import type { Guard } from '../format/family.ts';

export const toMib = (bytes: number | undefined): number | undefined =>
  bytes === undefined ? undefined : bytes / 2 ** 20;

export type CompatContext = {
  /** Where their label for the node gets its value. */
  readonly nodeName: string;
};

/** A container on a GPU, by a grant or by others' word. */
export type Holder = {
  readonly namespace: string;
  readonly pod: string;
  readonly container: string;
  readonly mode: string;
  readonly gpuUuid: string;
  readonly usedBytes: number | undefined;
  /** Undefined: the driver did not tell. */
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
      usedBytes: grant.bytesTold ? grant.usedBytes : undefined,
      grant,
    })),
    ...snapshot.assigned.map((entry) => ({ ...entry, grant: undefined })),
  ];
}

export const deviceOf = (snapshot: Snapshot, gpuUuid: string): SnapshotDevice | undefined =>
  snapshot.devices.find(({ gpu }) => gpu.uuid === gpuUuid);

/** As in "NVIDIA L4 MIG 1g.6gb". Empty: no instance of a divided GPU. */
export const profileOf = ({ name }: SnapshotDevice['gpu']): string => name.split(' MIG ')[1] ?? '';

/** The GPU that an instance is a part of. */
export const parentOf = (snapshot: Snapshot, { parent }: SnapshotDevice['gpu']): SnapshotDevice['gpu'] | undefined =>
  parent === undefined ? undefined : snapshot.devices.find(({ gpu }) => gpu.index === parent)?.gpu;

/** How far back a rate reaches at least: links are read at every fifth sample. */
const RATE_MS = 10_000;
type Point = { readonly atMs: number; readonly total: number };

/**
 * Means per second of totals that only grow, for names that carry no totals. The answer is for one snapshot; what it is not asked for
 * is forgotten. Undefined until a total has been seen for as long, and anew where it fell.
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
      const isGoingOn = last !== undefined && last.total <= total && last.atMs < atMs;
      const points = isGoingOn ? [...seen, { atMs, total }] : [{ atMs, total }];
      const start = points.findLastIndex((point) => atMs - point.atMs >= RATE_MS);
      now.set(key, start > 0 ? points.slice(start) : points);
      const from = points[start];
      return from && ((total - from.total) * 1000) / (atMs - from.atMs);
    };
  };
}

/** The largest of the node: what has a series per process must not grow with what tenants start. The others are counted. */
export function largestProcesses(holders: readonly Holder[], guard: Guard | undefined) {
  const all = holders.flatMap((holder) => holder.processes.map((one) => ({ holder, one })));
  guard?.leftOut(Math.max(0, all.length - MOST_PROCESSES));
  return all.toSorted((a, b) => (b.one.usedBytes ?? 0) - (a.one.usedBytes ?? 0)).slice(0, MOST_PROCESSES);
}

/** Names of processes are tenants' text; labels of these families hold no more than a name. */
export const plainName = (command: string): string => command.replace(/[^A-Za-z0-9._-]/g, '_');
