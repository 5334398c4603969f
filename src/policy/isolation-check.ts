// What a canary's try to exceed a grant proves of the fence that it was behind, and what follows for a node. Pure.
const MIB = 1024 * 1024;

/** What a canary asks for of a grant of its context and `ROOM_BYTES`: one that fits, one that cannot. */
export const ROOM_BYTES = 64 * MIB;
export const WITHIN_BYTES = 2 * MIB;
export const BEYOND_BYTES = 65 * MIB;
/** All that it holds at a time where nothing refuses it, its context aside; with what a granule rounds up. */
export const MOST_TAKEN_BYTES = 128 * MIB;

const OUT_OF_MEMORY = 2;

/** What the program prints: results of the driver. */
export type CanaryFacts =
  | {
      readonly loaded: boolean;
      readonly within: number;
      /** By the way that the driver's function was found. */
      readonly beyond: Readonly<Record<string, number>>;
    }
  | { readonly loaded: boolean; readonly failed: string; readonly code: number };

/** `broken`: it did not come to print anything, and why. */
export type CanaryRun = CanaryFacts | { readonly broken: string };

/** `untried`: by no fault of the fence's, as far as can be told. */
export type CanaryResult = 'holds' | 'fails' | 'untried';
/** `breaks`: of a fence that fails, that programs fail behind it, too, for what they may have. */
export type CanaryVerdict = { readonly result: CanaryResult; readonly why: string; readonly breaks?: true };

const holds: CanaryVerdict = { result: 'holds', why: '' };
const fails = (why: string): CanaryVerdict => ({ result: 'fails', why });
const breaks = (why: string): CanaryVerdict => ({ result: 'fails', why, breaks: true });
const untried = (why: string): CanaryVerdict => ({ result: 'untried', why });

/**
 * `alone`: the same program behind no fence, where it is needed to tell the fence's fault from the GPU's: it was not, where
 * the answer is clear.
 */
export function verdictOf(run: CanaryRun, alone?: CanaryRun): CanaryVerdict {
  if (!('broken' in run) && !run.loaded) return fails('the interposer is not in the process');
  return judged(run, alone, 'the interposer');
}

/** The same of the driver's own limit, which it was behind without the interposer; `alone`: behind no limit. */
export function driverVerdictOf(run: CanaryRun, alone?: CanaryRun): CanaryVerdict {
  if (!('broken' in run) && run.loaded) return untried('the interposer is in the process');
  return judged(run, alone, 'the limit');
}

function judged(run: CanaryRun, alone: CanaryRun | undefined, fence: string): CanaryVerdict {
  if ('within' in run) {
    const open = Object.entries(run.beyond).filter(([, code]) => code !== OUT_OF_MEMORY);
    const [[way, code] = ['', 0]] = open;
    if (open.length > 0)
      return fails(
        code === 0
          ? `a request beyond the grant succeeded (${way})`
          : `a request beyond the grant was answered with ${code} (${way})`,
      );
    if (run.within !== 0) return breaks(`a request within the grant was answered with ${run.within}`);
    return holds;
  }
  const what = 'broken' in run ? run.broken : `${run.failed} failed with ${run.code}`;
  if (alone && 'within' in alone) return breaks(`${what}; without ${fence} it works`);
  return untried(what);
}

/** Does it take a run without the fence to tell whose fault it is? */
export const isUnclear = (run: CanaryRun): boolean => 'broken' in run || 'failed' in run;

/** What was found of each fence of a GPU; absent: not known, or the GPU has no such fence. */
export type GpuFences = {
  readonly interposer?: CanaryVerdict | undefined;
  readonly driver?: CanaryVerdict | undefined;
};

/** Nothing but the driver was seen to hold containers on this GPU. */
export const isDriversAlone = ({ interposer, driver }: GpuFences): boolean =>
  interposer?.result === 'fails' && interposer.breaks !== true && driver?.result === 'holds';

/**
 * Why nothing may be granted on a GPU; undefined: some fence holds there, or nobody knows. What programs fail behind is in their
 * way whatever else holds them.
 */
export function unfencedBy(fences: GpuFences): string | undefined {
  const { interposer, driver } = fences;
  if (interposer?.result !== 'fails' || isDriversAlone(fences)) return undefined;
  return driver?.result === 'fails' ? `${interposer.why}; nor do those of the driver: ${driver.why}` : interposer.why;
}

/** For a condition: of the Node, or of whatever holds the GPUs. */
export type FenceState = {
  readonly status: 'True' | 'False' | 'Unknown';
  readonly reason: 'FencesHold' | 'FenceFails' | 'FenceNotTried';
  readonly message: string;
};

export type GpuVerdict = GpuFences & { readonly gpuUuid: string };

/** Undefined: it is not known of every GPU yet, and nothing is wrong so far. */
export function fenceState(gpus: readonly GpuVerdict[]): FenceState | undefined {
  const told = (why: (gpu: GpuVerdict) => string | undefined) =>
    gpus.flatMap((gpu) => {
      const text = why(gpu);
      return text === undefined ? [] : [`${gpu.gpuUuid}: ${text}`];
    });
  const failing = told(unfencedBy);
  const unknown = told(({ interposer }) => (interposer?.result === 'untried' ? interposer.why : undefined));
  // Another fence holds there.
  const weaker = told((gpu) => {
    const { interposer, driver } = gpu;
    if (isDriversAlone(gpu)) return `by the driver alone, for the interposer does not hold: ${interposer?.why}`;
    return driver?.result === 'fails' ? `not by the driver's limits: ${driver.why}` : undefined;
  });
  if (failing.length > 0) return { status: 'False', reason: 'FenceFails', message: failing.join('; ') };
  if (gpus.length === 0 || gpus.some(({ interposer }) => interposer === undefined)) return undefined;
  if (unknown.length > 0) return { status: 'Unknown', reason: 'FenceNotTried', message: unknown.join('; ') };
  const message = ['what exceeds a grant is refused', ...weaker].join('; ');
  return { status: 'True', reason: 'FencesHold', message };
}
