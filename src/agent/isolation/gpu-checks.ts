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
import { openCanaryCleanup } from './canary/cleanup.ts';
import { driverLimitTrial } from './canary/driver-limit-trial.ts';
import { interposerTrial } from './canary/interposer-trial.ts';
import { canaryProgram } from './canary/program.ts';
import type { IsolationSettings } from './settings.ts';

export type GpuChecksOptions = {
  readonly configuration: IsolationSettings;
  readonly native: Native;
  readonly tools: HelperRunner;
  readonly profiles: Profiles;
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

export type GpuChecks = {
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

export function createGpuChecks(options: GpuChecksOptions): GpuChecks {
  const { configuration, native, tools, profiles, grants, onCalibrated, driver, faultOf, log, clock } = options;
  let busy = false;
  let measuredOnce = false;
  const run = canaryProgram(tools, configuration.cudaLibrary);
  const { stateFolder, nvmlLibrary, interposerEngine } = configuration;
  const heldEngine = interposerEngine === 0 ? undefined : interposerEngine;
  const canaryOf = (trial: Trial) => createCanary({ trial, log, clock });
  const interposer = canaryOf(interposerTrial({ native, run, stateFolder, profileOf: profiles.of, heldEngine }));
  const leftBehind = openCanaryCleanup({ tools, stateFolder, nvmlLibrary, log, clock });
  const limits = canaryOf(driverLimitTrial({ native, tools, run, nvmlLibrary, profileOf: profiles.of, leftBehind }));
  const canaries = [
    ...(configuration.canary ? [interposer] : []),
    ...(configuration.canary && configuration.driverLimits ? [limits] : []),
  ];

  /** Memory that is neither in use nor granted. */
  const roomOn = (gpu: SampledGpu): number => {
    const ungranted = usableBytes(gpu) - grantedOn(grants(), gpu.uuid).memoryBytes;
    return Math.min(ungranted, gpu.freeBytes ?? ungranted);
  };

  /** One GPU at a time: calibration, then the canaries. */
  const look = async (sample: Sample): Promise<void> => {
    if (busy || sample.problem !== undefined) return;
    busy = true;
    const healthy = sample.gpus.filter((gpu) => gpu.healthy && isShareable(gpu) && faultOf(gpu.uuid) === undefined);
    try {
      await leftBehind.takeBack();
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
    interposer: interposer.of(gpuUuid),
    driver: limits.of(gpuUuid),
  });
  const unfencedOf = (gpuUuid: string): string | undefined => unfencedBy(fencesOf(gpuUuid));
  const faulty = (gpuUuids: readonly string[]): Refusal | undefined => {
    const [found] = gpuUuids.flatMap((gpuUuid) => {
      const why = faultOf(gpuUuid);
      return why === undefined ? [] : [`${gpuUuid} is not healthy: ${why}`];
    });
    return found === undefined ? undefined : { refused: found };
  };
  /** Nothing is granted where limits do not hold, or it is not known yet whether they do. */
  const unfenced = (gpuUuids: readonly string[], byDriver: boolean): Refusal | undefined => {
    if (!configuration.canary) return undefined;
    for (const gpuUuid of gpuUuids) {
      const fences = fencesOf(gpuUuid);
      const why = unfencedBy(fences);
      if (why !== undefined) return { refused: `limits are not enforced on ${gpuUuid}: ${why}` };
      if (isDriversAlone(fences) && !byDriver)
        return {
          refused: `on ${gpuUuid} only the driver enforces limits, which would not be set for this container: ${fences.interposer?.why}`,
        };
    }
    if (gpuUuids.some((gpuUuid) => fencesOf(gpuUuid).interposer === undefined))
      return { refused: 'the check whether the interposer enforces limits on the GPUs is still running', later: true };
    return undefined;
  };

  // The limits page must have the cost of a context before the first context is created.
  const stillMeasuring = (gpuUuids: readonly string[]): Refusal | undefined => {
    const unmeasured = gpuUuids.some((gpuUuid) => profiles.of(gpuUuid).contextBytes === 0);
    if (!configuration.calibrate || !unmeasured || measuredOnce) return undefined;
    return { refused: 'the calibration of the GPUs is still running', later: true };
  };

  return {
    notice(driverVersion) {
      for (const canary of canaries) canary.notice(driverVersion);
    },
    look,
    notYet: (gpuUuids, byDriver) => faulty(gpuUuids) ?? stillMeasuring(gpuUuids) ?? unfenced(gpuUuids, byDriver),
    standingOf(gpuUuid) {
      const [unfenced, fault] = [unfencedOf(gpuUuid), faultOf(gpuUuid)];
      return { ...(unfenced !== undefined && { unfenced }), ...(fault !== undefined && { fault }) };
    },
    driverFailsOn: (gpuUuid) => limits.of(gpuUuid)?.result === 'fails',
    fencesOf,
    state: (gpuUuids) => fenceState(gpuUuids.map((gpuUuid) => ({ gpuUuid, ...fencesOf(gpuUuid) }))),
  };
}
