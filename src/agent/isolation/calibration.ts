// Calibration: measures per GPU and driver version what a context costs, with a process of its own, and stores it in
// profiles.json. Without it the interposer charges a context only after the agent has seen it in a sample.
import { join } from 'node:path';
import * as v from 'valibot';
import { type Backoff, createBackoff } from '../../common/backoff.ts';
import type { Logger } from '../../common/logger.ts';
import { whole } from '../../common/schema.ts';
import { openStateFile, type StateFormat } from '../../common/state-file.ts';
import { type GpuProfile, UNMEASURED } from '../grants/live-grant.ts';
import type { HelperRunner } from '../os/helper-process.ts';

export type Profiles = {
  of(gpuUuid: string): GpuProfile;
  /** Measures the GPUs that were not measured with this driver and are due; true when anything is new. */
  measure(gpus: readonly string[], driverVersion: string): Promise<boolean>;
};

type Stored = GpuProfile & { readonly driverVersion: string };
const TIMEOUT_MS = 60_000;
/** After a failed calibration: each takes a context on the GPU, beside the containers. */
const RETRY_MS = { firstMs: 1000, mostMs: 300_000 };

type ProfilesOptions = {
  readonly stateFolder: string;
  readonly libraries: { readonly cuda: string; readonly nvml: string };
  readonly tools: Pick<HelperRunner, 'run' | 'isDriverReleased'>;
  readonly log: Pick<Logger, 'warn'>;
  /** Monotonic, in milliseconds. */
  readonly clock: () => number;
  /** From 0 to 1. */
  readonly random?: () => number;
};

type Failure = { readonly driverVersion: string; readonly backoff: Backoff; readonly againMs: number };

const bytes = whole(0, Number.MAX_SAFE_INTEGER);
const profile = v.object({
  contextBytes: bytes,
  granuleBytes: bytes,
  releasesLate: v.boolean(),
  usableBytes: v.exactOptional(bytes),
  driverVersion: v.string(),
});
/** By the GPU's UUID. A GPU whose entry is incomplete is measured again. */
const PROFILES_FORMAT: StateFormat<Readonly<Record<string, Stored>>> = {
  version: undefined,
  schema: v.pipe(
    v.record(v.string(), v.unknown()),
    v.transform((entries) => {
      const read = Object.entries(entries).map(([gpuUuid, entry]) => [gpuUuid, v.safeParse(profile, entry)] as const);
      return Object.fromEntries(read.flatMap(([gpuUuid, { success, output }]) => (success ? [[gpuUuid, output]] : [])));
    }),
  ),
};

export function openProfiles(options: ProfilesOptions): Profiles {
  const { stateFolder, libraries, tools, log, clock, random } = options;
  const file = openStateFile(join(stateFolder, 'profiles.json'), PROFILES_FORMAT, {
    lost: 'the GPUs are calibrated again',
    log,
  });
  let stored = file.found ?? {};
  let isKept = true;
  const failures = new Map<string, Failure>();

  const isDue = (gpuUuid: string, driverVersion: string): boolean => {
    if (stored[gpuUuid]?.driverVersion === driverVersion) return false;
    const failure = failures.get(gpuUuid);
    return failure?.driverVersion !== driverVersion || clock() >= failure.againMs;
  };

  const noteFailure = (gpuUuid: string, driverVersion: string): void => {
    const before = failures.get(gpuUuid);
    const isSame = before?.driverVersion === driverVersion;
    const backoff = isSame ? before.backoff : createBackoff({ ...RETRY_MS, ...(random && { random }) });
    failures.set(gpuUuid, { driverVersion, backoff, againMs: clock() + backoff.nextMs() });
  };

  const measureOne = async (gpuUuid: string, driverVersion: string): Promise<boolean> => {
    const { LD_PRELOAD: _, ...env } = process.env;
    const answer = await tools.run({
      program: 'cotenant-calibrate',
      args: ['--cuda', libraries.cuda, '--nvml', libraries.nvml],
      env: { ...env, CUDA_VISIBLE_DEVICES: gpuUuid },
      timeoutMs: TIMEOUT_MS,
    });
    if (!answer) return false;
    try {
      if (answer.problem !== undefined) throw new Error(answer.stderr.trim() || answer.problem);
      const found = JSON.parse(answer.stdout) as GpuProfile & { uuid: string };
      if (found.uuid !== gpuUuid) throw new Error(`the program measured ${found.uuid}`);
      const { uuid: _, ...measured } = found;
      stored = { ...stored, [gpuUuid]: { ...measured, driverVersion } };
      failures.delete(gpuUuid);
      return true;
    } catch (error) {
      noteFailure(gpuUuid, driverVersion);
      const text = (error as Error).message;
      log.warn(
        `${gpuUuid} could not be calibrated, so contexts on it are charged only after a sample shows them: ${text}`,
      );
      return false;
    }
  };

  /** Profiles that cannot be stored hold until this agent ends; storing is tried again at the next sample. */
  const keep = (): void => {
    try {
      file.write(stored);
      isKept = true;
    } catch (error) {
      log.warn(`cannot store GPU profiles for the next agent: ${(error as Error).message}`);
      isKept = false;
    }
  };

  return {
    of: (gpuUuid) => stored[gpuUuid] ?? UNMEASURED,
    async measure(gpus, driverVersion) {
      let fresh = false;
      for (const gpuUuid of gpus) {
        if (tools.isDriverReleased() || !isDue(gpuUuid, driverVersion)) continue;
        fresh = (await measureOne(gpuUuid, driverVersion)) || fresh;
      }
      if (fresh || !isKept) keep();
      return fresh;
    },
  };
}
