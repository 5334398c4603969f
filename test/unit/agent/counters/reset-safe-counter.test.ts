// What samplers count of themselves, told as counters of the agent: whichever sampler it is, they go on.
import test from 'ava';
import { createSamplerCounts } from '../../../../src/agent/counters/reset-safe-counter.ts';
import type { NodeState } from '../../../../src/agent/usage/node-usage.ts';

type Counts = { readonly gaps: Readonly<Record<string, number>>; readonly errors: Readonly<Record<string, number>> };

/** Of a state only what is counted in it. */
const stateOf = ({ gaps, errors }: Counts, round: number) =>
  ({
    sample: { round, errors: Object.entries(errors).map(([call, count]) => ({ call, code: 999, count })) },
    devices: Object.entries(gaps).map(([uuid, utilizationGaps]) => ({ gpu: { uuid, utilizationGaps } })),
  }) as unknown as NodeState;
const countsOf = ({ sample, devices }: NodeState): Counts => ({
  gaps: Object.fromEntries(devices.map(({ gpu }) => [gpu.uuid, gpu.utilizationGaps])),
  errors: Object.fromEntries(sample.errors.map(({ call, count }) => [call, count])),
});

test('gaps and errors go on over a sampler that began again, and over a GPU that is gone for a while', (t) => {
  const counts = createSamplerCounts();
  const steps: readonly (readonly [told: Counts, published: Counts, round?: number])[] = [
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
  for (const [told, published, round = 5] of steps) t.deepEqual(countsOf(counts.see(stateOf(told, round))), published);
});
