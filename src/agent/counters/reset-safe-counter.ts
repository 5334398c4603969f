// What a sampler counts from its own start, over all samplers that this agent has had: what another one counts adds to it. So no
// count falls, and none that the newest sampler has not is lost.

import { isSamplerRestart } from '../sampling/sample.ts';
import type { NodeState } from '../usage/node-usage.ts';

export type ResetSafeCounters = {
  /** The sum of what was counted under this key, with what has been counted now. Less than before: it began again. */
  add(key: string, counted: number): number;
  /** What is seen from now on is of a sample of this round: another sampler may have come as far as the one before it. */
  startSample(round: number): void;
  sums(): readonly (readonly [key: string, sum: number])[];
};

export function createResetSafeCounters(): ResetSafeCounters {
  const known = new Map<string, { counted: number; sum: number }>();
  let last = 0;
  return {
    add(key, counted) {
      const before = known.get(key) ?? { counted: 0, sum: 0 };
      const sum = before.sum + (counted < before.counted ? counted : counted - before.counted);
      known.set(key, { counted, sum });
      return sum;
    },
    startSample(round) {
      if (isSamplerRestart(round, last)) for (const [key, { sum }] of known) known.set(key, { counted: 0, sum });
      last = round;
    },
    sums: () => [...known].map(([key, { sum }]) => [key, sum] as const),
  };
}

export type SamplerCounts = {
  /** With each sample: the same with the sums in the place of the newest sampler's own counts. */
  see(state: NodeState): NodeState;
};

export function createSamplerCounts(): SamplerCounts {
  const gaps = createResetSafeCounters();
  const errors = createResetSafeCounters();
  return {
    see(state) {
      for (const counts of [gaps, errors]) counts.startSample(state.sample.round);
      for (const { call, code, count } of state.sample.errors) errors.add(`${code} ${call}`, count);
      return {
        ...state,
        sample: {
          ...state.sample,
          errors: errors.sums().map(([key, count]) => {
            const at = key.indexOf(' ');
            return { call: key.slice(at + 1), code: Number(key.slice(0, at)), count };
          }),
        },
        devices: state.devices.map((device) => ({
          ...device,
          gpu: { ...device.gpu, utilizationGaps: gaps.add(device.gpu.uuid, device.gpu.utilizationGaps) },
        })),
      };
    },
  };
}
