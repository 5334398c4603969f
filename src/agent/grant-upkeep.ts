// Maintains grants after each published sample: writes the driver's corrections to limits pages, shrinks grants that
// were made smaller, ends grants of processes that have ended. A failure for one grant is reported, does not affect the
// others, and is tried again at the next sample.

import type { Logger } from '../common/logger.ts';
import { attempt } from '../common/result.ts';
import type { GrantMounts } from './attribution/grant-mounts.ts';
import { insideSnapshot } from './attribution/pid-namespaces.ts';
import { removeGroup } from './enforcement/targets.ts';
import {
  type DoubleCounted,
  feedbackOf,
  type LivenessChecks,
  NOT_DOUBLE_COUNTED,
  type Round,
  roundOf,
} from './grants/driver-feedback.ts';
import { type Grant, isOfContainers, isOfPod, isOfProcess, logKeys } from './grants/grant.ts';
import type { LiveGrant } from './grants/live-grant.ts';
import type { Registry } from './grants/registry.ts';
import { reportedUsage, shrinkToUsage } from './grants/resize.ts';
import type { Feedback, LedgerReading, Native } from './os/addon.ts';
import { unifiedMount } from './os/cgroup.ts';
import { gpuWithProcessData, haveProcessData, type Sample, type SampledProcess } from './sampling/sample.ts';

export type ReadGrant = { readonly live: LiveGrant; readonly reading: LedgerReading };
/** Processes of a grant in this sample, by its id. */
type ProcessesOf = (id: string) => readonly SampledProcess[];

type GrantUpkeep = {
  after(sample: Sample, grants: readonly ReadGrant[], processesOf: ProcessesOf): void;
  /** The grant was resized at this time (CLOCK_BOOTTIME); earlier samples show its former amounts. */
  resized(id: string, atNs: number): void;
  /** False: no grant has this id. */
  takeDown(id: string): boolean;
};

type GrantUpkeepOptions = Pick<LivenessChecks, 'ownPidNamespace' | 'isAlive'> & {
  readonly registry: Registry;
  readonly native: Native;
  /** Whether containers have a grant. */
  readonly mounts: Pick<GrantMounts, 'held'>;
  readonly log: Pick<Logger, 'warn'>;
};

/** A process grant ends after this many samples without its owner and without any process. */
const SAMPLES_UNTIL_ENDED = 2;

type GpuReading = { readonly index: number; readonly hasProcessData: boolean; readonly doubleCounted: DoubleCounted };

/** Memory must be counted twice for this long to count as steady. */
const STEADY_NS = 10e9;

/** Memory of one GPU that was counted twice, by sample, within the last `STEADY_NS`; `sinceNs`: the first sample
 * ever. */
type DoubleCountWindow = {
  readonly sinceNs: number;
  readonly measurements: readonly { readonly atNs: number; readonly bytes: number }[];
};

function addMeasurement(before: DoubleCountWindow | undefined, atNs: number, bytes: number): DoubleCountWindow {
  const measurements = (before?.measurements ?? []).filter((entry) => atNs - entry.atNs < STEADY_NS);
  // One entry is enough for a run of samples without double counting.
  const isAsBefore = bytes === 0 && measurements.length === 1 && measurements[0]?.bytes === 0;
  return {
    sinceNs: before?.sinceNs ?? atNs,
    measurements: isAsBefore ? [{ atNs, bytes }] : [...measurements, { atNs, bytes }],
  };
}

function readGpus(sample: Sample, windows: Map<string, DoubleCountWindow>): ReadonlyMap<string, GpuReading> {
  const listed = new Map<number, number>();
  for (const { gpus } of sample.processes) {
    for (const use of gpus) if (use.listed) listed.set(use.gpu, (listed.get(use.gpu) ?? 0) + (use.bytes ?? 0));
  }
  return new Map(
    sample.gpus.map((gpu) => {
      const { uuid, index, usedBytes } = gpu;
      const bytes = usedBytes === undefined ? 0 : Math.max(0, (listed.get(index) ?? 0) - usedBytes);
      const { sinceNs, measurements } = addMeasurement(windows.get(uuid), sample.bootNs, bytes);
      windows.set(uuid, { sinceNs, measurements });
      const steadyBytes = Math.min(...measurements.map((entry) => entry.bytes));
      const doubleCounted = { bytes, steadyBytes, isSteady: sample.bootNs - sinceNs >= STEADY_NS };
      return [uuid, { index, hasProcessData: gpuWithProcessData(sample, uuid) === gpu, doubleCounted }];
    }),
  );
}

/** Of the same row and stamp. */
const isSameFeedback = (one: Feedback, other: Feedback | undefined): boolean =>
  one.residualBytes === other?.residualBytes &&
  one.releasedBytes === other.releasedBytes &&
  one.signature === other.signature &&
  one.deadStamp === other.deadStamp;

/** What is kept of one grant from sample to sample. */
type Kept = {
  /** The reading of its ledger before this one. */
  round: Round | undefined;
  /** The rows that were written to its limits page, by slot and GPU. */
  readonly rows: Map<number, Feedback>;
  samplesWithoutOwner: number;
  /** When it was resized, until a sample shows its new amounts. */
  resizedNs: number | undefined;
};
const nothingKept = (): Kept => ({ round: undefined, rows: new Map(), samplesWithoutOwner: 0, resizedNs: undefined });

/** What one sample shows of one grant. */
type Shown = {
  readonly sample: Sample;
  readonly gpuReadings: ReadonlyMap<string, GpuReading>;
  readonly processes: readonly SampledProcess[];
  readonly living: LivenessChecks;
  /** Of a grant of containers. */
  readonly isHeld: (id: string) => boolean;
};

/** The rows of a grant's feedback that its limits page does not have yet, and this reading of its ledger. */
function newFeedback({ live, reading }: ReadGrant, { round, rows }: Kept, shown: Shown) {
  const { sample, gpuReadings, processes, living } = shown;
  const { gpus } = live.grant;
  const lastOf = ({ slot, gpu, stamp }: Pick<Feedback, 'slot' | 'gpu' | 'stamp'>): Feedback | undefined => {
    const last = rows.get(slot * gpus.length + gpu);
    return last?.stamp === stamp ? last : undefined;
  };
  const after = roundOf(reading, living);
  const input = {
    before: round,
    after,
    sampledNs: sample.bootNs,
    processes,
    gpuIndex: gpus.map(({ gpuUuid }) => gpuReadings.get(gpuUuid)?.index),
    listsComplete: haveProcessData(sample, gpus),
    doubleCounted: gpus.map(({ gpuUuid }) => gpuReadings.get(gpuUuid)?.doubleCounted ?? NOT_DOUBLE_COUNTED),
    writtenResidualBytes: (row: Parameters<typeof lastOf>[0]) => lastOf(row)?.residualBytes,
  };
  return { after, news: feedbackOf(input, (entry) => !isSameFeedback(entry, lastOf(entry))) };
}

/** The GPUs of a grant that was made smaller, by what its processes use now. The same list where nothing changed. */
function shrunkGpus({ gpus }: Grant, sample: Sample, processes: readonly SampledProcess[]): Grant['gpus'] {
  if (gpus.every(({ heldBytes }) => heldBytes === undefined)) return gpus;
  // By the driver's figures, because a forged ledger could claim the removed amount forever.
  const after = gpus.map((gpu) => {
    const bytes = reportedUsage(gpu.gpuUuid, sample, processes);
    return bytes === undefined ? gpu : shrinkToUsage(gpu, bytes);
  });
  return after.some((gpu, position) => gpu !== gpus[position]) ? after : gpus;
}

export function createGrantUpkeep(options: GrantUpkeepOptions): GrantUpkeep {
  const { registry, native, mounts, ownPidNamespace, isAlive, log } = options;
  const isAliveInside = insideSnapshot(native);
  const windows = new Map<string, DoubleCountWindow>();
  const kept = new Map<string, Kept>();
  const keptOf = (id: string): Kept => {
    const found = kept.get(id) ?? nothingKept();
    kept.set(id, found);
    return found;
  };

  const writeFeedback = (entry: ReadGrant, own: Kept, shown: Shown) => {
    const { after, news } = newFeedback(entry, own, shown);
    registry.writeFeedback(entry.live, news);
    const { length } = entry.live.grant.gpus;
    for (const row of news) own.rows.set(row.slot * length + row.gpu, row);
    // Samples may queue up: a reading that is newer than this sample is still needed as `before` for the next one.
    if (!own.round || shown.sample.bootNs > own.round.ledger.readNs) own.round = after;
  };

  const shrink = (grant: Grant, own: Kept, { sample, processes }: Shown): void => {
    // A sample that had begun before shows the former amounts.
    if (own.resizedNs !== undefined && sample.bootNs <= own.resizedNs) return;
    own.resizedNs = undefined;
    const after = shrunkGpus(grant, sample, processes);
    if (after !== grant.gpus) registry.resize(grant.id, after);
  };

  /** A process grant ends with its owner and all of its processes, that of a container with its starter and the
   * container; a pod's grant when the kubelet unpublishes the volume. */
  const sweep = ({ id, owner }: Grant, own: Kept, { processes, isHeld }: Shown): void => {
    if (isOfPod(owner)) return;
    const root = isOfContainers(owner) ? owner.starter : owner;
    if (root === undefined) return; // a slice
    // The sample costs nothing; /proc is read only if the sample shows no process.
    const hasEnded =
      processes.every((process) => process.gone) &&
      !isAlive(root.pid, root.startTicks) &&
      !(isOfContainers(owner) && isHeld(id));
    own.samplesWithoutOwner = hasEnded ? own.samplesWithoutOwner + 1 : 0;
    if (own.samplesWithoutOwner >= SAMPLES_UNTIL_ENDED) takeDown(id);
  };

  const takeDown = (id: string): boolean => {
    const entry = registry.get(id);
    if (!entry) return false;
    registry.remove(id);
    removeGroup(entry.grant, unifiedMount());
    kept.delete(id);
    return true;
  };

  return {
    after(sample, grants, processesOf) {
      const gpuReadings = readGpus(sample, windows);
      // One pass over /proc for all grants of this sample, if one of them needs it.
      let held: ReadonlySet<string> | undefined;
      const isHeld = (id: string): boolean => {
        held ??= mounts.held(grants.flatMap(({ live: { grant } }) => (isOfContainers(grant.owner) ? [grant.id] : [])));
        return held.has(id);
      };
      for (const entry of grants) {
        const { grant } = entry.live;
        const own = keptOf(grant.id);
        const living = { ownPidNamespace, isAlive, ...(!isOfProcess(grant.owner) && { isAliveInside }) };
        const shown = { sample, gpuReadings, processes: processesOf(grant.id), living, isHeld };
        const trying = (what: string, work: () => void): void => {
          const done = attempt(work);
          if (!done.ok) log.warn(`${what}: ${done.error}`, logKeys(grant));
        };
        trying('cannot write feedback to the limits page', () => writeFeedback(entry, own, shown));
        trying('cannot save the amount that the container released', () => shrink(grant, own, shown));
        // Without process data of each GPU the grant's processes are unknown.
        if (!grant.gpus.every(({ gpuUuid }) => gpuReadings.get(gpuUuid)?.hasProcessData)) continue;
        trying('cannot end the grant', () => sweep(grant, own, shown));
      }
      registry.repair();
      registry.renew();
    },
    resized(id, atNs) {
      keptOf(id).resizedNs = atNs;
    },
    takeDown,
  };
}
