// Entries of process lists that are no process's, for none can have their pid or it has changed hands, added up over all GPUs. The
// sampler counts them GPU by GPU: a GPU that a sample has not keeps what it had. So the sum only grows.
import type { SampledGpu } from '../sampling/sample.ts';
import { createResetSafeCounters } from './reset-safe-counter.ts';

export type InvalidPidCount = {
  /** With each sample; the sum up to then. undefined: no GPU has been seen yet. */
  update(sample: {
    readonly round: number;
    readonly gpus: readonly Pick<SampledGpu, 'uuid' | 'invalidPidEntries'>[];
  }): number | undefined;
};

export function createInvalidPidCount(): InvalidPidCount {
  const ofGpus = createResetSafeCounters();
  return {
    update({ round, gpus }) {
      ofGpus.startSample(round);
      for (const { uuid, invalidPidEntries = 0 } of gpus) ofGpus.add(uuid, invalidPidEntries);
      const sums = ofGpus.sums();
      return sums.length === 0 ? undefined : sums.reduce((all, [, sum]) => all + sum, 0);
    },
  };
}
