// What the agent counts of containers from sample to sample, by container and GPU, and what becomes of it without a sample: rows
// of ended containers are removed after a while, and a step of the wall clock moves all times. How rows grow is in accumulate.ts.
import type { ShareMode } from '../attribution/device-ids.ts';
import type { UseCounts } from '../compute/usage-account.ts';
import type { SampledProcess } from '../sampling/sample.ts';
import type { XidTotal } from './xid-counts.ts';

export type ContainerTotals = Partial<UseCounts> & {
  readonly namespace: string;
  readonly pod: string;
  readonly container: string;
  readonly grantId: string;
  readonly gpuUuid: string;
  readonly gpuIndex: number;
  readonly smSeconds: number;
  readonly memoryBusySeconds: number;
  readonly encoderSeconds: number;
  readonly decoderSeconds: number;
  readonly overLimitSeconds: number;
  readonly denied: number;
  /** Of the container, the same on each of its GPUs. */
  readonly unknownEntryPoints: number;
  /** Most that its grant had to hold at once, as far as samples saw it. */
  readonly peakBytes: number;
  /** Largest share of the GPU's compute that it had over a minute; undefined: no minute has passed. */
  readonly smPeakRatio: number | undefined;
  /** The driver reports its utilization; else the seconds above are too low. */
  readonly utilizationKnown: boolean;
  /** Wall clock of the last sample in which its grant existed; undefined: it does. */
  readonly seenMs: number | undefined;
};

/** Of a container on a GPU that others gave it. */
export type AssignedTotals = {
  readonly namespace: string;
  readonly pod: string;
  readonly container: string;
  readonly mode: ShareMode;
  readonly gpuUuid: string;
  readonly gpuIndex: number;
  readonly smSeconds: number;
  readonly memoryBusySeconds: number;
  readonly encoderSeconds: number;
  readonly decoderSeconds: number;
  readonly utilizationKnown: boolean;
  /** 0: the driver has reported none. */
  readonly peakBytes: number;
  readonly seenMs: number;
};

export type ForeignTotals = {
  readonly gpuUuid: string;
  readonly gpuIndex: number;
  readonly containerId: string;
  readonly podUid: string;
  /** As last known: an ended container keeps its names. Empty: unknown. */
  readonly namespace: string;
  readonly pod: string;
  readonly container: string;
  readonly smSeconds: number;
  readonly memoryBusySeconds: number;
  readonly encoderSeconds: number;
  readonly decoderSeconds: number;
  readonly utilizationKnown: boolean;
  readonly seenMs: number;
};

export type Minute = { readonly sinceMs: number; readonly smSeconds: number };

export type Totals = {
  readonly atMs: number;
  /** CLOCK_BOOTTIME of the sample; 0: there was none. */
  readonly bootNs: number;
  /** Of the sample, by its sampler. */
  readonly round: number;
  readonly containers: ReadonlyMap<string, ContainerTotals>;
  readonly assigned: ReadonlyMap<string, AssignedTotals>;
  readonly foreign: ReadonlyMap<string, ForeignTotals>;
  readonly xids: readonly XidTotal[];
  /** Where the minute began that is not over, per container and GPU. */
  readonly minutes: ReadonlyMap<string, Minute>;
  /** By the GPU's UUID: wall clock of the last sample with utilization by process. */
  readonly utilizationKnownMs: ReadonlyMap<string, number>;
  /** As last sampled. */
  readonly processes: readonly SampledProcess[];
};

/** Of a container on a GPU, among the containers of the totals. */
export const totalsKey = (grantId: string, gpuUuid: string): string => `${grantId} ${gpuUuid}`;

export const assignedKey = (of: Pick<AssignedTotals, 'namespace' | 'pod' | 'container' | 'mode' | 'gpuUuid'>): string =>
  JSON.stringify([of.namespace, of.pod, of.container, of.mode, of.gpuUuid]);
export const foreignKey = (id: string, gpuUuid: string): string => `${id} ${gpuUuid}`;

export const NO_TOTALS: Totals = {
  atMs: 0,
  bootNs: 0,
  round: 0,
  containers: new Map(),
  assigned: new Map(),
  foreign: new Map(),
  xids: [],
  minutes: new Map(),
  utilizationKnownMs: new Map(),
  processes: [],
};

type Rows = {
  readonly containers: Map<string, ContainerTotals>;
  readonly assigned: Map<string, AssignedTotals>;
  readonly foreign: Map<string, ForeignTotals>;
};

/** Removes the rows that are over. A grant's rows go together: one that has lost a GPU may get it back. */
export function removeOver(
  { containers, assigned, foreign }: Rows,
  isOver: (seenMs: number | undefined) => boolean,
): void {
  const stays = new Set([...containers.values()].flatMap(({ grantId, seenMs }) => (isOver(seenMs) ? [] : [grantId])));
  for (const [key, { grantId }] of containers) if (!stays.has(grantId)) containers.delete(key);
  for (const rows of [assigned, foreign]) {
    for (const [key, { seenMs }] of rows) if (isOver(seenMs)) rows.delete(key);
  }
}

/** The same, by the time of day as it was set then. */
export function movedBy(jumpMs: number, totals: Totals): Totals {
  if (jumpMs === 0) return totals;
  const seen = <T extends { readonly seenMs: number }>(rows: ReadonlyMap<string, T>) =>
    new Map([...rows].map(([key, row]) => [key, { ...row, seenMs: row.seenMs + jumpMs }]));
  return {
    ...totals,
    atMs: totals.atMs + jumpMs,
    containers: new Map(
      [...totals.containers].map(([key, row]) => [
        key,
        row.seenMs === undefined ? row : { ...row, seenMs: row.seenMs + jumpMs },
      ]),
    ),
    assigned: seen(totals.assigned),
    foreign: seen(totals.foreign),
    minutes: new Map(
      [...totals.minutes].map(([key, minute]) => [key, { ...minute, sinceMs: minute.sinceMs + jumpMs }]),
    ),
    utilizationKnownMs: new Map([...totals.utilizationKnownMs].map(([gpuUuid, toldMs]) => [gpuUuid, toldMs + jumpMs])),
  };
}
