// What totals are, by whom they are kept, and what becomes of them without a sample: what has ended leaves them for the bases of
// its name, and all of it moves with a time of day that is set. Plain values; how they grow is in integrals.ts.
import type { ShareMode } from '../attribution/device-ids.ts';
import type { UseCounts } from '../compute/usage-account.ts';
import type { SampledProcess } from '../sampling/sample.ts';
import { type Bases, type BaseTotals, type Ended, foreignContainer, nameKey, withEnded } from './retired-series.ts';
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
  /** The driver tells how much compute it uses; else the seconds above are less than it had. */
  readonly computeTold: boolean;
  /** The GPU's place in the grant, as the arbiter knows it; an agent before it was needed has left none. */
  readonly place?: number;
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
  readonly computeTold: boolean;
  /** 0: the driver has told of none. */
  readonly peakBytes: number;
  readonly seenMs: number;
};

export type ForeignTotals = {
  readonly gpuUuid: string;
  readonly gpuIndex: number;
  readonly containerId: string;
  readonly podUid: string;
  /** As last known: who has ended keeps its name. Empty: nobody has told yet. */
  readonly namespace: string;
  readonly pod: string;
  readonly container: string;
  readonly smSeconds: number;
  readonly memoryBusySeconds: number;
  readonly encoderSeconds: number;
  readonly decoderSeconds: number;
  readonly computeTold: boolean;
  readonly seenMs: number;
};

export type Minute = { readonly sinceMs: number; readonly smSeconds: number };

export type Totals = {
  readonly atMs: number;
  /** Of the sample, by the clock that nobody sets; 0: there was none. */
  readonly bootNs: number;
  /** Of the sample, by its sampler. */
  readonly round: number;
  readonly containers: ReadonlyMap<string, ContainerTotals>;
  readonly assigned: ReadonlyMap<string, AssignedTotals>;
  readonly foreign: ReadonlyMap<string, ForeignTotals>;
  readonly bases: Bases;
  readonly xids: readonly XidTotal[];
  /** Where the minute began that is not over, per container and GPU. */
  readonly minutes: ReadonlyMap<string, Minute>;
  /** By the GPU's UUID: wall clock of the last sample that told how much of its compute each process used. */
  readonly computeToldMs: ReadonlyMap<string, number>;
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
  bases: new Map(),
  xids: [],
  minutes: new Map(),
  computeToldMs: new Map(),
  processes: [],
};

export type KeptTotals = Pick<Totals, 'xids'> & {
  readonly containers: readonly ContainerTotals[];
  readonly assigned: readonly AssignedTotals[];
  readonly foreign: readonly ForeignTotals[];
  readonly bases: readonly BaseTotals[];
  /** As the arbiter has counted: newer than in the rows. */
  readonly uses?: readonly (UseCounts & { readonly grantId: string; readonly gpu: number })[];
};

const sharedBy = (totals: ContainerTotals) => ({ ...totals, mode: 'shared' as const });
const unownedBy = (totals: ForeignTotals) => ({
  ...totals,
  container: foreignContainer(totals),
  mode: 'none' as const,
});

/** The name that a row's series have, as bases have it. */
export const ROW_NAMES = {
  containers: (totals: ContainerTotals) => nameKey(sharedBy(totals)),
  assigned: (totals: AssignedTotals) => nameKey(totals),
  foreign: (totals: ForeignTotals) => nameKey(unownedBy(totals)),
  bases: (totals: BaseTotals) => nameKey(totals),
} as const;

/** The names of all these, as bases have them. */
export function namesOf(
  containers: Iterable<ContainerTotals>,
  assigned: Iterable<AssignedTotals>,
  foreign: Iterable<ForeignTotals>,
): ReadonlySet<string> {
  const names = new Set<string>();
  for (const totals of containers) names.add(ROW_NAMES.containers(totals));
  for (const totals of assigned) names.add(ROW_NAMES.assigned(totals));
  for (const totals of foreign) names.add(ROW_NAMES.foreign(totals));
  return names;
}

type Rows = {
  readonly containers: Map<string, ContainerTotals>;
  readonly assigned: Map<string, AssignedTotals>;
  readonly foreign: Map<string, ForeignTotals>;
};

export const overIn = <T extends { readonly seenMs: number | undefined }>(
  rows: ReadonlyMap<string, T>,
  isOver: (seenMs: number | undefined) => boolean,
): ReadonlyMap<string, T> => {
  const over = new Map<string, T>();
  for (const [key, totals] of rows) if (isOver(totals.seenMs)) over.set(key, totals);
  return over;
};

/** Takes those out of the rows whose time is over, and gives the bases then. */
export function withoutOver(
  { containers, assigned, foreign }: Rows,
  over: { readonly [K in keyof Rows]: ReadonlyMap<string, Rows[K] extends Map<string, infer T> ? T : never> },
  bases: Bases,
): Bases {
  if (over.containers.size + over.assigned.size + over.foreign.size === 0) return bases;
  // A grant's rows go together: one that has lost a GPU may get it back, and some counts are the whole container's.
  const kept = new Set([...containers].flatMap(([key, { grantId }]) => (over.containers.has(key) ? [] : [grantId])));
  const out = [...over.containers].filter(([, { grantId }]) => !kept.has(grantId));
  const overKeys = new Set(out.map(([key]) => key));
  const there = namesOf(
    [...containers].flatMap(([key, totals]) => (overKeys.has(key) ? [] : [totals])),
    [...assigned].flatMap(([key, totals]) => (over.assigned.has(key) ? [] : [totals])),
    [...foreign].flatMap(([key, totals]) => (over.foreign.has(key) ? [] : [totals])),
  );
  const ended: Ended[] = [];
  const counted = new Set<string>();
  for (const [key, totals] of out) {
    const { grantId, unknownEntryPoints } = totals;
    ended.push({ ...sharedBy(totals), unknownEntryPoints: counted.has(grantId) ? 0 : unknownEntryPoints });
    counted.add(grantId);
    containers.delete(key);
  }
  for (const [key, totals] of over.assigned) {
    ended.push(totals);
    assigned.delete(key);
  }
  for (const [key, totals] of over.foreign) {
    ended.push(unownedBy(totals));
    foreign.delete(key);
  }
  return withEnded(bases, ended, (name) => there.has(name));
}

/** The same, by the time of day as it was set then. */
export function movedBy(jumpMs: number, totals: Totals): Totals {
  if (jumpMs === 0) return totals;
  // What is kept for the next agent has no time before 1970.
  const moved = (seenMs: number): number => Math.max(0, seenMs + jumpMs);
  const seen = <T extends { readonly seenMs: number }>(rows: ReadonlyMap<string, T>) =>
    new Map([...rows].map(([key, row]) => [key, { ...row, seenMs: moved(row.seenMs) }]));
  return {
    ...totals,
    atMs: totals.atMs + jumpMs,
    containers: new Map(
      [...totals.containers].map(([key, row]) => [
        key,
        row.seenMs === undefined ? row : { ...row, seenMs: moved(row.seenMs) },
      ]),
    ),
    assigned: seen(totals.assigned),
    foreign: seen(totals.foreign),
    minutes: new Map(
      [...totals.minutes].map(([key, minute]) => [key, { ...minute, sinceMs: minute.sinceMs + jumpMs }]),
    ),
    computeToldMs: new Map([...totals.computeToldMs].map(([gpuUuid, toldMs]) => [gpuUuid, toldMs + jumpMs])),
  };
}
