// Adds one sample to the totals: engine seconds, seconds over the limit, peaks, refusals. Pure. Rows of ended
// containers are kept for a few minutes, so that Prometheus scrapes their last increase. The types of totals are in
// totals.ts.

import { USE_COUNTS, type UseCounts } from '../compute/usage-account.ts';
import {
  isSamplerRestart,
  isUtilizationKnown,
  type Sample,
  type SampledProcess,
  type SampledUse,
} from '../sampling/sample.ts';
import type { ContainerGpuState, ReconciledContainer, ReconciledNode } from '../usage/node-usage.ts';
import {
  type AssignedTotals,
  assignedKey,
  type ContainerTotals,
  type EngineSeconds,
  type ForeignTotals,
  foreignKey,
  type Minute,
  removeOver,
  type Totals,
  totalsKey,
} from './totals.ts';
import { countXids } from './xid-counts.ts';

/** The time of each engine of a GPU: microseconds of a process, seconds of a container. */
const ENGINES = [
  ['smUs', 'smSeconds'],
  ['memoryUs', 'memoryBusySeconds'],
  ['encoderUs', 'encoderSeconds'],
  ['decoderUs', 'decoderSeconds'],
] as const;
type Engines = Pick<SampledUse, (typeof ENGINES)[number][0]>;

/** How long counters outlive what they counted: a few scrapes. */
export const KEEP_MS = 5 * 60 * 1000;
/**
 * Longest time between samples that is integrated as one step; of a longer gap only this much counts. The driver keeps
 * its own samples for about as long, so a shorter gap is made up by its next answer.
 */
const LONGEST_STEP_MS = 10_000;

/** Means over less time say more about the driver's few samples than about the container. */
const PEAK_WINDOW_MS = 60_000;

const countsOf = (use: UseCounts): UseCounts =>
  Object.fromEntries(USE_COUNTS.map((name) => [name, use[name]])) as UseCounts;

const NONE: Engines = { smUs: 0, memoryUs: 0, encoderUs: 0, decoderUs: 0 };
const each = (value: (engine: keyof Engines) => number): Engines =>
  Object.fromEntries(ENGINES.map(([engine]) => [engine, value(engine)])) as Engines;
const sumOf = (a: Engines, b: Engines): Engines => each((engine) => a[engine] + b[engine]);
/** Seconds counted so far and what has grown since. */
const secondsWith = (last: EngineSeconds | undefined, grown: Engines): EngineSeconds =>
  Object.fromEntries(
    ENGINES.map(([engine, name]) => [name, (last?.[name] ?? 0) + grown[engine] / 1e6]),
  ) as EngineSeconds;

/** The names of a container without a grant, where they are known. */
type NameOf = (
  containerId: string,
  podUid: string,
) => Pick<ForeignTotals, 'namespace' | 'pod' | 'container'> | undefined;

/** What the arbiter has counted of a grant on one of its GPUs, by position in the grant; undefined: it does not limit
 * it. */
type UseOf = (grantId: string, place: number) => UseCounts | undefined;

type ProcessOwner = {
  readonly kind: string;
  readonly id?: string;
  readonly containerId?: string;
  readonly podUid?: string;
};

/** What of a node is counted. */
type CountedNode = Pick<ReconciledNode, 'sample' | 'assigned' | 'foreign'> & {
  readonly containers: readonly Pick<ReconciledContainer, 'grant' | 'gpus' | 'unknownEntryPoints'>[];
};

/** What one sample adds, for the rows of all kinds. */
type Step = {
  readonly state: CountedNode;
  readonly before: Totals;
  readonly bootMs: number;
  readonly seconds: number;
  /** Engine time since the sample before, of a container or grant on a GPU. */
  readonly grownOf: (id: string, gpuIndex: number) => Engines;
  readonly isKnown: (gpuUuid: string) => boolean;
};

export function accumulate(
  before: Totals,
  state: CountedNode,
  ownerOf: (process: SampledProcess) => ProcessOwner,
  { nameOf = () => undefined, useOf = () => undefined }: { readonly nameOf?: NameOf; readonly useOf?: UseOf } = {},
): Totals {
  const { sample } = state;
  const bootMs = sample.bootNs / 1e6;
  /** Not in the sample before this one, and not for long. */
  const isOver = (seenMs: number | undefined): boolean =>
    seenMs !== undefined && seenMs < before.bootMs && bootMs - seenMs > KEEP_MS;
  const grown = engineTimeSince(before, sample, ownerOf);
  const utilizationKnownMs = new Map(before.utilizationKnownMs);
  for (const gpu of sample.gpus) if (isUtilizationKnown(sample, gpu)) utilizationKnownMs.set(gpu.uuid, bootMs);
  const step: Step = {
    state,
    before,
    bootMs,
    seconds: before.bootMs === 0 ? 0 : Math.min(Math.max(0, bootMs - before.bootMs), LONGEST_STEP_MS) / 1000,
    grownOf: (id, gpuIndex) => grown.get(`${id} ${gpuIndex}`) ?? NONE,
    isKnown: (gpuUuid) => bootMs - (utilizationKnownMs.get(gpuUuid) ?? Number.NEGATIVE_INFINITY) <= LONGEST_STEP_MS,
  };
  const { containers, minutes } = accumulateContainers(step, useOf);
  const rows = { containers, assigned: accumulateAssigned(step), foreign: accumulateForeign(step, nameOf) };
  removeOver(rows, isOver);
  const { round, processes } = sample;
  return { bootMs, round, ...rows, xids: countXids(before.xids, sample), minutes, utilizationKnownMs, processes };
}

/** Engine time of all processes since the sample before, by the owner's id and the GPU's index. */
function engineTimeSince(
  before: Totals,
  { processes, round }: Sample,
  ownerOf: (process: SampledProcess) => ProcessOwner,
): ReadonlyMap<string, Engines> {
  const grown = new Map<string, Engines>();
  if (processes === before.processes) return grown; // the sampler reports nothing new of any process
  const lastOf = earlierOf(before.processes);
  const isRestart = isSamplerRestart(round, before.round);
  for (const [index, process] of processes.entries()) {
    const last = lastOf(process.pid, index);
    if (last === process) continue;
    const owner = ownerOf(process);
    const id =
      owner.kind === 'grant' ? owner.id : owner.kind === 'container' ? owner.containerId || owner.podUid : undefined;
    if (id === undefined) continue;
    // A new sampler counts from zero: all of its count is new.
    const earlier = last?.startTicks === process.startTicks && !isRestart ? last?.gpus : undefined;
    for (const use of process.gpus) {
      const then = earlier?.find(({ gpu }) => gpu === use.gpu);
      const since = (now: number, past: number | undefined) => (past === undefined || now < past ? now : now - past);
      const key = `${id} ${use.gpu}`;
      const fresh = each((engine) => since(use[engine], then?.[engine]));
      grown.set(key, sumOf(grown.get(key) ?? NONE, fresh));
    }
  }
  return grown;
}

function accumulateContainers(
  step: Step,
  useOf: UseOf,
): { readonly containers: Map<string, ContainerTotals>; readonly minutes: Map<string, Minute> } {
  const { state, before } = step;
  const containers = new Map(before.containers);
  const minutes = new Map<string, Minute>();
  const live = new Set<string>();
  for (const container of state.containers) {
    const { grant } = container;
    for (const [place, gpu] of container.gpus.entries()) {
      const key = totalsKey(grant.id, gpu.gpuUuid);
      const last = containers.get(key);
      // A GPU that is missing in the sample has no index: its row keeps the former one, and starts once the GPU was
      // seen.
      const gpuIndex = gpu.gpuIndex ?? last?.gpuIndex;
      if (gpuIndex === undefined) continue;
      const seconds = secondsWith(last, step.grownOf(grant.id, gpuIndex));
      const utilizationKnown = step.isKnown(gpu.gpuUuid);
      const now = { sinceMs: step.bootMs, smSeconds: seconds.smSeconds };
      const mean = meanOfMinute(before.minutes.get(key), now);
      // A minute with too long a gap in the data has no mean, and data after the gap starts another minute.
      if (utilizationKnown) minutes.set(key, mean.minute);
      const ratio = utilizationKnown ? mean.ratio : undefined;
      const use = useOf(grant.id, place);
      live.add(key);
      containers.set(key, {
        namespace: grant.namespace,
        pod: grant.pod,
        container: grant.container,
        grantId: grant.id,
        gpuUuid: gpu.gpuUuid,
        gpuIndex,
        ...seconds,
        utilizationKnown,
        overLimitSeconds: (last?.overLimitSeconds ?? 0) + (gpu.over ? step.seconds : 0),
        // The tenant can write the ledger's counts: they may only grow here.
        denied: Math.max(last?.denied ?? 0, gpu.denied),
        unknownEntryPoints: Math.max(last?.unknownEntryPoints ?? 0, container.unknownEntryPoints),
        peakBytes: Math.max(last?.peakBytes ?? 0, heldBytes(gpu)),
        smPeakRatio: ratio === undefined ? last?.smPeakRatio : Math.max(last?.smPeakRatio ?? 0, ratio),
        ...(use && countsOf(use)),
        seenMs: undefined,
      });
    }
  }
  markEnded(containers, live, before);
  return { containers, minutes };
}

function markEnded<T extends { readonly seenMs: number | undefined }>(
  rows: Map<string, T>,
  live: ReadonlySet<string>,
  { bootMs }: Totals,
): void {
  for (const [key, row] of rows)
    if (!live.has(key) && row.seenMs === undefined) rows.set(key, { ...row, seenMs: bootMs });
}

function accumulateAssigned({ state, before, grownOf, isKnown }: Step): Map<string, AssignedTotals> {
  const assigned = new Map(before.assigned);
  const live = new Set<string>();
  for (const { namespace, pod, container, mode, gpuUuid, gpuIndex, containerIds, usedBytes } of state.assigned) {
    const key = assignedKey({ namespace, pod, container, mode, gpuUuid });
    const last = assigned.get(key);
    live.add(key);
    assigned.set(key, {
      namespace,
      pod,
      container,
      mode,
      gpuUuid,
      gpuIndex,
      ...secondsWith(last, containerIds.map((id) => grownOf(id, gpuIndex)).reduce(sumOf, NONE)),
      utilizationKnown: isKnown(gpuUuid),
      peakBytes: Math.max(last?.peakBytes ?? 0, usedBytes ?? 0),
      seenMs: undefined,
    });
  }
  markEnded(assigned, live, before);
  return assigned;
}

function accumulateForeign({ state, before, grownOf, isKnown }: Step, nameOf: NameOf): Map<string, ForeignTotals> {
  const foreign = new Map<string, ForeignTotals>();
  const live = new Set<string>();
  for (const [key, totals] of before.foreign) {
    const id = totals.containerId || totals.podUid;
    const here = ({ gpuUuid }: { gpuUuid: string }) => gpuUuid === totals.gpuUuid;
    const isPresent =
      state.foreign.some((use) => here(use) && (use.containerId || use.podUid) === id) ||
      state.assigned.some((entry) => here(entry) && entry.containerIds.includes(id)) ||
      state.containers.some(({ grant }) => grant.id === id && grant.gpus.some(here));
    // What it used up to its end, when it is in no list any more.
    const last = isPresent ? NONE : grownOf(id, totals.gpuIndex);
    foreign.set(key, { ...totals, ...namedBy(nameOf, totals), ...secondsWith(totals, last) });
  }
  for (const use of state.foreign) {
    const id = use.containerId || use.podUid;
    const key = foreignKey(id, use.gpuUuid);
    live.add(key);
    foreign.set(key, {
      gpuUuid: use.gpuUuid,
      gpuIndex: use.gpuIndex,
      containerId: use.containerId,
      podUid: use.podUid,
      ...namedBy(nameOf, foreign.get(key) ?? { ...use, namespace: '', pod: '', container: '' }),
      ...secondsWith(foreign.get(key), grownOf(id, use.gpuIndex)),
      utilizationKnown: isKnown(use.gpuUuid),
      seenMs: undefined,
    });
  }
  markEnded(foreign, live, before);
  return foreign;
}

type Names = Pick<ForeignTotals, 'namespace' | 'pod' | 'container'>;
/** The names as known now, else as they were: the name of an ended container is soon forgotten elsewhere. */
function namedBy(nameOf: NameOf, of: Names & Pick<ForeignTotals, 'containerId' | 'podUid'>): Names {
  const found = nameOf(of.containerId, of.podUid);
  const isKnown = found && (found.container !== '' || (found.pod !== '' && of.container === ''));
  const { namespace, pod, container } = isKnown ? found : of;
  return { namespace, pod, container };
}

/** Finds a process in the list of the sample before. Most of the time it stands in the same place. */
function earlierOf(list: readonly SampledProcess[]): (pid: number, index: number) => SampledProcess | undefined {
  let byPid: ReadonlyMap<number, SampledProcess> | undefined;
  return (pid, index) => {
    if (list[index]?.pid === pid) return list[index];
    byPid ??= new Map(list.map((process) => [process.pid, process]));
    return byPid.get(pid);
  };
}

/**
 * Memory that counts for the grant: the driver's figure plus managed memory, which the driver's figure lacks. The
 * tenant writes the ledger's figure, so it counts only up to the grant, as the interposer grants no more.
 */
function heldBytes({ usedBytes, limitBytes, ledger }: ContainerGpuState): number {
  return usedBytes + Math.min(ledger.managedBytes, Math.max(0, limitBytes - usedBytes));
}

/** The mean share over a minute that has just ended, and the present minute. */
function meanOfMinute(minute: Minute | undefined, now: Minute): { readonly minute: Minute; readonly ratio?: number } {
  if (minute === undefined) return { minute: now };
  const passedMs = now.sinceMs - minute.sinceMs;
  if (passedMs < PEAK_WINDOW_MS) return { minute };
  // No mean if samples were missing for long.
  if (passedMs > 2 * PEAK_WINDOW_MS) return { minute: now };
  return { minute: now, ratio: Math.min(1, ((now.smSeconds - minute.smSeconds) * 1000) / passedMs) };
}
