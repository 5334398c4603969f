// Figures that grow over time, carried from sample to sample: engine seconds, seconds over the limit, peaks, refusals. A
// plain value in, a plain value out. What ended is kept a while, so that scrapers see its last increase. What totals are, and how
// they are left, is in totals.ts.

import { clockStepMs } from '../../common/clock-step.ts';
import { USE_COUNTS, type UseCounts } from '../compute/usage-account.ts';
import { isSamplerRestart, isUtilizationKnown, type SampledProcess, type SampledUse } from '../sampling/sample.ts';
import type { ContainerGpuState, ContainerState, NodeState } from '../usage/node-usage.ts';
import {
  assignedKey,
  type ContainerTotals,
  type ForeignTotals,
  foreignKey,
  type Minute,
  movedBy,
  removeOver,
  type Totals,
  totalsKey,
} from './totals.ts';
import { countXids } from './xid-counts.ts';

/** Time of each engine of a GPU, in microseconds. */
type Engines = Pick<SampledUse, 'smUs' | 'memoryUs' | 'encoderUs' | 'decoderUs'>;

/** How long counters outlive what they counted: a few scrapes. */
export const KEEP_MS = 5 * 60 * 1000;
/**
 * Time between samples that is still integrated as one step; a longer silence is not made up. The driver keeps its own
 * samples for as long: when it tells nothing for less, its next answer makes good for it.
 */
const LONGEST_STEP_MS = 10_000;

/** Shorter means say more about the driver's few samples than about the container. */
const PEAK_WINDOW_MS = 60_000;

const countsOf = (use: UseCounts): UseCounts => ({
  chargedSeconds: use.chargedSeconds,
  contendedSeconds: use.contendedSeconds,
  throttledSeconds: use.throttledSeconds,
  overruns: use.overruns,
  faults: use.faults,
});

const NONE: Engines = { smUs: 0, memoryUs: 0, encoderUs: 0, decoderUs: 0 };
const each = (value: (engine: keyof Engines) => number): Engines => ({
  smUs: value('smUs'),
  memoryUs: value('memoryUs'),
  encoderUs: value('encoderUs'),
  decoderUs: value('decoderUs'),
});
const sumOf = (a: Engines, b: Engines): Engines => each((engine) => a[engine] + b[engine]);
/** Seconds counted so far and what has grown since. */
const secondsWith = (last: EngineSeconds | undefined, grown: Engines): EngineSeconds => ({
  smSeconds: (last?.smSeconds ?? 0) + grown.smUs / 1e6,
  memoryBusySeconds: (last?.memoryBusySeconds ?? 0) + grown.memoryUs / 1e6,
  encoderSeconds: (last?.encoderSeconds ?? 0) + grown.encoderUs / 1e6,
  decoderSeconds: (last?.decoderSeconds ?? 0) + grown.decoderUs / 1e6,
});
type EngineSeconds = Pick<ContainerTotals, 'smSeconds' | 'memoryBusySeconds' | 'encoderSeconds' | 'decoderSeconds'>;

/** The state that totals of a container on a GPU were last made of: of the same one they are the same. */
const madeOf = new WeakMap<ContainerTotals, ContainerState>();

/** The names of a container without a grant, where anybody knows them. */
type NameOf = (
  containerId: string,
  podUid: string,
) => Pick<ForeignTotals, 'namespace' | 'pod' | 'container'> | undefined;

/** What the arbiter has counted of a grant on one of its GPUs, by its place there; undefined: it holds it to nothing. */
export type UseOf = (grantId: string, place: number) => UseCounts | undefined;

export function accumulate(
  given: Totals,
  state: NodeState,
  ownerOf: (process: SampledProcess) => { kind: string; id?: string; containerId?: string; podUid?: string },
  nameOf: NameOf = () => undefined,
  useOf: UseOf = () => undefined,
): Totals {
  const { sample } = state;
  const before = movedBy(clockStepMs(given, sample), given);
  /** Not in the sample before this one, and not for long. */
  const isOver = (seenMs: number | undefined): boolean =>
    seenMs !== undefined && seenMs < before.atMs && sample.atMs - seenMs > KEEP_MS;
  const stepSeconds = before.atMs === 0 ? 0 : Math.min(Math.max(0, sample.atMs - before.atMs), LONGEST_STEP_MS) / 1000;
  const { processes } = sample;
  const grown = new Map<string, Engines>();
  const lastOf = earlierOf(before.processes);
  const anew = isSamplerRestart(sample.round, before.round);
  // Of the very same list nobody's figures have changed.
  for (const [index, process] of processes === before.processes ? [] : processes.entries()) {
    const last = lastOf(process.pid, index);
    if (last === process) continue;
    const owner = ownerOf(process);
    const name =
      owner.kind === 'grant' ? owner.id : owner.kind === 'container' ? owner.containerId || owner.podUid : undefined;
    if (name === undefined) continue;
    // A new sampler counts from zero: what it has counted is what is new since the last one told.
    const earlier = last?.startTicks === process.startTicks && !anew ? last?.gpus : undefined;
    for (const use of process.gpus) {
      const then = earlier?.find(({ gpu }) => gpu === use.gpu);
      const since = (now: number, past: number | undefined) => (past === undefined || now < past ? now : now - past);
      const key = `${name} ${use.gpu}`;
      const fresh = each((engine) => since(use[engine], then?.[engine]));
      grown.set(key, sumOf(grown.get(key) ?? NONE, fresh));
    }
  }

  const computeToldMs = new Map(before.utilizationKnownMs);
  for (const gpu of sample.gpus) if (isUtilizationKnown(sample, gpu)) computeToldMs.set(gpu.uuid, sample.atMs);
  const isComputeTold = (gpuUuid: string): boolean =>
    sample.atMs - (computeToldMs.get(gpuUuid) ?? Number.NEGATIVE_INFINITY) <= LONGEST_STEP_MS;

  const containers = new Map(before.containers);
  const minutes = new Map<string, Minute>();
  const live = new Set<ContainerTotals>();
  for (const container of state.containers) {
    const { grant, gpus, unknownEntryPoints } = container;
    for (const [place, gpu] of gpus.entries()) {
      const key = totalsKey(grant.id, gpu.gpuUuid);
      const last = containers.get(key);
      // A GPU that the sample has not has no index: its row keeps the one it had, and there is none before it has been seen.
      const gpuIndex = gpu.gpuIndex ?? last?.gpuIndex;
      if (gpuIndex === undefined) continue;
      const engines = grown.size === 0 ? undefined : grown.get(`${grant.id} ${gpuIndex}`);
      const { over } = gpu;
      const computeTold = isComputeTold(gpu.gpuUuid);
      const minute = before.minutes.get(key);
      const isSame = last !== undefined && madeOf.get(last) === container && last.utilizationKnown === computeTold;
      const use = useOf(grant.id, place);
      const isUsedAsBefore = USE_COUNTS.every((name) => use?.[name] === last?.[name]);
      if (isSame && isUsedAsBefore && !engines && !over && (minute ? isGoingOn(minute, sample.atMs) : !computeTold)) {
        if (minute) minutes.set(key, minute);
        live.add(last);
        continue;
      }
      const seconds = secondsWith(last, engines ?? NONE);
      const mean = meanOfMinute(minute, { sinceMs: sample.atMs, smSeconds: seconds.smSeconds });
      // A minute of which nothing was told for long has no mean, and what comes after that begins another one.
      if (computeTold) minutes.set(key, mean.minute);
      const totals: ContainerTotals = {
        namespace: grant.namespace,
        pod: grant.pod,
        container: grant.container,
        grantId: grant.id,
        gpuUuid: gpu.gpuUuid,
        gpuIndex,
        ...seconds,
        utilizationKnown: computeTold,
        overLimitSeconds: (last?.overLimitSeconds ?? 0) + (over ? stepSeconds : 0),
        // The tenant can write the ledger's counts: they may only grow here.
        denied: Math.max(last?.denied ?? 0, gpu.denied),
        unknownEntryPoints: Math.max(last?.unknownEntryPoints ?? 0, unknownEntryPoints),
        peakBytes: Math.max(last?.peakBytes ?? 0, heldBytes(gpu)),
        smPeakRatio:
          mean.ratio === undefined || !computeTold ? last?.smPeakRatio : Math.max(last?.smPeakRatio ?? 0, mean.ratio),
        ...(use && countsOf(use)),
        seenMs: undefined,
      };
      containers.set(key, totals);
      madeOf.set(totals, container);
      live.add(totals);
    }
  }
  for (const [key, totals] of containers) {
    if (!live.has(totals) && totals.seenMs === undefined) containers.set(key, { ...totals, seenMs: before.atMs });
  }

  const assigned = new Map(before.assigned);
  for (const { namespace, pod, container, mode, gpuUuid, gpuIndex, containerIds, usedBytes } of state.assigned) {
    const key = assignedKey({ namespace, pod, container, mode, gpuUuid });
    const last = assigned.get(key);
    const engines = containerIds.map((id) => grown.get(`${id} ${gpuIndex}`) ?? NONE).reduce(sumOf, NONE);
    assigned.set(key, {
      namespace,
      pod,
      container,
      mode,
      gpuUuid,
      gpuIndex,
      ...secondsWith(last, engines),
      utilizationKnown: isComputeTold(gpuUuid),
      peakBytes: Math.max(last?.peakBytes ?? 0, usedBytes ?? 0),
      seenMs: sample.atMs,
    });
  }

  const foreign = new Map<string, ForeignTotals>();
  for (const [key, totals] of before.foreign) {
    const id = totals.containerId || totals.podUid;
    const here = ({ gpuUuid }: { gpuUuid: string }) => gpuUuid === totals.gpuUuid;
    const told =
      state.foreign.some((use) => here(use) && (use.containerId || use.podUid) === id) ||
      state.assigned.some((entry) => here(entry) && entry.containerIds.includes(id)) ||
      state.containers.some(({ grant }) => grant.id === id && grant.gpus.some(here));
    // What it used up to its end, when it is in no list any more.
    const last = told ? NONE : (grown.get(`${id} ${totals.gpuIndex}`) ?? NONE);
    foreign.set(key, { ...totals, ...namedBy(nameOf, totals), ...secondsWith(totals, last) });
  }
  for (const use of state.foreign) {
    const id = use.containerId || use.podUid;
    const key = foreignKey(id, use.gpuUuid);
    foreign.set(key, {
      gpuUuid: use.gpuUuid,
      gpuIndex: use.gpuIndex,
      containerId: use.containerId,
      podUid: use.podUid,
      ...namedBy(nameOf, foreign.get(key) ?? { ...use, namespace: '', pod: '', container: '' }),
      ...secondsWith(foreign.get(key), grown.get(`${id} ${use.gpuIndex}`) ?? NONE),
      utilizationKnown: isComputeTold(use.gpuUuid),
      seenMs: sample.atMs,
    });
  }
  const { atMs, bootNs, round } = sample;
  const rows = { containers, assigned, foreign };
  removeOver(rows, isOver);
  const xids = countXids(before.xids, sample);
  return { atMs, bootNs, round, ...rows, xids, minutes, utilizationKnownMs: computeToldMs, processes };
}

type Names = Pick<ForeignTotals, 'namespace' | 'pod' | 'container'>;
/** As told now, else as they were: who has ended is soon known by nobody. */
function namedBy(nameOf: NameOf, of: Names & Pick<ForeignTotals, 'containerId' | 'podUid'>): Names {
  const told = nameOf(of.containerId, of.podUid);
  const isKnown = told && (told.container !== '' || (told.pod !== '' && of.container === ''));
  const { namespace, pod, container } = isKnown ? told : of;
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
 * What the grant had to hold: the driver's count, and managed memory, which is in no such count. The tenant writes the
 * ledger's figure, and the interposer grants no managed memory beyond the grant.
 */
function heldBytes({ usedBytes, limitBytes, ledger }: ContainerGpuState): number {
  return usedBytes + Math.min(ledger.managedBytes, Math.max(0, limitBytes - usedBytes));
}

const isGoingOn = ({ sinceMs }: Minute, nowMs: number): boolean => nowMs >= sinceMs && nowMs - sinceMs < PEAK_WINDOW_MS;

/** The mean share over a minute that has just passed, and the minute that goes on or begins. */
function meanOfMinute(minute: Minute | undefined, now: Minute): { readonly minute: Minute; readonly ratio?: number } {
  if (minute === undefined) return { minute: now };
  if (isGoingOn(minute, now.sinceMs)) return { minute };
  const passedMs = now.sinceMs - minute.sinceMs;
  // The clock was set back, or nobody sampled for long: no mean of that.
  if (passedMs < 0 || passedMs > 2 * PEAK_WINDOW_MS) return { minute: now };
  return { minute: now, ratio: Math.min(1, ((now.smSeconds - minute.smSeconds) * 1000) / passedMs) };
}
