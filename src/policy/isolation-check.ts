// What the canary's attempt to exceed a grant shows of the isolation mechanism it ran under, and what follows for the
// node. Pure.
import { MIB } from '../common/quantity.ts';

/** In a grant of its context and `ROOM_BYTES` the canary requests an amount that fits and one that does not. */
export const ROOM_BYTES = 64 * MIB;
export const WITHIN_BYTES = 2 * MIB;
export const BEYOND_BYTES = 65 * MIB;
/** The most that it holds where nothing refuses it, rounded up to granules, without its context. */
export const MOST_TAKEN_BYTES = 128 * MIB;

const OUT_OF_MEMORY = 2;

/** The canary program's output: result codes of the driver. */
export type CanaryFacts =
  | {
      readonly loaded: boolean;
      readonly within: number;
      /** By how the driver's function was looked up. */
      readonly beyond: Readonly<Record<string, number>>;
    }
  | { readonly loaded: boolean; readonly failed: string; readonly code: number };

/** `broken`: why it printed nothing. */
export type CanaryRun = CanaryFacts | { readonly broken: string };

/** `untried`: the check failed for another reason than the mechanism. */
type CanaryResult = 'holds' | 'fails' | 'untried';
/** `breaks`: under this mechanism programs also fail within their grants. */
export type CanaryVerdict = { readonly result: CanaryResult; readonly why: string; readonly breaks?: true };

const holds: CanaryVerdict = { result: 'holds', why: '' };
const fails = (why: string): CanaryVerdict => ({ result: 'fails', why });
const breaks = (why: string): CanaryVerdict => ({ result: 'fails', why, breaks: true });
const untried = (why: string): CanaryVerdict => ({ result: 'untried', why });

/**
 * `alone`: a run without the mechanism, if one was needed to distinguish a fault of the mechanism from one of the GPU.
 */
export function verdictOf(run: CanaryRun, alone?: CanaryRun): CanaryVerdict {
  if (!('broken' in run) && !run.loaded) return fails('the interposer is not in the process');
  return judged(run, alone, 'the interposer');
}

/** The same for the driver's limit, without the interposer; `alone`: a run without the limit. */
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

/** Is a run without the mechanism needed to find out what failed? */
export const isUnclear = (run: CanaryRun): boolean => 'broken' in run || 'failed' in run;

/** Results per mechanism of a GPU; absent: unknown, or the GPU has no such mechanism. */
export type GpuFences = {
  readonly interposer?: CanaryVerdict | undefined;
  readonly driver?: CanaryVerdict | undefined;
};

/** On this GPU only the driver's limits were seen to hold. */
export const isDriversAlone = ({ interposer, driver }: GpuFences): boolean =>
  interposer?.result === 'fails' && interposer.breaks !== true && driver?.result === 'holds';

/**
 * Why nothing may be granted on a GPU; undefined: a mechanism holds there, or it is unknown. An interposer under which
 * programs fail is in their way even where the driver's limits hold.
 */
export function unfencedBy(fences: GpuFences): string | undefined {
  const { interposer, driver } = fences;
  if (interposer?.result !== 'fails' || isDriversAlone(fences)) return undefined;
  return driver?.result === 'fails'
    ? `${interposer.why}; nor are the driver's limits enforced: ${driver.why}`
    : interposer.why;
}

/** The Node's condition. */
export type FenceState = {
  readonly status: 'True' | 'False' | 'Unknown';
  readonly reason: 'FencesHold' | 'FenceFails' | 'FenceNotTried';
  readonly message: string;
};

type GpuVerdict = GpuFences & { readonly gpuUuid: string };

/** Undefined: not all GPUs are checked yet, and no check has failed. */
export function fenceState(gpus: readonly GpuVerdict[]): FenceState | undefined {
  const lines = (why: (gpu: GpuVerdict) => string | undefined) =>
    gpus.flatMap((gpu) => {
      const text = why(gpu);
      return text === undefined ? [] : [`${gpu.gpuUuid}: ${text}`];
    });
  const failing = lines(unfencedBy);
  const unknown = lines(({ interposer }) => (interposer?.result === 'untried' ? interposer.why : undefined));
  // Another mechanism holds there.
  const weaker = lines((gpu) => {
    const { interposer, driver } = gpu;
    if (isDriversAlone(gpu))
      return `only by the driver's limits, because the interposer does not hold: ${interposer?.why}`;
    return driver?.result === 'fails' ? `not by the driver's limits: ${driver.why}` : undefined;
  });
  if (failing.length > 0) return { status: 'False', reason: 'FenceFails', message: failing.join('; ') };
  if (gpus.length === 0 || gpus.some(({ interposer }) => interposer === undefined)) return undefined;
  if (unknown.length > 0) return { status: 'Unknown', reason: 'FenceNotTried', message: unknown.join('; ') };
  const message = ['what exceeds a grant is refused', ...weaker].join('; ');
  return { status: 'True', reason: 'FencesHold', message };
}
