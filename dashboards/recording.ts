// The recording rules: GPUs that each namespace is granted, uses and wastes, for sums over a month, and the difference
// between sampled and charged compute of each container. The expressions are those of `cotenant showback` and of the
// alert CotenantComputeDrift.
import { gpus, RECORDED, RECORDED_GPUS, usage } from '../src/cli/prometheus/gpu-hours.ts';
import { AMOUNTS, KINDS } from '../src/policy/chargeback.ts';
import { CONFIGURATION, type Configuration } from './lib/configuration.ts';
import { drift } from './lib/expressions.ts';
import { type MetricName, select } from './lib/metrics.ts';

/** Named after the alert's window. */
const RECORDED_DRIFT = 'container:cotenant_sm_drift:rate10m';

export function recordingRules({ job, computeDrift }: Configuration = CONFIGURATION) {
  const matcher = `job="${job}"`;
  const selectors = {
    of: (metric: string, ...more: readonly string[]) => select(metric as MetricName, matcher, ...more),
    ofGpu: (metric: string, ...more: readonly string[]) => select(metric as MetricName, matcher, ...more),
  };
  const now = usage(selectors, '5m');
  const rules = KINDS.flatMap((kind) =>
    AMOUNTS.map((amount) => ({ record: RECORDED[kind][amount], expr: now[kind][amount] })),
  );
  rules.push({ record: RECORDED_GPUS, expr: gpus(selectors) });
  const apart = { record: RECORDED_DRIFT, expr: drift(computeDrift.window, matcher) };
  return {
    groups: [
      { name: 'cotenant-showback', interval: '1m', rules },
      { name: 'cotenant-compute', interval: '1m', rules: [apart] },
    ],
  };
}
