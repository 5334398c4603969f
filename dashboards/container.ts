// The board "Container": memory and compute of one workload relative to its grant, denied allocations, and throttling.
import { boardOf, stopMarks, variable } from './board.ts';
import { graph, line, type Panel, stat, steps, timeline } from './builders.ts';
import { CONFIGURATION } from './lib/configuration.ts';
import { type MetricName, select } from './lib/metrics.ts';

const TARGET = ['job=~"$job"', 'instance=~"$instance"'];
const of = (metric: MetricName): string =>
  select(metric, ...TARGET, 'namespace=~"$namespace"', 'pod=~"$pod"', 'container=~"$container"');
const info = (...more: readonly string[]) => select('cotenant_container_info', ...TARGET, ...more);
const LEGEND = '{{pod}} {{container}} GPU {{gpu}}';
const max = (expr: string) => `max by (pod, container, gpu) (${expr})`;
/** Of each container and GPU. */
const each = (metric: MetricName): string => max(of(metric));
const rate = (counter: MetricName): string => max(`rate(${of(counter)}[$__rate_interval])`);
const increase = (counter: MetricName): string => `sum(increase(${of(counter)}[$__rate_interval]))`;
const LIMIT = `(${of('cotenant_container_memory_limit_bytes')} > 0)`;

const PANELS: readonly Panel[] = [
  stat(
    'Memory used',
    'Used relative to granted, for the container nearest to its limit.',
    6,
    `max(${of('cotenant_container_memory_used_bytes')} / ${LIMIT})`,
  ).unit('percentunit'),
  stat(
    'Peak memory',
    'Largest use since the container started, relative to its grant. A smaller grant must be larger than this.',
    6,
    `max(${of('cotenant_container_memory_peak_bytes')} / ${LIMIT})`,
  ).unit('percentunit'),
  stat(
    'Denied allocations',
    'Memory allocations that were denied in the last interval.',
    6,
    increase('cotenant_container_allocations_denied_total'),
  ),
  stat(
    'Time over limit',
    'Time over grant and tolerance in the last interval.',
    6,
    increase('cotenant_container_memory_over_limit_seconds_total'),
  ).unit('s'),
  graph(
    'Memory',
    'Memory that the driver reports, the grant, and the peak since the start. Managed memory is in the peak, but not in what the driver reports.',
    { span: 12, unit: 'bytes' },
    [each('cotenant_container_memory_used_bytes'), LEGEND],
    [each('cotenant_container_memory_limit_bytes'), `${LEGEND} limit`, line('red')],
    [each('cotenant_container_memory_peak_bytes'), `${LEGEND} peak`, line('text')],
  ),
  graph(
    'Memory relative to limit',
    'Used memory relative to the grant, by container and GPU.',
    { span: 12, unit: 'percentunit' },
    [max(`${of('cotenant_container_memory_used_bytes')} / ${LIMIT}`), LEGEND],
  ).thresholds(steps([null, 'green'], [CONFIGURATION.nearLimit.ratio, 'orange'], [1, 'red'])),
  graph(
    'Usage ledger',
    'Memory in the usage ledger by kind, and memory of processes that bypass the interposer. The container can write the ledger.',
    { span: 12, unit: 'bytes', as: 'stack' },
    [`sum by (kind) (${of('cotenant_container_memory_ledger_bytes')})`, '{{kind}}'],
    [`sum(${of('cotenant_container_memory_bypass_bytes')})`, 'bypass'],
  ),
  graph(
    'Compute',
    'Fraction of a GPU that its kernels used, and its compute grant.',
    { span: 12, unit: 'percentunit' },
    [rate('cotenant_container_sm_seconds_total'), LEGEND],
    [each('cotenant_container_sm_limit_ratio'), `${LEGEND} granted`, line('red')],
  ),
  graph(
    'Sampled and charged compute',
    "Fraction of a GPU by the driver's samples, and by what the arbiter charged, gaps between launches included. If samples stay above the charge, some work bypasses the arbiter.",
    { span: 12, unit: 'percentunit' },
    [rate('cotenant_container_sm_seconds_total'), `${LEGEND} sampled`],
    [rate('cotenant_container_sm_charged_seconds_total'), `${LEGEND} charged`],
    [rate('cotenant_container_sm_contended_seconds_total'), `${LEGEND} contended`],
  ),
  graph(
    'Throttling',
    'Time per second that launches waited for the GPU, summed over threads; and charged time in which other containers used the GPU as well.',
    { span: 12, unit: 'percentunit' },
    [rate('cotenant_container_sm_throttled_seconds_total'), `${LEGEND} throttled`],
    [rate('cotenant_container_sm_contended_seconds_total'), `${LEGEND} contended`],
  ),
  graph(
    'Denied allocations per second',
    'Memory allocations that were denied, per second.',
    { span: 12, unit: 'short' },
    [rate('cotenant_container_allocations_denied_total'), LEGEND],
  ),
  graph('Processes', 'Running processes of the container on the GPU.', { span: 12, unit: 'short' }, [
    each('cotenant_container_processes'),
    LEGEND,
  ]).decimals(0),
  timeline(
    'Over limit',
    'When it exceeded its memory grant and tolerance, or its compute limit. Stops are red marks.',
    { 0: { text: 'within', color: 'green' }, 1: { text: 'over', color: 'red' } },
    [each('cotenant_container_memory_over_limit'), `${LEGEND} memory`],
    [each('cotenant_container_compute_over_limit'), `${LEGEND} compute`],
  ),
  timeline(
    'Isolation',
    'What enforced its memory limit: driver, interposer, agent, or none.',
    { 1: { text: 'enforces', color: 'blue' } },
    [`max by (pod, container, fence) (${of('cotenant_container_info')})`, '{{pod}} {{container}} {{fence}}'],
  ),
  graph('Idle time', 'Time since the last sample in which it used the GPU.', { span: 12, unit: 's' }, [
    max(`time() - ${of('cotenant_container_last_active_timestamp_seconds')}`),
    LEGEND,
  ]),
];

export const container = boardOf({
  title: 'Container',
  uid: 'cotenant-container',
  description: 'Memory and compute of one workload relative to its grant, denied allocations, and throttling.',
  allNodes: true,
  variables: [
    variable('namespace', info()),
    variable('pod', info('namespace=~"$namespace"')).includeAll(true),
    variable('container', info('namespace=~"$namespace"', 'pod=~"$pod"')).includeAll(true),
  ],
  annotations: [stopMarks(`${of('cotenant_container_last_kill_timestamp_seconds')} * 1000`)],
  panels: PANELS,
});
