// Entries of process lists that are no process's, for none can have their pid or it has changed hands, added up over all GPUs. The
// sampler counts them GPU by GPU: a GPU that a sample has not keeps what it had. So the sum only grows.
import type { SampledGpu } from '../sampling/sample.ts';
import { createGrowing } from './reset-safe-counter.ts';

export type Nobodys = {
  /** With each sample; the sum up to then. undefined: no GPU has been seen yet. */
  see(sample: {
    readonly round: number;
    readonly gpus: readonly Pick<SampledGpu, 'uuid' | 'nobodysEntries'>[];
  }): number | undefined;
};

export function createNobodys(): Nobodys {
  const ofGpus = createGrowing();
  return {
    see({ round, gpus }) {
      ofGpus.at(round);
      for (const { uuid, nobodysEntries = 0 } of gpus) ofGpus.see(uuid, nobodysEntries);
      const sums = ofGpus.sums();
      return sums.length === 0 ? undefined : sums.reduce((all, [, sum]) => all + sum, 0);
    },
  };
}
