// Maintains grants after each published sample: writes the driver's corrections to limits pages, shrinks grants that
// were made smaller, ends grants of processes that have ended. A failure for one grant is reported, does not affect the
// others, and is tried again at the next sample.

import type { Logger } from '../common/logger.ts';
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
import { type Grant, isOfPod, logKeys } from './grants/grant.ts';
import type { LiveGrant } from './grants/live-grant.ts';
import type { Registry } from './grants/registry.ts';
import { reportedUsage, shrinkToUsage } from './grants/resize.ts';
import type { Feedback, LedgerReading, Native } from './os/addon.ts';
import { unifiedMount } from './os/cgroup.ts';
import { gpuWithProcessData, haveProcessData, type Sample, type SampledProcess } from './sampling/sample.ts';

export type ReadGrant = { readonly live: LiveGrant; readonly reading: LedgerReading };
/** Processes of a grant in this sample, by its id. */
export type ProcessesOf = (id: string) => readonly SampledProcess[];

export type GrantUpkeep = {
  after(sample: Sample, grants: readonly ReadGrant[], processesOf: ProcessesOf): void;
  /** The grant was resized at this time (CLOCK_BOOTTIME); earlier samples show its former amounts. */
  resized(id: string, atNs: number): void;
  /** False: no grant has this id. */
  takeDown(id: string): boolean;
};

export type GrantUpkeepOptions = Pick<LivenessChecks, 'ownPidNamespace' | 'isAlive'> & {
  readonly registry: Registry;
  readonly native: Native;
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

export function createGrantUpkeep(options: GrantUpkeepOptions): GrantUpkeep {
  const { registry, native, ownPidNamespace, isAlive, log } = options;
  const isAliveInside = insideSnapshot(native);
  const rounds = new Map<string, Round>();
  const watched = new Map<string, DoubleCountWindow>();
  /** The rows that were written to the limits page of a grant, by slot and GPU. */
  const written = new Map<string, Map<number, Feedback>>();
  const ending = new Map<string, number>();
  const justResized = new Map<string, number>();

  const trying = (grant: Grant, what: string, work: () => void): void => {
    try {
      work();
    } catch (error) {
      log.warn(`${what}: ${(error as Error).message}`, logKeys(grant));
    }
  };

  const writeFeedback = (
    sample: Sample,
    gpuReadings: ReadonlyMap<string, GpuReading>,
    { live, reading }: ReadGrant,
    living: LivenessChecks,
    processes: readonly SampledProcess[],
  ) => {
    const { id, gpus } = live.grant;
    const before = rounds.get(id);
    const gpuIndex = gpus.map(({ gpuUuid }) => gpuReadings.get(gpuUuid)?.index);
    const listsComplete = haveProcessData(sample, gpus);
    const after = roundOf(reading, living);
    const rows = written.get(id) ?? new Map<number, Feedback>();
    written.set(id, rows);
    const lastOf = ({ slot, gpu, stamp }: Pick<Feedback, 'slot' | 'gpu' | 'stamp'>): Feedback | undefined => {
      const last = rows.get(slot * gpus.length + gpu);
      return last?.stamp === stamp ? last : undefined;
    };
    const doubleCounted = gpus.map(({ gpuUuid }) => gpuReadings.get(gpuUuid)?.doubleCounted ?? NOT_DOUBLE_COUNTED);
    const news = feedbackOf(
      {
        before,
        after,
        sampledNs: sample.bootNs,
        processes,
        gpuIndex,
        listsComplete,
        doubleCounted,
        writtenResidualBytes: (row) => lastOf(row)?.residualBytes,
      },
      (entry) => !isSameFeedback(entry, lastOf(entry)),
    );
    registry.writeFeedback(live, news);
    for (const entry of news) rows.set(entry.slot * gpus.length + entry.gpu, entry);
    // Samples may queue up: a reading that is newer than this sample is still needed as `before` for the next one.
    if (!before || sample.bootNs > before.ledger.readNs) rounds.set(id, after);
  };

  /** A grant that was made smaller shrinks with the use of its processes until it has its new size. */
  const shrink = (sample: Sample, grant: Grant, processes: readonly SampledProcess[]): void => {
    // A sample that had begun before shows the former amounts.
    const resizedNs = justResized.get(grant.id);
    if (resizedNs !== undefined && sample.bootNs <= resizedNs) return;
    justResized.delete(grant.id);
    if (grant.gpus.every(({ heldBytes }) => heldBytes === undefined)) return;
    // By the driver's figures, because a forged ledger could claim the removed amount forever.
    const after = grant.gpus.map((gpu) => {
      const bytes = reportedUsage(gpu.gpuUuid, sample, processes);
      return bytes === undefined ? gpu : shrinkToUsage(gpu, bytes);
    });
    if (after.some((gpu, position) => gpu !== grant.gpus[position])) registry.resize(grant.id, after);
  };

  /** A process grant ends with its owner and all of its processes; a pod's grant when the kubelet unpublishes the
   * volume. */
  const sweep = ({ id, owner }: Grant, processes: readonly SampledProcess[]): void => {
    if (isOfPod(owner)) return;
    // The sample costs nothing; /proc is read only if the sample shows no process.
    const ended = processes.every((process) => process.gone) && !isAlive(owner.pid, owner.startTicks);
    const samples = ended ? (ending.get(id) ?? 0) + 1 : 0;
    ending.set(id, samples);
    if (samples >= SAMPLES_UNTIL_ENDED) takeDown(id);
  };

  const takeDown = (id: string): boolean => {
    const entry = registry.get(id);
    if (!entry) return false;
    registry.remove(id);
    removeGroup(entry.grant, unifiedMount());
    rounds.delete(id);
    ending.delete(id);
    justResized.delete(id);
    written.delete(id);
    return true;
  };

  return {
    after(sample, grants, processesOf) {
      const gpuReadings = readGpus(sample, watched);
      for (const entry of grants) {
        const { grant } = entry.live;
        const processes = processesOf(grant.id);
        const inside = isOfPod(grant.owner) ? { isAliveInside } : {};
        trying(grant, 'cannot write feedback to the limits page', () =>
          writeFeedback(sample, gpuReadings, entry, { ownPidNamespace, isAlive, ...inside }, processes),
        );
        trying(grant, 'cannot save the amount that the container released', () => shrink(sample, grant, processes));
        // Without process data of each GPU the grant's processes are unknown.
        if (!grant.gpus.every(({ gpuUuid }) => gpuReadings.get(gpuUuid)?.hasProcessData)) continue;
        trying(grant, 'cannot end the grant', () => sweep(grant, processes));
      }
      registry.repair();
      registry.renew();
    },
    resized: (id, atNs) => void justResized.set(id, atNs),
    takeDown,
  };
}
