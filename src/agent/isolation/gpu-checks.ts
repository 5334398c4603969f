// Checks each GPU with programs of our own: calibration (what a context costs, in which granules memory is allocated)
// and the canaries (do limits hold). Decides when a check runs, and which grants wait for its result.

import type { GpuStanding } from '../../api/gpu.ts';
import type { Logger } from '../../common/logger.ts';
import {
  type FenceState,
  fenceState,
  type GpuFences,
  isDriversAlone,
  unfencedBy,
} from '../../policy/isolation-check.ts';
import type { Grant } from '../grants/grant.ts';
import type { Refusal } from '../grants/refusal.ts';
import { grantedOn } from '../grants/sums.ts';
import type { Native } from '../os/addon.ts';
import type { Driver } from '../os/driver-handle.ts';
import type { HelperRunner } from '../os/helper-process.ts';
import { isShareable, type Sample, type SampledGpu, usableBytes } from '../sampling/sample.ts';
import type { Profiles } from './calibration.ts';
import { createCanary, type Trial } from './canary/canary.ts';
import { driverLimitTrial } from './canary/driver-limit-trial.ts';
import { interposerTrial } from './canary/interposer-trial.ts';
import { canaryProgram } from './canary/program.ts';
import type { LimitRecords } from './driver-limits/records.ts';
import type { IsolationSettings } from './settings.ts';

type GpuChecksOptions = {
  readonly configuration: IsolationSettings;
  readonly native: Native;
  readonly tools: HelperRunner;
  readonly profiles: Profiles;
  readonly limitRecords: LimitRecords;
  readonly grants: () => readonly Grant[];
  /** A GPU was calibrated: limits pages carry what was measured. */
  readonly onCalibrated: () => void;
  readonly driver: Pick<Driver, 'releasedMs'>;
  /** The fault of a GPU as a clause; undefined: none. */
  readonly faultOf: (gpuUuid: string) => string | undefined;
  readonly log: Pick<Logger, 'info' | 'warn'>;
  /** Monotonic, in milliseconds. */
  readonly clock: () => number;
};

type GpuChecks = {
  /** With each sample, before the other functions: the version of the loaded driver. */
  notice(driverVersion: string): void;
  /** Runs the checks that are due, beside the samples. Never throws. */
  look(sample: Sample): Promise<void>;
  /** Why nothing may be granted on these GPUs now; `byDriver`: the driver's limit would be set for the container. */
  notYet(gpuUuids: readonly string[], byDriver: boolean): Refusal | undefined;
  /** What keeps new containers off a GPU, as clauses. */
  standingOf(gpuUuid: string): GpuStanding;
  /** Were the driver's limits seen not to hold on that GPU? */
  driverFailsOn(gpuUuid: string): boolean;
  fencesOf(gpuUuid: string): GpuFences;
  /** Over all of these GPUs; undefined: not known yet. */
  state(gpuUuids: readonly string[]): FenceState | undefined;
};

/** The mechanisms that can be tried, each with its canary. */
function createCanaries({ configuration, native, tools, profiles, limitRecords, log, clock }: GpuChecksOptions) {
  const { stateFolder, nvmlLibrary, cudaLibrary, interposerEngine } = configuration;
  const heldEngine = interposerEngine === 0 ? undefined : interposerEngine;
  const shared = { native, run: canaryProgram(tools, cudaLibrary), profileOf: profiles.of };
  const canaryOf = (trial: Trial) => createCanary({ trial, log, clock });
  return {
    interposer: canaryOf(interposerTrial({ ...shared, stateFolder, heldEngine })),
    driver: canaryOf(driverLimitTrial({ ...shared, tools, nvmlLibrary, records: limitRecords })),
  };
}

export function createGpuChecks(options: GpuChecksOptions): GpuChecks {
  const { configuration, profiles, onCalibrated, driver, faultOf, log } = options;
  let busy = false;
  let measuredOnce = false;
  const modeOf = (gpuUuid: string) => configuration.gpuModes[gpuUuid];
  const all = createCanaries(options);
  const canaries = [
    ...(configuration.canary ? [all.interposer] : []),
    ...(configuration.canary && configuration.driverLimits ? [all.driver] : []),
  ];

  /** Memory that is neither in use nor granted. */
  const roomOn = (gpu: SampledGpu): number => {
    const ungranted = usableBytes(gpu) - grantedOn(options.grants(), gpu.uuid).memoryBytes;
    return Math.min(ungranted, gpu.freeBytes ?? ungranted);
  };

  /** One GPU at a time: calibration, then the canaries. */
  const look = async (sample: Sample): Promise<void> => {
    if (busy || sample.problem !== undefined) return;
    busy = true;
    const isOurs = (gpu: SampledGpu) => isShareable(gpu) && modeOf(gpu.uuid) !== 'none';
    const healthy = sample.gpus.filter((gpu) => gpu.healthy && isOurs(gpu) && faultOf(gpu.uuid) === undefined);
    try {
      if (configuration.calibrate) {
        const uuids = healthy.map((gpu) => gpu.uuid);
        if (await profiles.measure(uuids, sample.driverVersion)) onCalibrated();
        if (driver.releasedMs() === undefined) measuredOnce = true;
      }
      for (const canary of canaries)
        await canary.check(healthy.map((gpu) => ({ gpuUuid: gpu.uuid, roomBytes: () => roomOn(gpu) })));
    } catch (error) {
      log.warn(`the GPU checks failed: ${(error as Error).message}`);
    } finally {
      busy = false;
    }
  };

  const fencesOf = (gpuUuid: string): GpuFences => ({
    interposer: all.interposer.of(gpuUuid),
    driver: all.driver.of(gpuUuid),
  });

  return {
    notice(driverVersion) {
      for (const canary of canaries) canary.notice(driverVersion);
    },
    look,
    notYet(gpuUuids, byDriver) {
      // Never tried there: a pod that was bound before its mode would wait for the check for ever.
      const left = gpuUuids.find((gpuUuid) => modeOf(gpuUuid) === 'none');
      if (left !== undefined) return { refused: `${left} is left to other software by the settings of the agent` };
      const gpus = gpuUuids.map((gpuUuid) => ({
        gpuUuid,
        fault: faultOf(gpuUuid),
        fences: configuration.canary ? fencesOf(gpuUuid) : undefined,
        isMeasured: !configuration.calibrate || measuredOnce || profiles.of(gpuUuid).contextBytes > 0,
      }));
      return notYetReason(gpus, byDriver);
    },
    standingOf(gpuUuid) {
      const [unfenced, fault, mode] = [unfencedBy(fencesOf(gpuUuid)), faultOf(gpuUuid), modeOf(gpuUuid)];
      return {
        ...(unfenced !== undefined && { unfenced }),
        ...(fault !== undefined && { fault }),
        ...(mode !== undefined && { mode }),
      };
    },
    driverFailsOn: (gpuUuid) => all.driver.of(gpuUuid)?.result === 'fails',
    fencesOf,
    state: (gpuUuids) => fenceState(gpuUuids.map((gpuUuid) => ({ gpuUuid, ...fencesOf(gpuUuid) }))),
  };
}

type CheckedGpu = {
  readonly gpuUuid: string;
  readonly fault: string | undefined;
  /** Undefined: the canary is off. */
  readonly fences: GpuFences | undefined;
  /** Its limits page can have the cost of a context before the first context is created. */
  readonly isMeasured: boolean;
};

/** Nothing is granted where limits do not hold, or it is not known yet whether they do. */
function notYetReason(gpus: readonly CheckedGpu[], byDriver: boolean): Refusal | undefined {
  for (const { gpuUuid, fault } of gpus)
    if (fault !== undefined) return { refused: `${gpuUuid} is not healthy: ${fault}` };
  if (!gpus.every(({ isMeasured }) => isMeasured))
    return { refused: 'the calibration of the GPUs is still running', later: true };
  for (const { gpuUuid, fences = {} } of gpus) {
    const why = unfencedBy(fences);
    if (why !== undefined) return { refused: `limits are not enforced on ${gpuUuid}: ${why}` };
    if (isDriversAlone(fences) && !byDriver)
      return {
        refused: `on ${gpuUuid} only the driver enforces limits, which would not be set for this container: ${fences.interposer?.why}`,
      };
  }
  return gpus.some(({ fences }) => fences && !fences.interposer)
    ? { refused: 'the check whether the interposer enforces limits on the GPUs is still running', later: true }
    : undefined;
}
