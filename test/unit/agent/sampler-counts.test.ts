// What samplers count of themselves, told as counters of the agent: whichever sampler it is, they go on.
import test from 'ava';
import type { NodeState } from '../../../src/agent/node-state.ts';
import { createSamplerCounts } from '../../../src/agent/sampler-counts.ts';

type Counts = { readonly gaps: Readonly<Record<string, number>>; readonly errors: Readonly<Record<string, number>> };

/** Of a state only what is counted in it. */
const stateOf = ({ gaps, errors }: Counts) =>
  ({
    sample: { errors: Object.entries(errors).map(([call, count]) => ({ call, code: 999, count })) },
    devices: Object.entries(gaps).map(([uuid, utilizationGaps]) => ({ card: { uuid, utilizationGaps } })),
  }) as unknown as NodeState;
const countsOf = ({ sample, devices }: NodeState): Counts => ({
  gaps: Object.fromEntries(devices.map(({ card }) => [card.uuid, card.utilizationGaps])),
  errors: Object.fromEntries(sample.errors.map(({ call, count }) => [call, count])),
});

test('gaps and errors go on over a sampler that began again, and over a card that is gone for a while', (t) => {
  const counts = createSamplerCounts();
  const steps: readonly (readonly [told: Counts, published: Counts])[] = [
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
  ];
  for (const [told, published] of steps) t.deepEqual(countsOf(counts.see(stateOf(told))), published);
});
