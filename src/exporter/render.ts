// Renders a snapshot as a page of metrics: registers the metrics of all collectors with prom-client, collects, and
// writes the text format or OpenMetrics. A collector that throws costs only its own metrics;
// cotenant_exporter_collector_success says which. Runs in render-worker.ts, off the event loop that enforces.
import type { Snapshot } from '../agent/snapshot/snapshot.ts';
import { Counter, Gauge, Registry } from '../serving/prom-client.ts';
import { agent } from './collectors/agent.ts';
import {
  type Collector,
  counter,
  gauge,
  type Labels,
  type Metric,
  type Series,
  secondsOf,
} from './collectors/collector.ts';
import { container } from './collectors/container.ts';
import { containerCounters } from './collectors/container-counters.ts';
import { containerState } from './collectors/container-state.ts';
import { device } from './collectors/device.ts';
import { enforcement } from './collectors/enforcement.ts';
import { foreign } from './collectors/foreign.ts';
import { gpm } from './collectors/gpm.ts';
import { health } from './collectors/health.ts';

/** A full page keeps the series of the first ones. */
export const COLLECTORS: readonly Collector[] = [
  agent,
  device,
  health,
  gpm,
  enforcement,
  foreign,
  container,
  containerState,
  containerCounters,
];

export type Format = 'text' | 'openmetrics';
export const CONTENT_TYPES = {
  text: Registry.PROMETHEUS_CONTENT_TYPE,
  openmetrics: Registry.OPENMETRICS_CONTENT_TYPE,
} as const;

/** `problems`: the collectors that failed, and why. */
type Rendering = { readonly text: string; readonly problems: readonly string[] };
/** `own`: metrics of the node half's process, as process-metrics.ts writes them. */
type Renderer = (snapshot: Snapshot, format?: Format, own?: string) => Promise<Rendering>;

/** Ten times what a node with eight full GPUs has. */
const MAX_SERIES = 20_000;

/** Metrics of the page itself. */
export const PAGE_METRICS = {
  cotenant_exporter_series_dropped_total: counter('Series left out because the page was full.', ['collector']),
  cotenant_exporter_collector_success: gauge('1 if the collector succeeded for this page.', ['collector']),
  cotenant_exporter_collector_duration_seconds: gauge('Time that the collector took for this page.', ['collector']),
  cotenant_exporter_collector_last_success_timestamp_seconds: gauge(
    'Unix time of the last snapshot for which the collector succeeded.',
    ['collector'],
  ),
  cotenant_exporter_render_duration_seconds: gauge('Time that rendering the previous page took.'),
} as const;

type PromRegistry = Registry<(typeof CONTENT_TYPES)[Format]>;

function registryFor(format: Format): PromRegistry {
  const registry: PromRegistry = new Registry();
  registry.setContentType(CONTENT_TYPES[format]);
  return registry;
}

type Registered = {
  set(name: string, labels: Labels, value: number | undefined): void;
  /** Removes all series. */
  clear(): void;
};

function registerMetric(registry: PromRegistry, name: string, { type, help, labels }: Metric): Counter | Gauge {
  const config = { name, help, labelNames: [...labels], registers: [registry] };
  const metric = type === 'counter' ? new Counter(config) : new Gauge(config);
  // prom-client would add `_total` to the series of other counters in OpenMetrics, a name that no dashboard has.
  if (type === 'counter' && !name.endsWith('_total') && registry.contentType === CONTENT_TYPES.openmetrics)
    Object.assign(metric, { type: 'unknown' });
  return metric;
}

function register(registry: PromRegistry, declared: Readonly<Record<string, Metric>>): Registered {
  const metrics = new Map(Object.entries(declared).map(([name, of]) => [name, registerMetric(registry, name, of)]));
  const clear = () => {
    for (const [name, metric] of metrics) {
      metric.reset();
      if (declared[name]?.labels.length === 0) metric.remove(); // prom-client resets it to a series of 0
    }
  };
  clear();
  return {
    set(name, labels, value) {
      const metric = metrics.get(name);
      if (value === undefined || !metric) return;
      if (metric instanceof Counter) metric.inc(labels, value);
      else metric.set(labels, value);
    },
    clear,
  };
}

/** The metrics of another process, with the values that they had there. */
function registerOwn(registry: PromRegistry, own: string): void {
  for (const metric of own === '' ? [] : JSON.parse(own)) {
    const registered = { ...metric, get: async () => registered };
    registry.registerMetric(registered);
  }
}

/** For when there is no snapshot: before the first sample and without a driver library, or without the node half. */
export async function renderDown(format: Format, own = ''): Promise<string> {
  const registry = registryFor(format);
  register(registry, { cotenant_up: agent.metrics.cotenant_up }).set('cotenant_up', {}, 0);
  registerOwn(registry, own);
  return registry.metrics();
}

export function createRenderer(collectors: readonly Collector[], maxSeries = MAX_SERIES): Renderer {
  const dropped = new Map(collectors.map(({ name }) => [name, 0]));
  const lastSuccessMs = new Map<string, number>();
  let lastRenderSeconds: number | undefined;
  return async (snapshot, format = 'text', own = '') => {
    const startedMs = performance.now();
    const registry = registryFor(format);
    let left = maxSeries;
    const runs = collectors.map((collector) => {
      const metrics = register(registry, collector.metrics);
      const drop = (count: number) => void dropped.set(collector.name, (dropped.get(collector.name) ?? 0) + count);
      const series: Series<string> = {
        set(name, labels, value) {
          if (value === undefined || !Number.isFinite(value)) return;
          if (left === 0) return drop(1);
          left -= 1;
          metrics.set(name, labels, value);
        },
        drop,
      };
      return { collector, metrics, series, tookMs: 0, problem: undefined as string | undefined };
    });
    const run = (of: (typeof runs)[number], step: 'collect' | 'collectEnded') => {
      if (of.problem !== undefined) return;
      const beforeMs = performance.now();
      try {
        of.collector[step]?.(snapshot, of.series);
      } catch (error) {
        of.metrics.clear();
        of.problem = `the collector ${of.collector.name} failed: ${String(error)}`;
      }
      of.tookMs += performance.now() - beforeMs;
    };
    for (const of of runs) run(of, 'collect');
    // In reverse order: of what has ended, containers with a grant come before those without.
    for (const of of runs.toReversed()) run(of, 'collectEnded');

    const { set } = register(registry, PAGE_METRICS);
    for (const { collector, problem, tookMs } of runs) {
      const labels = { collector: collector.name };
      if (problem === undefined) lastSuccessMs.set(collector.name, snapshot.atMs);
      const succeededMs = lastSuccessMs.get(collector.name);
      set('cotenant_exporter_collector_success', labels, problem === undefined ? 1 : 0);
      set('cotenant_exporter_collector_duration_seconds', labels, tookMs / 1000);
      set('cotenant_exporter_collector_last_success_timestamp_seconds', labels, secondsOf(succeededMs));
      set('cotenant_exporter_series_dropped_total', labels, dropped.get(collector.name));
    }
    set('cotenant_exporter_render_duration_seconds', {}, lastRenderSeconds);
    registerOwn(registry, own);
    const text = await registry.metrics();
    lastRenderSeconds = (performance.now() - startedMs) / 1000;
    return { text, problems: runs.flatMap(({ problem }) => problem ?? []) };
  };
}
