// Counts entries of NVML's process lists whose PID is invalid or was reused by another process, over all GPUs. The
// sampler counts them by GPU; a GPU that is missing in a sample keeps its count, so the sum never falls.
import type { SampledGpu } from '../sampling/sample.ts';
import { createResetSafeCounters } from './reset-safe-counter.ts';

type InvalidPidCount = {
  /** Call with each sample; the sum so far. Undefined: there was no GPU yet. */
  update(sample: {
    readonly round: number;
    readonly gpus: readonly Pick<SampledGpu, 'uuid' | 'invalidPidEntries'>[];
  }): number | undefined;
};

export function createInvalidPidCount(): InvalidPidCount {
  const counters = createResetSafeCounters();
  return {
    update({ round, gpus }) {
      counters.startSample(round);
      for (const { uuid, invalidPidEntries = 0 } of gpus) counters.add(uuid, invalidPidEntries);
      const sums = counters.sums();
      return sums.length === 0 ? undefined : sums.reduce((all, [, sum]) => all + sum, 0);
    },
  };
}
