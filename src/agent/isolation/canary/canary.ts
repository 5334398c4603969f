// The canary of one fence: on each GPU, a small program of ours that tries to exceed what it may have behind that fence. Owns when
// that is tried and what was found; how it is tried is the fence's, what the answers prove is src/policy/isolation-check.ts.
import type { CanaryVerdict } from '../../../policy/isolation-check.ts';

export type CanaryGpu = {
  readonly gpuUuid: string;
  /** What neither grants nor programs have of it. */
  readonly roomBytes: () => number;
};

/** A fence that can be tried. */
export type Trial = {
  /** Of what it is made of: another one is another fence. */
  identity(): string;
  /** Undefined: it could not be gone on with, for the driver was given up meanwhile. Throws where it cannot be tried. */
  tryGpu(gpu: CanaryGpu): Promise<CanaryVerdict | 'none' | undefined>;
  readonly words: {
    readonly fails: (gpuUuid: string, why: string) => string;
    readonly untried: (gpuUuid: string, why: string) => string;
    readonly again: (gpuUuid: string) => string;
  };
};

export type CanaryOptions = {
  readonly trial: Trial;
  readonly onProblem: (text: string) => void;
  /** What was said of a GPU does not hold any more. */
  readonly onChange: (text: string) => void;
  /** A clock that nobody sets, in milliseconds. */
  readonly clock: () => number;
};

export type Canary = {
  /** Of the driver that is there now: what was said with another one, or with other files of ours, does not count any more. */
  notice(driverVersion: string): void;
  /** Tries where it is due, one GPU after the other. Never throws. */
  check(gpus: readonly CanaryGpu[]): Promise<void>;
  /** Undefined: not tried yet, with this driver and this fence, or there is no such fence. */
  of(gpuUuid: string): CanaryVerdict | undefined;
};

const RETRY_MS = 10_000;
/** Programs do not become others from second to second. */
const LOOK_AGAIN_MS = 5000;

type Tried = { readonly key: string; readonly atMs: number; readonly found: CanaryVerdict | 'none' };
const verdictIn = (tried: Tried | undefined): CanaryVerdict | undefined =>
  tried === undefined || tried.found === 'none' ? undefined : tried.found;

export function createCanary({ trial, onProblem, onChange, clock }: CanaryOptions): Canary {
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

  const tell = (gpuUuid: string, verdict: CanaryVerdict, before: CanaryVerdict | undefined): void => {
    if (verdict.result === before?.result && verdict.why === before.why) return;
    if (verdict.result === 'fails') onProblem(trial.words.fails(gpuUuid, verdict.why));
    else if (verdict.result === 'untried') onProblem(trial.words.untried(gpuUuid, verdict.why));
    else if (before !== undefined) onChange(trial.words.again(gpuUuid));
  };

  /** Files that cannot be looked at, as while they are replaced, are others than before. */
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
        // What was seen to fail fails until it is seen to hold.
        const isUntold = found !== 'none' && found.result === 'untried';
        const kept = last?.key === of && before?.result === 'fails' && isUntold ? before : found;
        tried.set(gpu.gpuUuid, { key: of, atMs: clock(), found: kept });
        if (kept !== 'none') tell(gpu.gpuUuid, kept, before);
      }
    },
    of(gpuUuid) {
      const last = tried.get(gpuUuid);
      const verdict = verdictIn(last);
      return last?.key === key || verdict?.result === 'fails' ? verdict : undefined;
    },
  };
}
