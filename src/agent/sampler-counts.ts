// What a sampler counts from its own start, over all samplers that this agent has had: one that began again, and so has less than
// was counted before, adds to it. So no count falls, and none that the newest sampler has not is lost.
import type { NodeState } from './node-state.ts';

export type Growing = {
  /** The sum of what was counted under this key, with what has been counted now. */
  see(key: string, counted: number): number;
  sums(): readonly (readonly [key: string, sum: number])[];
};

export function createGrowing(): Growing {
  const known = new Map<string, { counted: number; sum: number }>();
  return {
    see(key, counted) {
      const before = known.get(key) ?? { counted: 0, sum: 0 };
      const sum = before.sum + (counted < before.counted ? counted : counted - before.counted);
      known.set(key, { counted, sum });
      return sum;
    },
    sums: () => [...known].map(([key, { sum }]) => [key, sum] as const),
  };
}

export type SamplerCounts = {
  /** With each sample: the same with the sums in the place of the newest sampler's own counts. */
  see(state: NodeState): NodeState;
};

export function createSamplerCounts(): SamplerCounts {
  const gaps = createGrowing();
  const errors = createGrowing();
  return {
    see(state) {
      for (const { call, code, count } of state.sample.errors) errors.see(`${code} ${call}`, count);
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
          card: { ...device.card, utilizationGaps: gaps.see(device.card.uuid, device.card.utilizationGaps) },
        })),
      };
    },
  };
}
