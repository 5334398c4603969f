// The board "Health of the agent": whether it reads its GPUs, age of its metrics, failures, and its memory and CPU use.
import { boardOf } from './board.ts';
import { GPUS, graph, ofTarget, type Panel, stat, steps, table } from './builders.ts';
import { CONFIGURATION } from './lib/configuration.ts';
import type { MetricName } from './lib/metrics.ts';

const rate = (counter: MetricName): string => `rate(${ofTarget(counter)}[$__rate_interval])`;
const increase = (counter: MetricName): string => `increase(${ofTarget(counter)}[$__rate_interval])`;
const AGE = `time() - max by (instance, collector) (${ofTarget('cotenant_exporter_collector_last_success_timestamp_seconds')})`;
const AGES = steps([null, 'green'], [CONFIGURATION.collectorStale.seconds, 'red']);

const PANELS: readonly Panel[] = [
  stat('Agents', 'Agents that Prometheus can scrape.', 6, `sum(${ofTarget('up')})`),
  stat(
    'Agents with GPUs',
    'Agents whose driver answers and whose last sample is fresh.',
    6,
    `sum(${ofTarget('cotenant_up')})`,
  ),
  stat('Oldest metrics', 'Time since the last success of the collector that has failed the longest.', 6, `max(${AGE})`)
    .unit('s')
    .thresholds(AGES),
  stat(
    'Driver hangs',
    'Sampler processes abandoned in the last interval, because they hung in the driver.',
    6,
    `sum(${increase('cotenant_exporter_samplers_abandoned_total')})`,
  ),
  graph('Age of metrics', 'Time since the last success of each collector.', { span: 12, unit: 's' }, [
    AGE,
    '{{instance}} {{collector}}',
  ]).thresholds(AGES),
  graph(
    'Render time',
    'Time that each collector, and the whole page, took.',
    { span: 12, unit: 's' },
    [
      `max by (instance, collector) (${ofTarget('cotenant_exporter_collector_duration_seconds')})`,
      '{{instance}} {{collector}}',
    ],
    [`max by (instance) (${ofTarget('cotenant_exporter_render_duration_seconds')})`, '{{instance}} page'],
  ),
  graph(
    'NVML errors',
    'Failed NVML calls per second, by call and code. Code 3 (the GPU has no such reading) is no fault.',
    { span: 12, unit: 'short' },
    [
      `sum by (instance, call, code) (${rate('cotenant_exporter_nvml_errors_total')})`,
      '{{instance}} {{call}} {{code}}',
    ],
  ),
  graph(
    'Attribution failures',
    'Processes that could not be attributed to a container, per second, by reason. Each counts in every sample.',
    { span: 12, unit: 'short' },
    [`sum by (instance, reason) (${rate('cotenant_exporter_attribution_failures_total')})`, '{{instance}} {{reason}}'],
  ),
  graph(
    'Volumes',
    'First NodePublishVolume calls for the volumes of pods with a GPU share, by result.',
    { span: 8, unit: 'short' },
    [`sum by (instance, result) (${increase('cotenant_volume_publishes_total')})`, '{{instance}} {{result}}'],
  ),
  graph(
    'Utilization gaps',
    'Utilization readings that came too late. Compute time in between is not counted.',
    { span: 8, unit: 'short' },
    [`sum by (instance, gpu) (${increase('cotenant_exporter_utilization_gaps_total')})`, '{{instance}} GPU {{gpu}}'],
  ),
  graph('Decisions', 'Decisions of the agents about containers over their limits.', { span: 8, unit: 'short' }, [
    `sum by (instance, decision, reason) (${increase('cotenant_enforcement_decisions_total')})`,
    '{{instance}} {{decision}}: {{reason}}',
  ]),
  graph(
    'Page size',
    'Series of each scrape, and series dropped from the page.',
    { span: 8, unit: 'short' },
    [`max by (instance) (${ofTarget('scrape_samples_scraped')})`, '{{instance}}'],
    [
      `sum by (instance, collector) (${increase('cotenant_exporter_series_dropped_total')})`,
      '{{instance}} dropped from {{collector}}',
    ],
  ),
  graph(
    'Memory of the agent',
    'Resident memory and used heap of its process, without the sampler.',
    { span: 8, unit: 'bytes' },
    [`max by (instance) (${ofTarget('process_resident_memory_bytes')})`, '{{instance}} resident'],
    [`max by (instance) (${ofTarget('nodejs_heap_size_used_bytes')})`, '{{instance}} heap'],
  ),
  graph(
    'Event loop',
    'Longest iteration of the event loop between two pages. During it the agent neither answers nor enforces.',
    { span: 8, unit: 's' },
    [`max by (instance) (${ofTarget('nodejs_eventloop_lag_max_seconds')})`, '{{instance}}'],
  ),
  table(
    'Nodes',
    'Versions and modes of the agents.',
    [
      ['Up', `max by (instance) (${ofTarget('cotenant_up')})`],
      ['GPUs', `count by (instance) (${GPUS})`],
      ['Mode', `max by (instance, enforcement) (${ofTarget('cotenant_enforcement_mode')} == 1)`],
      ['Build', `max by (instance, version, revision) (${ofTarget('cotenant_exporter_build_info')})`],
    ],
    { instance: 'Node', enforcement: 'Enforcement mode', version: 'Version', revision: 'Revision' },
  ),
];

export const health = boardOf({
  title: 'Health of the agent',
  uid: 'cotenant-health',
  description: 'Whether the agents read their GPUs, age of their metrics, failures, and their memory and latency.',
  allNodes: true,
  panels: PANELS,
});
