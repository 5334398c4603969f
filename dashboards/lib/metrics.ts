// The metrics that boards and alert rules may use, with their types and labels: those that the collectors declare, and
// some of Prometheus, of kube-state-metrics, of the agent's process, of the webhook and of the scheduler. A name that nothing serves does not compile.
import { agent } from '../../src/exporter/collectors/agent.ts';
import { counter, gauge } from '../../src/exporter/collectors/collector.ts';
import { container } from '../../src/exporter/collectors/container.ts';
import { containerCounters } from '../../src/exporter/collectors/container-counters.ts';
import { containerState } from '../../src/exporter/collectors/container-state.ts';
import { device } from '../../src/exporter/collectors/device.ts';
import { enforcement } from '../../src/exporter/collectors/enforcement.ts';
import { foreign } from '../../src/exporter/collectors/foreign.ts';
import { gpm } from '../../src/exporter/collectors/gpm.ts';
import { health } from '../../src/exporter/collectors/health.ts';
import { processes } from '../../src/exporter/collectors/process.ts';
import { PAGE_METRICS } from '../../src/exporter/render.ts';

export type { Metric } from '../../src/exporter/collectors/collector.ts';
export type MetricName = keyof typeof METRICS;

/** Of the webhook and of the scheduler's extender, which serve pages of their own. */
export const CONTROL_PLANE_METRICS = {
  cotenant_webhook_reviews_total: counter('Admission reviews by outcome.', ['route', 'outcome']),
  cotenant_webhook_refusals_total: counter('Refused reviews by what was wrong.', ['kind', 'field']),
  cotenant_webhook_review_duration_seconds_bucket: counter('Time of a review.', ['le', 'route']),
  cotenant_webhook_certificate_loads_total: counter('Certificates loaded or refused.', ['result']),
  cotenant_webhook_certificate_not_after_timestamp_seconds: gauge('When the serving certificate expires.'),
  cotenant_webhook_live_rules_valid: gauge('0 while the ConfigMap of live rules is wrong.'),
  cotenant_scheduler_leader: gauge('1 while this replica may bind.'),
  cotenant_scheduler_nodes: gauge('Nodes that share GPUs.'),
  cotenant_scheduler_granted_pods: gauge('Bound pods that hold a grant.'),
  cotenant_scheduler_bindings_in_flight: gauge('Bindings that the watch has not shown yet.'),
  cotenant_scheduler_overcommitted_gpus: gauge('GPUs on which more is granted than there is.'),
  cotenant_scheduler_decisions_total: counter('Calls of kube-scheduler by outcome.', ['verb', 'outcome']),
  cotenant_scheduler_decision_duration_seconds_bucket: counter('Time of a call.', ['le', 'verb']),
  cotenant_scheduler_watch_problems_total: counter('Failed lists and watches of the API server.', ['kind']),
  cotenant_scheduler_overcommit_evictions_total: counter('Pods chosen for eviction.', ['outcome']),
  cotenant_scheduler_memory_changes_total: counter('Changes of the memory of running pods.', ['outcome']),
  cotenant_scheduler_invalid_objects: gauge('Objects with an annotation that cannot be read.', ['kind']),
};

/** Of kube-state-metrics (docs/metrics/policy/resourcequota-metrics.md there), if the cluster has it. */
export const CLUSTER_METRICS = {
  kube_resourcequota: gauge('What a ResourceQuota allows, and what is used of it.', [
    'namespace',
    'resourcequota',
    'resource',
    'type',
  ]),
};

export const METRICS = {
  up: gauge('1 if Prometheus could scrape the target.'),
  scrape_samples_scraped: gauge('Series of the last scrape of the target.'),
  process_resident_memory_bytes: gauge("Resident memory of the agent's process."),
  process_start_time_seconds: gauge("When the agent's process started."),
  process_cpu_seconds_total: counter("Processor time of the agent's process."),
  nodejs_heap_size_used_bytes: gauge("Used heap of the agent's process."),
  nodejs_eventloop_lag_max_seconds: gauge("Longest iteration of the event loop of the agent's process."),
  ...agent.metrics,
  ...device.metrics,
  ...health.metrics,
  ...gpm.metrics,
  ...enforcement.metrics,
  ...foreign.metrics,
  ...container.metrics,
  ...containerState.metrics,
  ...containerCounters.metrics,
  ...processes.metrics,
  ...PAGE_METRICS,
  ...CONTROL_PLANE_METRICS,
  ...CLUSTER_METRICS,
};

/** A selector of PromQL for one of the metrics; `matchers` are written as they stand between the braces. */
export function select(metric: MetricName, ...matchers: readonly string[]): string {
  return matchers.length === 0 ? metric : `${metric}{${matchers.join(', ')}}`;
}
