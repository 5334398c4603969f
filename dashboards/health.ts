// The board "Cotenant itself": whether webhook, scheduler and agents work, and what they cost.
import { boardOf } from './board.ts';
import {
  answers,
  GPUS,
  graph,
  NODE_LEGEND,
  ORANGE_FROM_ONE,
  ofAgents,
  ofTarget,
  type Panel,
  RED_FROM_ONE,
  row,
  steps,
  table,
  top,
  UP,
} from './builders.ts';
import { CONFIGURATION } from './lib/configuration.ts';
import { maxBy, sumBy } from './lib/expressions.ts';
import { type MetricName, select } from './lib/metrics.ts';
import { toNode } from './links.ts';

const rate = (counter: MetricName): string => `rate(${ofTarget(counter)}[$__rate_interval])`;
const increase = (counter: MetricName): string => `increase(${ofTarget(counter)}[$__rate_interval])`;
/** Of webhook and scheduler. Their instances are pods and not nodes, so the variables do not choose among them. */
const control = (metric: MetricName, ...matchers: readonly string[]): string => select(metric, ...matchers);
const controlRate = (counter: MetricName, ...matchers: readonly string[]): string =>
  `rate(${control(counter, ...matchers)}[$__rate_interval])`;
const quantile = (q: number, bucket: MetricName, ...labels: readonly string[]): string =>
  `histogram_quantile(${q}, sum by (${['le', ...labels].join(', ')}) (${controlRate(bucket)}))`;
const WEBHOOKS = control('up', `job="${CONFIGURATION.webhookJob}"`);
const FAILED_REVIEWS = control('cotenant_webhook_reviews_total', 'outcome=~"internal|overloaded"');
const NOT_AFTER = control('cotenant_webhook_certificate_not_after_timestamp_seconds');
const AGE = `time() - max by (instance, collector) (${ofTarget('cotenant_exporter_collector_last_success_timestamp_seconds')})`;
const NVML_ERRORS = select('cotenant_exporter_nvml_errors_total', 'job=~"$job"', 'instance=~"$instance"', 'code!="3"');
const AGES = [
  [null, 'green'],
  [CONFIGURATION.collectorStale.seconds, 'red'],
] as const;
const jobs = `job=~"${CONFIGURATION.webhookJob}|${CONFIGURATION.schedulerJob}"`;

const STATE = answers(
  {
    title: 'Agents down',
    is: 'Nodes whose agent cannot read its GPUs or does not answer. Normal: 0. There nothing is monitored or stopped; see the table below.',
    expr: `count(${ofAgents('up')} unless on (job, instance) (${ofTarget('cotenant_up')} == 1)) or vector(0)`,
    steps: RED_FROM_ONE,
  },
  {
    title: 'Oldest metrics',
    is: 'Time since the last success of the collector that has failed the longest. Normal: some seconds.',
    expr: `max(${AGE})`,
    unit: 's',
    steps: AGES,
  },
  {
    title: 'Driver hangs',
    is: 'Sampler processes abandoned in the last interval, because they hung in the driver. Normal: 0. Look at the kernel log of the node.',
    expr: `sum(${increase('cotenant_exporter_samplers_abandoned_total')})`,
    steps: RED_FROM_ONE,
  },
  {
    title: 'Webhooks',
    is: 'Replicas of the webhook that Prometheus can scrape. At 0 pods that ask for a GPU share are refused.',
    expr: `sum(${WEBHOOKS})`,
    steps: [
      [null, 'red'],
      [1, 'green'],
    ],
  },
  {
    title: 'Failed reviews',
    is: 'Admission reviews that failed in the webhook or were too many at once, in the last interval. Normal: 0. Their pods were refused.',
    expr: `sum(increase(${FAILED_REVIEWS}[$__rate_interval]))`,
    steps: RED_FROM_ONE,
  },
  {
    title: 'Certificate',
    is: 'Time until the certificate of the webhook expires. It is renewed 30 days before. When it has expired, pods that ask for a GPU share are refused.',
    expr: `(min(${NOT_AFTER}) - time()) / 86400`,
    unit: 'd',
    steps: [
      [null, 'red'],
      [CONFIGURATION.certificateExpires.seconds / 86_400, 'green'],
    ],
  },
  {
    title: 'Scheduler',
    is: 'Whether a replica of the scheduler leads. Without one, pods with a GPU share are not bound.',
    expr: `max(${control('cotenant_scheduler_leader')})`,
    texts: { 0: { text: 'no leader', color: 'red' }, 1: { text: 'leads', color: 'green' } },
  },
  {
    title: 'API problems',
    is: 'Lists and watches of the API server that failed in the scheduler, in the last interval; each is retried. Normal: 0, some while the API server restarts.',
    expr: `sum(increase(${control('cotenant_scheduler_watch_problems_total')}[$__rate_interval]))`,
    steps: ORANGE_FROM_ONE,
  },
);

const WEBHOOK: readonly Panel[] = [
  row('Webhook and certificates'),
  graph(
    'Reviews',
    'Admission reviews per second by outcome. "denied" and "malformed" are answers to pods that are wrong; "internal" and "overloaded" are faults of the webhook.',
    { span: 6, unit: 'short' },
    [`sum by (outcome) (${controlRate('cotenant_webhook_reviews_total')})`, '{{outcome}}'],
  ),
  graph(
    'Review time',
    'Time of a review in the webhook, without TLS and network: median and 99th percentile. Normal: below 1 ms. The API server waits for it with each pod.',
    { span: 6, unit: 's' },
    [quantile(0.5, 'cotenant_webhook_review_duration_seconds_bucket', 'route'), '{{route}} median'],
    [quantile(0.99, 'cotenant_webhook_review_duration_seconds_bucket', 'route'), '{{route}} p99'],
  ),
  graph(
    'Certificate loads',
    'Certificates that the webhook loaded or refused per step. A refused one: the files do not match, and the old certificate stays until it expires.',
    { span: 6, unit: 'short', as: 'bars' },
    [
      `sum by (result) (increase(${control('cotenant_webhook_certificate_loads_total')}[$__rate_interval]))`,
      '{{result}}',
    ],
  ).decimals(0),
  graph(
    'Live rules',
    'Whether all replicas hold the ConfigMap of live rules (1, also without one). 0: it is wrong, and the rules before it are in force.',
    { span: 6, unit: 'short' },
    [`min(${control('cotenant_webhook_live_rules_valid')})`, 'valid'],
  ).decimals(0),
];

const SCHEDULER: readonly Panel[] = [
  row('Scheduler and its load on the API server'),
  graph(
    'Calls of kube-scheduler',
    'Calls per second: all that succeeded ("ok"), and the others by verb and outcome. "refused": no node fits, or this replica does not lead. "failed": the API server or a fault; normal: 0.',
    { span: 8, unit: 'short' },
    [
      top(6, sumBy('verb, outcome', controlRate('cotenant_scheduler_decisions_total', 'outcome!="ok"'))),
      '{{verb}} {{outcome}}',
    ],
    [`sum(${controlRate('cotenant_scheduler_decisions_total', 'outcome="ok"')})`, 'ok'],
  ),
  graph(
    'Call time, p99',
    'Time of 99 of 100 calls by verb. Normal: filter and prioritize below 10 ms; bind includes the API server. High filter time with many nodes: the scheduler is the bottleneck; high bind time alone: the API server is.',
    { span: 8, unit: 's' },
    [quantile(0.99, 'cotenant_scheduler_decision_duration_seconds_bucket', 'verb'), '{{verb}}'],
  ),
  graph(
    'Watch problems',
    'Lists and watches of the API server that failed, per step, by kind of object. Each is retried.',
    { span: 8, unit: 'short', as: 'bars' },
    [`sum by (kind) (increase(${control('cotenant_scheduler_watch_problems_total')}[$__rate_interval]))`, '{{kind}}'],
  ).decimals(0),
  graph(
    'Bindings in flight',
    'Bindings that the watch has not shown yet. Normal: near 0. Growing: the API server or the watch is slow.',
    { span: 8, unit: 'short' },
    [`sum(${control('cotenant_scheduler_bindings_in_flight')})`, 'in flight'],
  ).decimals(0),
  graph(
    'Grants, nodes and unreadable objects',
    'What the leader knows: pods with a grant, nodes that share GPUs, GPUs with more granted than there is, and objects with annotations that cannot be read. The last two are normally 0.',
    { span: 8, unit: 'short' },
    [`max(${control('cotenant_scheduler_granted_pods')})`, 'pods with a grant'],
    [`max(${control('cotenant_scheduler_nodes')})`, 'nodes'],
    [`max(${control('cotenant_scheduler_overcommitted_gpus')})`, 'overcommitted GPUs'],
    [`max by (kind) (${control('cotenant_scheduler_invalid_objects')})`, 'unreadable {{kind}}'],
  ).decimals(0),
  graph(
    'Evictions and memory changes',
    'Pods that were evicted from overcommitted GPUs before they started, and changes of the memory of running pods, per step. "kept": only an Event, as no controller would recreate the pod.',
    { span: 8, unit: 'short', as: 'bars' },
    [
      top(
        5,
        sumBy('outcome', `increase(${control('cotenant_scheduler_overcommit_evictions_total')}[$__rate_interval])`),
      ),
      'eviction {{outcome}}',
    ],
    [
      top(5, sumBy('outcome', `increase(${control('cotenant_scheduler_memory_changes_total')}[$__rate_interval])`)),
      'change {{outcome}}',
    ],
  ).decimals(0),
];

const AGENTS: readonly Panel[] = [
  row('Agents and samplers'),
  graph(
    'Age of metrics',
    'Time since the last success of each collector, of the oldest. Normal: some seconds. Old: the sampler hangs, or the driver does not answer.',
    { span: 8, unit: 's', links: [toNode] },
    [top(4, AGE), `${NODE_LEGEND} {{collector}}`],
  ).thresholds(steps(...AGES)),
  graph(
    'NVML errors',
    'Failed NVML calls per second, of those that fail the most, without code 3 (the GPU has no such reading). Code 4 is a missing right; 15 and 16 a lost GPU. Normal: none.',
    { span: 8, unit: 'short' },
    [top(4, `sum by (call, code) (rate(${NVML_ERRORS}[$__rate_interval])) > 0`), '{{call}} {{code}}'],
  ).noValue('none'),
  graph(
    'Attribution failures',
    'Processes that could not be attributed to a container, per second, by reason. Each counts in every sample. "host" is normal where the host itself uses GPUs.',
    { span: 8, unit: 'short' },
    [`sum by (reason) (${rate('cotenant_exporter_attribution_failures_total')})`, '{{reason}}'],
  ),
  graph(
    'Utilization gaps',
    'Utilization readings that came too late, per step. Compute time in between is not counted. Normal: 0.',
    { span: 8, unit: 'short', as: 'bars', links: [toNode] },
    [top(4, sumBy('instance', increase('cotenant_exporter_utilization_gaps_total'))), NODE_LEGEND],
  ).decimals(0),
  graph(
    'Volumes',
    'First NodePublishVolume calls for the volumes of pods with a GPU share, per step, by result. "pending" is retried by the kubelet; "refused" and "failed" are normally 0.',
    { span: 8, unit: 'short', as: 'bars' },
    [`sum by (result) (${increase('cotenant_volume_publishes_total')})`, '{{result}}'],
  ).decimals(0),
  graph(
    'Decisions',
    'Decisions of the agents about containers over their limits, per step. "refused": data was stale or inconsistent, or the stop rate limit was reached.',
    { span: 8, unit: 'short', as: 'bars' },
    [top(8, sumBy('decision, reason', increase('cotenant_enforcement_decisions_total'))), '{{decision}}: {{reason}}'],
  ).decimals(0),
];

const COST: readonly Panel[] = [
  row('What it costs'),
  graph(
    'Memory',
    'Resident memory of the largest agents without their samplers, and of webhook and scheduler. Normal: below 150 MiB, and not growing for days.',
    { span: 12, unit: 'bytes', links: [toNode] },
    [top(4, maxBy('instance', ofAgents('process_resident_memory_bytes'))), NODE_LEGEND],
    [`max by (job) (${control('process_resident_memory_bytes', jobs)})`, '{{job}}'],
  ),
  graph(
    'Processor time',
    'Processors that the busiest agents use, and webhook and scheduler. Normal: below 0.1.',
    { span: 12, unit: 'short', links: [toNode] },
    [top(4, maxBy('instance', `rate(${ofAgents('process_cpu_seconds_total')}[$__rate_interval])`)), NODE_LEGEND],
    [`max by (job) (${controlRate('process_cpu_seconds_total', jobs)})`, '{{job}}'],
  ),
  graph(
    'Event loop',
    'Longest iteration of the event loop between two pages, of the slowest agents, and of webhook and scheduler. During it the process neither answers nor enforces. Normal: below 100 ms.',
    { span: 12, unit: 's', links: [toNode] },
    [top(4, maxBy('instance', ofAgents('nodejs_eventloop_lag_max_seconds'))), NODE_LEGEND],
    [`max by (job) (${control('nodejs_eventloop_lag_max_seconds', jobs)})`, '{{job}}'],
  ),
  graph(
    'Pages',
    'Series of the largest scrapes, and series dropped from full pages. Dropped series: normal 0.',
    { span: 12, unit: 'short', links: [toNode] },
    [top(4, maxBy('instance', ofAgents('scrape_samples_scraped'))), NODE_LEGEND],
    [`sum(${increase('cotenant_exporter_series_dropped_total')})`, 'dropped'],
  ),
  table(
    'Nodes',
    'Versions and modes of the agents, whether each reads its GPUs, and how long its page and its slowest collector took.',
    [
      ['Agent', `max by (instance) (${ofTarget('cotenant_up')})`],
      ['GPUs', `count by (instance) (${GPUS})`],
      ['Page', `max by (instance) (${ofTarget('cotenant_exporter_render_duration_seconds')})`, 's'],
      ['Collector', `max by (instance) (${ofTarget('cotenant_exporter_collector_duration_seconds')})`, 's'],
      ['Heap', `max by (instance) (${ofAgents('nodejs_heap_size_used_bytes')})`, 'bytes'],
      ['', `max by (instance, enforcement) (${ofTarget('cotenant_enforcement_mode')} == 1)`],
      ['', `max by (instance, version, revision) (${ofTarget('cotenant_exporter_build_info')})`],
    ],
    { instance: 'Node', enforcement: 'Enforcement', version: 'Version', revision: 'Revision' },
    toNode,
  ).overrideByName('Agent', UP),
];

export const health = boardOf({
  board: 'health',
  description: 'Whether webhook, scheduler and agents work, the age of the metrics, failures, and what they cost.',
  panels: [...STATE, ...WEBHOOK, ...SCHEDULER, ...AGENTS, ...COST],
});
