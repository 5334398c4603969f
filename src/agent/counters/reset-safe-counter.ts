// Counters of the sampler, which start at 0 with each sampler process, summed over all samplers of this agent: the sums
// never fall, and a count that the newest sampler does not have is kept.

import { isSamplerRestart, type Sample } from '../sampling/sample.ts';

type ResetSafeCounters = {
  /** The sum of a key, given what the sampler has counted now. Less than before: the sampler started counting again. */
  add(key: string, counted: number): number;
  /** Call with the round of each sample, before `add`: a new sampler may have counted as far as the one before it. */
  startSample(round: number): void;
  sums(): readonly (readonly [key: string, sum: number])[];
};

export function createResetSafeCounters(): ResetSafeCounters {
  const known = new Map<string, { counted: number; sum: number }>();
  let lastRound = 0;
  return {
    add(key, counted) {
      const before = known.get(key) ?? { counted: 0, sum: 0 };
      const sum = before.sum + (counted < before.counted ? counted : counted - before.counted);
      known.set(key, { counted, sum });
      return sum;
    },
    startSample(round) {
      if (isSamplerRestart(round, lastRound)) for (const [key, { sum }] of known) known.set(key, { counted: 0, sum });
      lastRound = round;
    },
    sums: () => [...known].map(([key, { sum }]) => [key, sum] as const),
  };
}

type SamplerTotals = {
  /** Call with each sample: the same sample with sums over all samplers in place of the newest sampler's counts. */
  apply(sample: Sample): Sample;
};

export function createSamplerTotals(): SamplerTotals {
  const gaps = createResetSafeCounters();
  const errors = createResetSafeCounters();
  return {
    apply(sample) {
      for (const counters of [gaps, errors]) counters.startSample(sample.round);
      for (const { call, code, count } of sample.errors) errors.add(`${code} ${call}`, count);
      return {
        ...sample,
        errors: errors.sums().map(([key, count]) => {
          const at = key.indexOf(' ');
          return { call: key.slice(at + 1), code: Number(key.slice(0, at)), count };
        }),
        gpus: sample.gpus.map((gpu) => ({ ...gpu, utilizationGaps: gaps.add(gpu.uuid, gpu.utilizationGaps) })),
      };
    },
  };
}
