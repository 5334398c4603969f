// A synthetic node as promtool's input: one series of every metric in dashboards/lib/metrics.ts, so that every query
// has data. Owns label values and numbers; counters rise, gauges stand. One GPU, one container that is over its limit,
// one stop.
import { METRICS, type Metric, type MetricName } from '../../../dashboards/lib/metrics.ts';

export type InputSeries = { readonly series: string; readonly values: string };

export const MINUTES = 60;
const LABELS: Readonly<Record<string, string>> = {
  job: 'cotenant',
  instance: 'node-a',
  gpu: '0',
  gpu_uuid: 'GPU-0',
  parent_gpu: '0',
  namespace: 'team',
  pod: 'train',
  container: 'main',
  enforced: 'false',
  kind: 'managed',
  mode: 'shared',
  mig_mode: 'disabled',
  decision: 'would_kill',
  verb: 'bind',
};
const GIB = 2 ** 30;
const VALUES: Partial<Readonly<Record<MetricName, number>>> = {
  cotenant_container_memory_used_bytes: 5 * GIB,
  cotenant_container_memory_limit_bytes: 4 * GIB,
  cotenant_container_memory_bypass_bytes: GIB,
  cotenant_device_memory_total_bytes: 80 * GIB,
  cotenant_device_memory_allocated_bytes: 40 * GIB,
};

/** The value of a label on every series that has it. */
export function labelValue(label: string): string {
  return LABELS[label] ?? `${label}-1`;
}

export function nodePage(): readonly InputSeries[] {
  return Object.entries(METRICS).map(([name, metric]) => series(name as MetricName, metric));
}

function series(name: MetricName, { type, labels }: Metric): InputSeries {
  const pairs = ['job', 'instance', ...labels].map((label) => `${label}="${labelValue(label)}"`);
  const value = VALUES[name] ?? 1;
  return {
    series: `${name}{${pairs.join(', ')}}`,
    values: type === 'counter' ? `0+30x${MINUTES}` : `${value}x${MINUTES}`,
  };
}
