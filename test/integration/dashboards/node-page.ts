// A synthetic node as promtool's input: one series of every metric in dashboards/lib/metrics.ts, so that every query
// has data. Owns label values and numbers; counters rise, gauges stand. One GPU, one container that is over its limit,
// one stop; a driver that was replaced after 20 minutes. Webhook and scheduler have jobs of their own.
import { METRICS, type Metric, type MetricName } from '../../../dashboards/lib/metrics.ts';

export type InputSeries = { readonly series: string; readonly values: string };

export const MINUTES = 60;
const LABELS: Readonly<Record<string, string | readonly string[]>> = {
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
  decision: ['would_kill', 'evicted'],
  verb: ['bind', 'filter', 'preempt'],
  outcome: ['refused', 'internal', 'ok'],
  domain: ['sm', 'memory'],
  sensor: ['gpu', 'memory'],
  reason: ['reason-1', 'hw_thermal'],
  le: ['0.1', '+Inf'],
  resource: 'requests.cotenant.io/gpu-memory',
  type: ['used', 'hard'],
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
  return valuesOf(label)[0] ?? '';
}

const valuesOf = (label: string): readonly string[] => [LABELS[label] ?? `${label}-1`].flat();
const CONTROL_PLANE_JOBS = ['cotenant-webhook', 'cotenant-scheduler'];

export function nodePage(): readonly InputSeries[] {
  return Object.entries(METRICS).flatMap(([name, metric]) => series(name as MetricName, metric));
}

function series(name: MetricName, { type, labels }: Metric): readonly InputSeries[] {
  const jobs = name.startsWith('cotenant_') ? valuesOf('job') : [...valuesOf('job'), ...CONTROL_PLANE_JOBS];
  const all = ['instance', ...labels].reduce<readonly string[]>(
    (sets, label) => sets.flatMap((set) => valuesOf(label).map((value) => `${set}, ${label}="${value}"`)),
    jobs.map((job) => `job="${job}"`),
  );
  const values = type === 'counter' ? `0+30x${MINUTES}` : `${VALUES[name] ?? 1}x${MINUTES}`;
  if (name !== 'cotenant_device_info') return all.map((set) => ({ series: `${name}{${set}}`, values }));
  const before = (set: string) =>
    set.replace(`driver_version="${labelValue('driver_version')}"`, 'driver_version="old"');
  return all.flatMap((set) => [
    { series: `${name}{${before(set)}}`, values: `1x19 stale` },
    { series: `${name}{${set}}`, values: `_x20 1x${MINUTES - 20}` },
  ]);
}
