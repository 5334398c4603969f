// When the next sample is taken: sooner while a container is over its grant, later while nothing on the node changes,
// which is most of the time and halves what the agent costs there.

import type { Sample, SampledGpu } from './sampling/sample.ts';
import type { NodeState } from './usage/node-usage.ts';

type IntervalSettings = {
  readonly intervalMs: number;
  readonly urgentIntervalMs: number;
  readonly silenceMs: number;
};

type SamplingInterval = {
  /** Milliseconds to the next sample, after the one of which `state` was made. */
  after(state: NodeState): number;
  /** Something was asked for that the next samples will show: as if the node had not been quiet. */
  wake(): number;
};

/** Samples in a row in which nothing is other than in the one before. */
const QUIET_SAMPLES = 10;
/** Between samples of a quiet node: two of the usual intervals. */
const REST = 2;
/** The driver of an H100 keeps what happened on a GPU for 14 s; the sampler counts on 10. */
const MOST_REST_MS = 5000;

const isIdle = (gpu: SampledGpu, before: SampledGpu | undefined): boolean =>
  gpu.uuid === before?.uuid &&
  gpu.usedBytes === before.usedBytes &&
  gpu.healthy === before.healthy &&
  gpu.processLists.length === before.processLists.length &&
  (gpu.utilizationPercent ?? 0) === 0;

function isQuiet(sample: Sample, before: Sample | undefined): boolean {
  return (
    before !== undefined &&
    sample.problem === undefined &&
    before.problem === undefined &&
    sample.processes === before.processes &&
    sample.gpus.length === before.gpus.length &&
    (sample.xids?.length ?? 0) === 0 &&
    sample.gpus.every((gpu, index) => isIdle(gpu, before.gpus[index]))
  );
}

const isUrgent = ({ containers }: NodeState): boolean =>
  containers.some(
    ({ verdict, gpus }) => verdict.severity !== 'within' || gpus.some(({ bypassBytes }) => bypassBytes > 0),
  );

export function createSamplingInterval({
  intervalMs,
  urgentIntervalMs,
  silenceMs,
}: IntervalSettings): SamplingInterval {
  // A sampler that rests must not pass for one that hangs.
  const restMs = Math.max(intervalMs, Math.min(REST * intervalMs, Math.floor(silenceMs / 2), MOST_REST_MS));
  let before: NodeState | undefined;
  let quiet = 0;
  return {
    after(state) {
      quiet = isQuiet(state.sample, before?.sample) ? quiet + 1 : 0;
      before = state;
      if (isUrgent(state)) return urgentIntervalMs;
      return quiet >= QUIET_SAMPLES ? restMs : intervalMs;
    },
    wake() {
      quiet = 0;
      return before && isUrgent(before) ? urgentIntervalMs : intervalMs;
    },
  };
}
