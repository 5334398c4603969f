// What the agent counts of containers from sample to sample, by container and GPU; rows of ended containers are removed
// after a while. Times are since boot, because the wall clock can be set. How rows grow is in accumulate.ts.
import type { ShareMode } from '../attribution/device-ids.ts';
import type { UseCounts } from '../compute/usage-account.ts';
import type { SampledProcess } from '../sampling/sample.ts';
import type { XidTotal } from './xid-counts.ts';

/** Of a container on a GPU since it was first seen. */
export type EngineSeconds = {
  readonly smSeconds: number;
  readonly memoryBusySeconds: number;
  readonly encoderSeconds: number;
  readonly decoderSeconds: number;
};

type Row = EngineSeconds & {
  readonly namespace: string;
  readonly pod: string;
  readonly container: string;
  readonly gpuUuid: string;
  readonly gpuIndex: number;
  /** The driver reports its utilization; else the seconds are too low. */
  readonly utilizationKnown: boolean;
  /** Time since boot of the last sample that had it; undefined: it exists. */
  readonly seenMs: number | undefined;
};

export type ContainerTotals = Row &
  Partial<UseCounts> & {
    readonly grantId: string;
    readonly overLimitSeconds: number;
    readonly denied: number;
    /** Of the container, the same on each of its GPUs. */
    readonly unknownEntryPoints: number;
    /** Most that its grant had to hold at once, as far as samples saw it. */
    readonly peakBytes: number;
    /** Largest share of the GPU's compute that it had over a minute; undefined: no minute has passed. */
    readonly smPeakRatio: number | undefined;
  };

/** Of a container on a GPU that others gave it. */
export type AssignedTotals = Row & {
  readonly mode: ShareMode;
  /** 0: the driver has reported none. */
  readonly peakBytes: number;
};

/** An ended container keeps its names as last known. Empty: unknown. */
export type ForeignTotals = Row & { readonly containerId: string; readonly podUid: string };

export type Minute = { readonly sinceMs: number; readonly smSeconds: number };

export type Totals = {
  /** Of the sample, since boot; 0: there was none. */
  readonly bootMs: number;
  /** Of the sample, by its sampler. */
  readonly round: number;
  readonly containers: ReadonlyMap<string, ContainerTotals>;
  readonly assigned: ReadonlyMap<string, AssignedTotals>;
  readonly foreign: ReadonlyMap<string, ForeignTotals>;
  readonly xids: readonly XidTotal[];
  /** Where the minute began that is not over, per container and GPU. */
  readonly minutes: ReadonlyMap<string, Minute>;
  /** By the GPU's UUID: time since boot of the last sample with utilization by process. */
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
  bootMs: 0,
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
