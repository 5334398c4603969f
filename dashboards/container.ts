// The board "Container": why a container is slow, and why it was refused memory or stopped.
import { boardOf, stopMarks, variable } from './board.ts';
import {
  answers,
  GPU_LEGEND,
  graph,
  line,
  ORANGE_FROM_ONE,
  type Panel,
  property,
  row,
  SLOWED,
  type Step,
  slowed,
  table,
  timeline,
  top,
  WHO,
  WHO_LEGEND,
} from './builders.ts';
import { CONFIGURATION } from './lib/configuration.ts';
import { type Aggregate, maxBy, sumBy } from './lib/expressions.ts';
import { type MetricName, select } from './lib/metrics.ts';
import { toContainer, toNode } from './links.ts';

const TARGET = ['job=~"$job"', 'instance=~"$instance"'];
const of = (metric: MetricName): string =>
  select(metric, ...TARGET, 'namespace=~"$namespace"', 'pod=~"$pod"', 'container=~"$container"');
const onNodes = (metric: MetricName): string => select(metric, ...TARGET);
const info = (...more: readonly string[]) => select('cotenant_container_info', ...TARGET, ...more);
const LEGEND = '{{pod}} {{container}} GPU {{gpu}}';
const max = (expr: string): Aggregate => maxBy('pod, container, gpu', expr);
/** Of each container and GPU. */
const each = (metric: MetricName): Aggregate => max(of(metric));
const rate = (counter: MetricName): Aggregate => max(`rate(${of(counter)}[$__rate_interval])`);
const increase = (counter: MetricName, within: string): string => `sum(increase(${of(counter)}[${within}]))`;
const LIMIT = `(${of('cotenant_container_memory_limit_bytes')} > 0)`;
const ON_ITS_GPUS = `and on (job, instance, gpu_uuid) ${of('cotenant_container_info')}`;
/** Of all containers on its GPUs. */
const ALL_COMPUTE = `rate(${onNodes('cotenant_container_sm_seconds_total')}[$__rate_interval]) ${ON_ITS_GPUS}`;
const LAST_STOP = of('cotenant_container_last_kill_timestamp_seconds');
const NEAR: readonly Step[] = [
  [null, 'green'],
  [CONFIGURATION.nearLimit.ratio, 'orange'],
  [1.001, 'red'],
];

const STATE = answers(
  {
    title: 'Memory used',
    is: 'Used relative to granted, for the container nearest to its limit. From 95 % allocations may be denied.',
    expr: `max(${of('cotenant_container_memory_used_bytes')} / ${LIMIT})`,
    unit: 'percentunit',
    steps: NEAR,
  },
  {
    title: 'Peak memory',
    is: 'Largest use since the container started, relative to its grant. A smaller grant must be larger than this.',
    expr: `max(${of('cotenant_container_memory_peak_bytes')} / ${LIMIT})`,
    unit: 'percentunit',
    steps: NEAR,
  },
  {
    title: 'Compute used',
    is: 'Fraction of a GPU that its kernels used, for the container with the most. Near its compute grant, the grant is what limits it.',
    expr: `max(rate(${of('cotenant_container_sm_seconds_total')}[$__rate_interval]))`,
    unit: 'percentunit',
  },
  {
    title: 'Waiting',
    is: 'Seconds per second that its launches waited for the GPU, summed over threads. Normal: below 0.5. Above: see "Why is it slow?".',
    expr: `sum(rate(${of('cotenant_container_sm_throttled_seconds_total')}[$__rate_interval]))`,
    unit: 's',
    steps: [
      [null, 'green'],
      [CONFIGURATION.throttled.secondsPerSecond, 'orange'],
    ],
  },
  {
    title: 'Denied',
    is: 'Memory allocations that were denied in the last interval. Normal: 0. See "Why was it refused memory?".',
    expr: increase('cotenant_container_allocations_denied_total', '$__rate_interval'),
    steps: ORANGE_FROM_ONE,
  },
  {
    title: 'Over limit',
    is: 'Time over grant and tolerance in the last interval. Normal: 0. The agent stops what stays over it.',
    expr: increase('cotenant_container_memory_over_limit_seconds_total', '$__rate_interval'),
    unit: 's',
    steps: ORANGE_FROM_ONE,
  },
  {
    title: 'Last stop',
    is: 'Time since the agent last stopped it; "never" if it did not. See "Why was it stopped?".',
    expr: `min(time() - ${LAST_STOP}) or vector(-1)`,
    unit: 's',
    texts: { '-1': { text: 'never', color: 'green' } },
  },
  {
    title: 'Isolation',
    is: 'What enforces its memory limit now: driver, interposer or agent. "none": nothing does.',
    expr: `max by (fence) (${of('cotenant_container_info')})`,
    named: '{{fence}}',
  },
);

const SLOW: readonly Panel[] = [
  row('Why is it slow?'),
  graph(
    'Compute and its grant',
    'Fraction of a GPU that its kernels used, and its compute grant. At the grant: it needs a larger one. Below it and waiting: a neighbor has the GPU where "all" below is near 100 %, and otherwise the policy of the GPU or a limit holds it back. Below it and not waiting: the program itself is not ready, for example it waits for data.',
    { span: 12, unit: 'percentunit' },
    [top(2, rate('cotenant_container_sm_seconds_total')), LEGEND],
    [top(2, each('cotenant_container_sm_limit_ratio')), 'granted GPU {{gpu}}', line('red')],
  ),
  graph(
    'Waiting and contended',
    'Time per second that launches waited for the GPU, summed over threads; and charged time in which other containers used the GPU as well. Normal: both near 0 when it has the GPU for itself.',
    { span: 12, unit: 's' },
    [top(2, rate('cotenant_container_sm_throttled_seconds_total')), `${LEGEND} waiting`],
    [top(2, rate('cotenant_container_sm_contended_seconds_total')), `${LEGEND} contended`],
  ),
  graph(
    'Compute of all containers on its GPUs',
    'Fraction of its GPUs that each container on them used, of those with the most, stacked: the neighbors that make it slow. Dashed: all together. A line leads to the board of that container.',
    { span: 12, unit: 'percentunit', as: 'stack', links: [toContainer] },
    [top(4, sumBy(WHO, ALL_COMPUTE)), WHO_LEGEND],
    [`sum(${ALL_COMPUTE})`, 'all', line('text')],
  ),
  graph(
    'Sampled and charged compute',
    "Fraction of a GPU by the driver's samples, and by what the arbiter charged, gaps between launches included. If samples stay above the charge, some work bypasses the arbiter (CotenantComputeDrift).",
    { span: 12, unit: 'percentunit' },
    [top(2, rate('cotenant_container_sm_seconds_total')), `${LEGEND} sampled`],
    [top(2, rate('cotenant_container_sm_charged_seconds_total')), `${LEGEND} charged`],
  ),
  timeline(
    'Clocks lowered on its GPUs',
    'Reasons that kept the clocks of its GPUs below their maximum. Normal: none or power_cap. With heat or power brake every container on the GPU is slow: see the board of the node.',
    SLOWED,
    [top(8, `(${slowed(TARGET)}) ${ON_ITS_GPUS}`), `${GPU_LEGEND} {{reason}}`],
  )
    .span(16)
    .noValue('none'),
  graph(
    'Idle time',
    'Time since the last sample in which it used the GPU. Growing: the program does not launch anything.',
    { span: 8, unit: 's' },
    [top(4, max(`time() - ${of('cotenant_container_last_active_timestamp_seconds')}`)), LEGEND],
  ),
];

const REFUSED: readonly Panel[] = [
  row('Why was it refused memory?'),
  graph(
    'Memory and its grant',
    'Memory that the driver reports, the grant, and the peak since the start. Managed memory is in the peak, but not in what the driver reports. What does not fit under the red line is denied.',
    { span: 12, unit: 'bytes' },
    [top(2, each('cotenant_container_memory_used_bytes')), LEGEND],
    [top(2, each('cotenant_container_memory_limit_bytes')), 'granted GPU {{gpu}}', line('red')],
    [top(2, each('cotenant_container_memory_peak_bytes')), 'peak GPU {{gpu}}', line('text')],
  ),
  graph(
    'Denied allocations',
    'Memory allocations that were denied, per second. Normal: 0, or some at the start of frameworks that probe for memory.',
    { span: 12, unit: 'short' },
    [top(4, rate('cotenant_container_allocations_denied_total')), LEGEND],
  ),
  graph(
    'Usage ledger',
    'Memory in the usage ledger by kind, and memory of processes that bypass the interposer. The container can write the ledger, so it is no proof. Much "pool": a framework keeps what it freed.',
    { span: 8, unit: 'bytes', as: 'stack' },
    [`sum by (kind) (${of('cotenant_container_memory_ledger_bytes')})`, '{{kind}}'],
    [`sum(${of('cotenant_container_memory_bypass_bytes')})`, 'bypass'],
  ),
  timeline(
    'Isolation over time',
    'What enforced its memory limit: driver, interposer, agent, or none. A change to agent: a process bypasses the interposer.',
    { 1: { text: 'enforces', color: 'blue' } },
    [top(8, maxBy('pod, container, fence', of('cotenant_container_info'))), '{{pod}} {{fence}}'],
  ).span(16),
];

const STOPPED: readonly Panel[] = [
  row('Why was it stopped?'),
  timeline(
    'Over limit',
    'When it exceeded its memory grant and tolerance, or its compute limit. The agent stops what stays over; stops are red marks.',
    { 0: { text: 'within', color: 'green' }, 1: { text: 'over', color: 'red' } },
    [top(5, each('cotenant_container_memory_over_limit')), '{{pod}} GPU {{gpu}} memory'],
    [top(5, each('cotenant_container_compute_over_limit')), '{{pod}} GPU {{gpu}} compute'],
  ).span(16),
  graph(
    'Processes',
    'Running processes of the container on the GPU. A drop to 0 at a red mark: the agent stopped it. Without a mark: the program ended by itself.',
    { span: 8, unit: 'short' },
    [top(4, each('cotenant_container_processes')), LEGEND],
  ).decimals(0),
  table(
    'Stops',
    'Stops by the agent, their reason, and the time of the last one. Normal: empty. The Event on the Pod and the audit log have the amounts.',
    [['Last', `max by (${WHO}, instance, reason, action) (${LAST_STOP}) * 1000`, 'dateTimeAsIso']],
    {
      instance: 'Node',
      namespace: 'Namespace',
      pod: 'Pod',
      container: 'Container',
      reason: 'Reason',
      action: 'Action',
    },
    toNode,
  )
    .height(6)
    .overrideByName('Last', [property('custom.width', 200)])
    .noValue('none'),
];

export const container = boardOf({
  board: 'container',
  description: 'Why a container is slow, and why it was refused memory or stopped. Choose its namespace and pod.',
  variables: [
    variable('namespace', info()),
    variable('pod', info('namespace=~"$namespace"')),
    variable('container', info('namespace=~"$namespace"', 'pod=~"$pod"')),
  ],
  annotations: [stopMarks(`${LAST_STOP} * 1000`)],
  panels: [...STATE, ...SLOW, ...REFUSED, ...STOPPED],
});
