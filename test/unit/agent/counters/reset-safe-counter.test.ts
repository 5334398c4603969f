// Counts of samplers, summed over all samplers of an agent.
import test from 'ava';
import { createSamplerTotals } from '../../../../src/agent/counters/reset-safe-counter.ts';
import type { Sample } from '../../../../src/agent/sampling/sample.ts';

type Counts = { readonly gaps: Readonly<Record<string, number>>; readonly errors: Readonly<Record<string, number>> };

/** Of a sample only what is counted in it. */
const sampleOf = ({ gaps, errors }: Counts, round: number) =>
  ({
    round,
    errors: Object.entries(errors).map(([call, count]) => ({ call, code: 999, count })),
    gpus: Object.entries(gaps).map(([uuid, utilizationGaps]) => ({ uuid, utilizationGaps })),
  }) as unknown as Sample;
const countsOf = ({ errors, gpus }: Sample): Counts => ({
  gaps: Object.fromEntries(gpus.map(({ uuid, utilizationGaps }) => [uuid, utilizationGaps])),
  errors: Object.fromEntries(errors.map(({ call, count }) => [call, count])),
});

test('gaps and errors never fall over a restart of the sampler, or while a GPU is gone', (t) => {
  const counts = createSamplerTotals();
  const steps: readonly (readonly [given: Counts, published: Counts, round?: number])[] = [
    [
      { gaps: { a: 1, b: 0 }, errors: { one: 3 } },
      { gaps: { a: 1, b: 0 }, errors: { one: 3 } },
    ],
    [
      { gaps: { a: 2 }, errors: { one: 4, two: 1 } },
      { gaps: { a: 2 }, errors: { one: 4, two: 1 } },
    ],
    // Another sampler.
    [
      { gaps: { a: 0, b: 0 }, errors: {} },
      { gaps: { a: 2, b: 0 }, errors: { one: 4, two: 1 } },
    ],
    [
      { gaps: { a: 1, b: 3 }, errors: { one: 2 } },
      { gaps: { a: 3, b: 3 }, errors: { one: 6, two: 1 } },
    ],
    // One more, which has come as far as that one, or farther: by its first sample, and where that one was not used.
    [{ gaps: { a: 1, b: 3 }, errors: { one: 3 } }, { gaps: { a: 4, b: 6 }, errors: { one: 9, two: 1 } }, 1],
    [{ gaps: { a: 1, b: 4 }, errors: { one: 3 } }, { gaps: { a: 4, b: 7 }, errors: { one: 9, two: 1 } }, 9],
    [{ gaps: { a: 1, b: 4 }, errors: { one: 3 } }, { gaps: { a: 5, b: 11 }, errors: { one: 12, two: 1 } }, 2],
  ];
  for (const [given, published, round = 5] of steps)
    t.deepEqual(countsOf(counts.apply(sampleOf(given, round))), published);
});
