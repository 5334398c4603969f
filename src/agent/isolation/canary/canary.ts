// The canary of one isolation mechanism: on each GPU a small program that tries to exceed its grant under that
// mechanism. Decides when a trial runs and keeps the results; the trials are interposer-trial.ts and
// driver-limit-trial.ts, verdicts src/policy/isolation-check.ts.
import type { Logger } from '../../../common/logger.ts';
import type { CanaryVerdict } from '../../../policy/isolation-check.ts';

type CanaryGpu = {
  readonly gpuUuid: string;
  /** Memory that is neither granted nor in use. */
  readonly roomBytes: () => number;
};

/** An isolation mechanism that can be tried. */
export type Trial = {
  /** Identifies the mechanism's files: results for other files do not count. */
  identity(): string;
  /** Undefined: the driver was released during the trial. Throws where the trial cannot run. */
  tryGpu(gpu: CanaryGpu): Promise<CanaryVerdict | 'none' | undefined>;
  readonly messages: {
    readonly fails: (gpuUuid: string, why: string) => string;
    readonly untried: (gpuUuid: string, why: string) => string;
    readonly again: (gpuUuid: string) => string;
  };
};

type CanaryOptions = {
  readonly trial: Trial;
  readonly log: Pick<Logger, 'info' | 'warn'>;
  /** Monotonic, in milliseconds. */
  readonly clock: () => number;
};

type Canary = {
  /** The version of the loaded driver: results with another version, or with other files of ours, do not count any
   * more. */
  notice(driverVersion: string): void;
  /** Runs the trials that are due, one GPU after the other. Never throws. */
  check(gpus: readonly CanaryGpu[]): Promise<void>;
  /** Undefined: not tried yet with this driver and these files, or the GPU has no such mechanism. */
  of(gpuUuid: string): CanaryVerdict | undefined;
};

const RETRY_MS = 10_000;
/** The files of the mechanism are not checked with every sample. */
const LOOK_AGAIN_MS = 5000;

type Tried = { readonly key: string; readonly atMs: number; readonly found: CanaryVerdict | 'none' };
const verdictIn = (tried: Tried | undefined): CanaryVerdict | undefined =>
  tried === undefined || tried.found === 'none' ? undefined : tried.found;

export function createCanary({ trial, log, clock }: CanaryOptions): Canary {
  const tried = new Map<string, Tried>();
  let key = '';
  let asked = { driverVersion: '', atMs: Number.NEGATIVE_INFINITY };

  const attempt = async (gpu: CanaryGpu): Promise<CanaryVerdict | 'none' | undefined> => {
    try {
      return await trial.tryGpu(gpu);
    } catch (error) {
      return { result: 'untried', why: (error as Error).message };
    }
  };

  const report = (gpuUuid: string, verdict: CanaryVerdict, before: CanaryVerdict | undefined): void => {
    if (verdict.result === before?.result && verdict.why === before.why) return;
    if (verdict.result === 'fails') log.warn(trial.messages.fails(gpuUuid, verdict.why));
    else if (verdict.result === 'untried') log.warn(trial.messages.untried(gpuUuid, verdict.why));
    else if (before !== undefined) log.info(trial.messages.again(gpuUuid));
  };

  /** Files that cannot be read, as while they are replaced, count as changed. */
  const identity = (): string => {
    try {
      return trial.identity();
    } catch (error) {
      return (error as Error).message;
    }
  };

  return {
    notice(driverVersion) {
      const atMs = clock();
      if (driverVersion === asked.driverVersion && atMs - asked.atMs < LOOK_AGAIN_MS) return;
      asked = { driverVersion, atMs };
      key = `${driverVersion} ${identity()}`;
    },
    async check(gpus) {
      for (const gpu of gpus) {
        const of = key;
        const last = tried.get(gpu.gpuUuid);
        const before = verdictIn(last);
        const isSettled =
          last && (last.found === 'none' || before?.result === 'holds' || clock() - last.atMs < RETRY_MS);
        if (last?.key === of && isSettled) continue;
        const found = await attempt(gpu);
        if (!found) return;
        // A failure counts until a trial succeeds.
        const isUntried = found !== 'none' && found.result === 'untried';
        const kept = last?.key === of && before?.result === 'fails' && isUntried ? before : found;
        tried.set(gpu.gpuUuid, { key: of, atMs: clock(), found: kept });
        if (kept !== 'none') report(gpu.gpuUuid, kept, before);
      }
    },
    of(gpuUuid) {
      const last = tried.get(gpuUuid);
      const verdict = verdictIn(last);
      return last?.key === key || verdict?.result === 'fails' ? verdict : undefined;
    },
  };
}
