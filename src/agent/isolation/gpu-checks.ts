// What is found out about GPUs with programs of our own on them: what a context costs, in what granules memory goes, and whether
// the fence holds. Owns when that is done, and what must wait for it.
import type { GpuStanding } from '../../api/gpu.ts';
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
  /** What an Xid holds against a GPU, a clause; undefined: nothing. */
  readonly faultOf: (gpuUuid: string) => string | undefined;
  readonly onProblem: (text: string) => void;
  readonly onChange: (text: string) => void;
  /** A clock that nobody sets, in milliseconds. */
  readonly clock: () => number;
};

export type GpuChecks = {
  /** Of the driver that is there now; before anything else is asked. */
  notice(driverVersion: string): void;
  /** Does what is due, beside the samples. Never throws. */
  look(sample: Sample): Promise<void>;
  /** Why nothing may be granted on these GPUs now; `byDriver`: the driver's own limit would hold it. */
  notYet(gpuUuids: readonly string[], byDriver: boolean): Refusal | undefined;
  /** What keeps others off a GPU, clauses. */
  standingOf(gpuUuid: string): GpuStanding;
  /** Were the driver's own limits seen to hold nobody on that GPU? */
  driverFailsOn(gpuUuid: string): boolean;
  fencesOf(gpuUuid: string): GpuFences;
  /** Of all of these GPUs; undefined: it is not known yet. */
  state(gpuUuids: readonly string[]): FenceState | undefined;
};

export function createGpuChecks(options: GpuChecksOptions): GpuChecks {
  const { configuration, native, tools, profiles, grants, onCalibrated, driver, faultOf, onProblem, onChange, clock } =
    options;
  let busy = false;
  let measuredOnce = false;
  const run = canaryProgram(tools, configuration.cudaLibrary);
  const { stateFolder, nvmlLibrary, interposerEngine } = configuration;
  const heldEngine = interposerEngine === 0 ? undefined : interposerEngine;
  const canaryOf = (trial: Trial) => createCanary({ trial, onProblem, onChange, clock });
  const interposer = canaryOf(interposerTrial({ native, run, stateFolder, profileOf: profiles.of, heldEngine }));
  const leftBehind = openCanaryCleanup({ tools, stateFolder, nvmlLibrary, onProblem, onChange, clock });
  const limits = canaryOf(driverLimitTrial({ native, tools, run, nvmlLibrary, profileOf: profiles.of, leftBehind }));
  const canaries = [
    ...(configuration.canary ? [interposer] : []),
    ...(configuration.canary && configuration.driverLimits ? [limits] : []),
  ];

  /** What nobody has, and nobody may take by the grant that he has. */
  const roomOn = (gpu: SampledGpu): number => {
    const ungranted = usableBytes(gpu) - grantedOn(grants(), gpu.uuid).memoryBytes;
    return Math.min(ungranted, gpu.freeBytes ?? ungranted);
  };

  /** With processes of our own on the GPUs, one at a time: what they cost, then whether the fence holds. */
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
      onProblem(`the GPUs could not be measured: ${(error as Error).message}`);
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
  /** Nothing is granted behind a fence that does not hold, or of which nobody knows yet. */
  const unfenced = (gpuUuids: readonly string[], byDriver: boolean): Refusal | undefined => {
    if (!configuration.canary) return undefined;
    for (const gpuUuid of gpuUuids) {
      const fences = fencesOf(gpuUuid);
      const why = unfencedBy(fences);
      if (why !== undefined) return { refused: `limits do not hold on ${gpuUuid}: ${why}` };
      if (isDriversAlone(fences) && !byDriver)
        return {
          refused: `limits do not hold on ${gpuUuid}, other than those of the driver, which would not be set for it: ${fences.interposer?.why}`,
        };
    }
    if (gpuUuids.some((gpuUuid) => fencesOf(gpuUuid).interposer === undefined))
      return { refused: 'whether the interposer holds on the GPUs is still being tried', later: true };
    return undefined;
  };

  // What a context costs must be in the page before the first one is made.
  const stillMeasuring = (gpuUuids: readonly string[]): Refusal | undefined => {
    const unmeasured = gpuUuids.some((gpuUuid) => profiles.of(gpuUuid).contextBytes === 0);
    if (!configuration.calibrate || !unmeasured || measuredOnce) return undefined;
    return { refused: 'the GPUs are still being measured', later: true };
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
