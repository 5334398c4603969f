// The board "Cluster": how full and how used the GPUs are, which containers wait, and what is wrong.
import { boardOf, stopMarks } from './board.ts';
import {
  among,
  answers,
  GPUS,
  GRANTABLE,
  graph,
  histogram,
  line,
  NODE_LEGEND,
  ORANGE_FROM_ONE,
  ofTarget,
  others,
  type Panel,
  property,
  RED_FROM_ONE,
  REST,
  row,
  slowedByHeat,
  table,
  top,
  topOfTwo,
  UP,
  USABLE,
  WHO,
} from './builders.ts';
import { CONFIGURATION } from './lib/configuration.ts';
import { maxBy, stopsWithin, sumBy, textOf, usableMemory } from './lib/expressions.ts';
import { type MetricName, select } from './lib/metrics.ts';
import { toContainer, toNamespace, toNode } from './links.ts';

const TARGET = ['job=~"$job"', 'instance=~"$instance"'];
/** Of a GPU divided by MIG only the instances have memory. */
const MEMORY = usableMemory(ofTarget);
const GRANTABLE_MEMORY = among(GRANTABLE, MEMORY);
const GRANTED = ofTarget('cotenant_device_memory_allocated_bytes');
const GRANTED_COMPUTE = `sum(${ofTarget('cotenant_device_sm_allocated_ratio')})`;
const rate = (counter: MetricName): string => `rate(${ofTarget(counter)}[$__rate_interval])`;
const LIMIT = ofTarget('cotenant_container_memory_limit_bytes');
const USED = ofTarget('cotenant_container_memory_used_bytes');
const USED_ON_GPUS = ofTarget('cotenant_device_memory_used_bytes');
const USED_COMPUTE = sumBy('namespace', rate('cotenant_container_sm_seconds_total'));
const DENIED = sumBy(
  'namespace',
  `increase(${ofTarget('cotenant_container_allocations_denied_total')}[$__rate_interval])`,
);
/** Steps of a minute, each with its mean. */
const GPU_HOURS = `sum_over_time(${rate('cotenant_container_sm_seconds_total')}[24h:1m]) / 60`;
const LARGEST_FREE = maxBy('instance', `${GRANTABLE_MEMORY} - ${GRANTED}`);
const BY_GPU = 'max by (instance, gpu_uuid)';
const MODE = select('cotenant_device_allocation_mode', ...TARGET, 'mode!="none"');
const ALLOCATED = `${BY_GPU} (${among(USABLE, `${MODE} == 1`)})`;
/** For MIG instances the driver samples no kernels; their hardware counters say what was active. */
const BUSY = [
  `${BY_GPU} (max_over_time(${rate('cotenant_container_sm_seconds_total')}[1h:1m]))`,
  `${BY_GPU} (max_over_time(${ofTarget('cotenant_device_sm_active_ratio')}[1h]))`,
].join(' or ');
const REFUSED = (verb: string) => select('cotenant_scheduler_decisions_total', `verb="${verb}"`, 'outcome="refused"');
const WAITING = `sum by (${WHO}) (${rate('cotenant_container_sm_throttled_seconds_total')})`;
const DAY_SECONDS = 24 * 3600;
const LAST_STOP = `max_over_time(${ofTarget('cotenant_container_last_kill_timestamp_seconds')}[${DAY_SECONDS}s])`;
const CONTAINER_LABELS = { namespace: 'Namespace', pod: 'Pod', container: 'Container' };

const STATE = answers(
  {
    title: 'GPUs',
    is: 'GPUs that the agents monitor. A GPU divided by MIG counts once. Normal: as many as the nodes have; a missing one is in the alert CotenantGpuMissing.',
    expr: `count(${GPUS})`,
  },
  {
    title: 'Memory granted',
    is: 'Sum of the grants relative to the memory that can be granted, that of GPUs without MIG. Near 100 % new pods wait, see "Largest free block".',
    expr: `sum(${GRANTED}) / sum(${GRANTABLE_MEMORY})`,
    unit: 'percentunit',
    steps: [
      [null, 'green'],
      [0.95, 'orange'],
      [1.001, 'red'],
    ],
  },
  {
    title: 'Memory used',
    is: 'Used memory relative to the memory of all GPUs, without what the driver reserves. Far below what is granted: see "Granted but unused".',
    expr: `sum(${USED_ON_GPUS}) / sum(${MEMORY})`,
    unit: 'percentunit',
  },
  {
    title: 'Compute granted',
    is: 'Sum of the compute grants relative to the number of GPUs without MIG. Above 100 % compute is overcommitted: containers get less than their grants when all are busy.',
    expr: `${GRANTED_COMPUTE} / count(${GRANTABLE})`,
    unit: 'percentunit',
    steps: [
      [null, 'green'],
      [1.001, 'orange'],
    ],
  },
  {
    title: 'Idle GPUs',
    is: 'GPUs that are allocated, as shares or as a whole, and on which no kernel ran within an hour; MIG instances without activity, if they have hardware counters. Normal: 0. The boards of the namespaces count their idle containers.',
    expr: `count(${ALLOCATED} and on (instance, gpu_uuid) ((${BUSY}) == 0)) or vector(0)`,
    steps: ORANGE_FROM_ONE,
  },
  {
    title: 'Unhealthy GPUs',
    is: 'GPUs that are lost or need a reset. They are cordoned. Normal: 0. "GPUs with faults" says where and why.',
    expr: `count(${among(GPUS, `${ofTarget('cotenant_device_healthy')} == 0`)}) or vector(0)`,
    steps: RED_FROM_ONE,
  },
  {
    title: 'Agents down',
    is: 'Nodes whose agent cannot read its GPUs: there nothing is monitored or stopped. Normal: 0. See the board "Cotenant itself".',
    expr: `count(${ofTarget('cotenant_up')}) - sum(${ofTarget('cotenant_up')})`,
    steps: RED_FROM_ONE,
  },
  {
    title: 'Stops in 24 h',
    is: 'Containers that the agents stopped within 24 hours. Normal: 0. "Stopped in 24 hours" says which, and why; a red line marks each stop.',
    expr: `sum(${stopsWithin(DAY_SECONDS, ...TARGET)}) or vector(0)`,
    steps: ORANGE_FROM_ONE,
  },
  {
    title: 'Over their grant',
    is: 'Containers that use more memory than their grant and the tolerance. Normal: 0. The agent stops them unless the mode says otherwise; "Closest to their memory limit" says which.',
    expr: `sum(${ofTarget('cotenant_container_memory_over_limit')}) or vector(0)`,
    steps: RED_FROM_ONE,
  },
  {
    title: 'Denied',
    is: 'Containers whose memory allocations were denied in the last interval. Normal: 0. See "Denied allocations by namespace".',
    expr: `count(sum by (${WHO}) (increase(${ofTarget('cotenant_container_allocations_denied_total')}[$__rate_interval])) > 0) or vector(0)`,
    steps: ORANGE_FROM_ONE,
  },
  {
    title: 'Waiting',
    is: 'Containers whose launches waited for a GPU for more than half of the time, summed over threads. Normal: 0. See "Longest waits for a GPU".',
    expr: `count(${WAITING} > ${CONFIGURATION.throttled.secondsPerSecond}) or vector(0)`,
    steps: ORANGE_FROM_ONE,
  },
  {
    title: 'Slowed by heat',
    is: 'GPUs whose clocks are lowered by heat or power hardware now. Normal: 0. The board of the node names them.',
    expr: slowedByHeat(...TARGET),
    steps: ORANGE_FROM_ONE,
  },
);

const OFFENDERS: readonly Panel[] = [
  table(
    'Longest waits for a GPU',
    'Containers whose launches waited the longest, in seconds per second, summed over threads. Normal: below 0.5. Above: the container needs more compute, a neighbor takes it, or a policy holds it back; its board says which.',
    [['Waiting', `topk(10, ${WAITING})`, 's']],
    CONTAINER_LABELS,
    toContainer,
  )
    .span(12)
    .height(8),
  table(
    'Closest to their memory limit',
    'Containers that use the most of their memory grant. At 100 % allocations are denied; above, the agent stops the container. Raise the grant of those that stay near it.',
    [['Used', `topk(10, max by (${WHO}) (${USED} / (${LIMIT} > 0)))`, 'percentunit']],
    CONTAINER_LABELS,
    toContainer,
  )
    .span(12)
    .height(8),
];

const UTILIZATION: readonly Panel[] = [
  row('Utilization: how full, how used'),
  graph(
    'Memory by namespace',
    'Memory of containers as the driver reports it, of the namespaces with the most and of all others together, stacked. Lines: sum of the grants, and memory of all GPUs. Normal: used follows granted; a wide gap is waste.',
    { span: 12, unit: 'bytes', as: 'stack', links: [toNamespace] },
    [top(7, sumBy('namespace', USED)), '{{namespace}}'],
    [others(7, sumBy('namespace', USED)), 'others', REST],
    [`sum(${GRANTED})`, 'granted', line('orange')],
    [`sum(${MEMORY})`, 'GPUs', line('red')],
  ),
  graph(
    'Compute by namespace',
    'Compute used, in GPUs, of the namespaces with the most and of all others together, stacked. Lines: sum of the compute grants, and number of GPUs.',
    { span: 12, unit: 'short', as: 'stack', links: [toNamespace] },
    [top(7, USED_COMPUTE), '{{namespace}}'],
    [others(7, USED_COMPUTE), 'others', REST],
    [GRANTED_COMPUTE, 'granted', line('orange')],
    [`count(${GPUS})`, 'GPUs', line('red')],
  ),
  graph(
    'Granted but unused',
    'Memory that was granted to containers of each namespace and is not used; it is not available to others. The board of the namespace proposes smaller grants.',
    { span: 7, unit: 'bytes', links: [toNamespace] },
    [
      topOfTwo(6, 'namespace', (some) => `sum by (namespace) (clamp_min(${some(LIMIT)} - ${USED}, 0))`),
      '{{namespace}}',
    ],
  ),
  histogram(
    'Containers per GPU',
    'Number of GPUs and MIG instances by the number of containers on them. Many with 0 while others have many: look at the placement policy.',
    among(USABLE, ofTarget('cotenant_device_containers')),
  ).span(5),
  table(
    'Most compute in 24 hours',
    'Containers that used the most compute within 24 hours, in hours of a whole GPU.',
    [['GPU hours', `topk(10, sum by (${WHO}) (${GPU_HOURS}))`]],
    CONTAINER_LABELS,
    toContainer,
  )
    .span(12)
    .height(9),
];

const SATURATION: readonly Panel[] = [
  row('Saturation: what waits'),
  graph(
    'Largest free block',
    'The largest memory grant that still fits on a GPU, of the nodes with the largest. A pod that asks for more waits, however much is free in sum.',
    { span: 8, unit: 'bytes', links: [toNode] },
    [top(4, LARGEST_FREE), NODE_LEGEND],
  ),
  graph(
    'Pods without a node',
    'Calls per second for which the scheduler found no node with enough GPU memory and compute, or none to preempt on. Each pod that waits is tried again and again. Normal: 0, or short peaks.',
    { span: 8, unit: 'short' },
    [`sum(rate(${REFUSED('filter')}[$__rate_interval]))`, 'no node fits'],
    [`sum(rate(${REFUSED('preempt')}[$__rate_interval]))`, 'nothing to preempt'],
  ),
  graph(
    'Waiting for a GPU by namespace',
    'Time per second that launches waited, summed over threads, of the namespaces that waited the most. Growing while compute is not used up: a policy holds them back.',
    { span: 8, unit: 's', links: [toNamespace] },
    [top(8, sumBy('namespace', rate('cotenant_container_sm_throttled_seconds_total'))), '{{namespace}}'],
  ),
];

const ERRORS: readonly Panel[] = [
  row('Errors: what is wrong'),
  table(
    'GPUs with faults',
    'GPUs that are lost or need a reset, and why. Normal: empty. The runbook of CotenantGpuUnhealthy says what to do.',
    [['', `max by (instance, gpu, reason) (${ofTarget('cotenant_device_unhealthy_reason')})`]],
    { instance: 'Node', gpu: 'GPU', reason: 'Reason' },
    toNode,
  )
    .span(8)
    .height(7)
    .noValue('none'),
  table(
    'Stopped in 24 hours',
    'Containers that the agents stopped within 24 hours, why, and when last. Normal: empty. Their boards show what they used then.',
    [['Last', `topk(10, max by (${WHO}, reason) (${LAST_STOP} > time() - ${DAY_SECONDS})) * 1000`, 'dateTimeAsIso']],
    { ...CONTAINER_LABELS, reason: 'Reason' },
    toContainer,
  )
    .span(16)
    .height(7)
    .overrideByName('Last', [property('custom.width', 200)])
    .noValue('none'),
  graph(
    'Denied allocations by namespace',
    'Memory allocations that were denied because of the grant, per step. Normal: 0, or single ones of frameworks that probe. Many: a grant is too small.',
    { span: 8, unit: 'short', as: 'bars', links: [toNamespace] },
    [top(8, DENIED), '{{namespace}}'],
  ).decimals(0),
  graph(
    'GPU errors by node',
    'Xids and uncorrectable memory errors per step, of the nodes with the most. Normal: 0. The board of the node names the codes, the runbook what they require.',
    { span: 8, unit: 'short', as: 'bars', links: [toNode] },
    [
      top(8, sumBy('instance', `increase(${ofTarget('cotenant_device_xid_errors_total')}[$__rate_interval])`)),
      NODE_LEGEND,
    ],
  ).decimals(0),
  graph(
    'Decisions of the agents',
    'Stops that were decided, reported only ("would"), refused or made by evicting the pod, per step. Normal: 0.',
    { span: 8, unit: 'short', as: 'bars' },
    [
      `sum by (decision) (increase(${ofTarget('cotenant_enforcement_decisions_total')}[$__rate_interval]))`,
      '{{decision}}',
    ],
  ).decimals(0),
];

const LISTS: readonly Panel[] = [
  row('Namespaces and nodes'),
  table(
    'Namespaces',
    'Current use of each namespace. Denied: memory allocations that were denied in the last interval.',
    [
      ['Containers', `count by (namespace) (${LIMIT})`],
      ['Granted', `sum by (namespace) (${LIMIT})`, 'bytes'],
      ['Used', `sum by (namespace) (${USED})`, 'bytes'],
      ['Compute (GPUs)', textOf(USED_COMPUTE)],
      ['Denied', textOf(DENIED)],
    ],
    { namespace: 'Namespace' },
    toNamespace,
  ),
  table(
    'Nodes',
    'GPUs of each node. Largest free: the largest memory grant that still fits on one of its GPUs. Agent down: nothing there is monitored or stopped.',
    [
      ['Agent', `max by (instance) (${ofTarget('cotenant_up')})`],
      ['GPUs', `count by (instance) (${GPUS})`],
      ['Containers', `sum by (instance) (${ofTarget('cotenant_device_containers')})`],
      ['Grantable', `sum by (instance) (${GRANTABLE_MEMORY})`, 'bytes'],
      ['Granted', `sum by (instance) (${GRANTED})`, 'bytes'],
      ['Used', `sum by (instance) (${USED_ON_GPUS})`, 'bytes'],
      ['Largest free', textOf(LARGEST_FREE), 'bytes'],
    ],
    { instance: 'Node' },
    toNode,
  ).overrideByName('Agent', UP),
];

export const cluster = boardOf({
  board: 'cluster',
  description:
    'How full and how used the GPUs of all nodes are, which containers wait, and what is wrong. Names of nodes, namespaces and pods lead to their boards.',
  annotations: [stopMarks(`${ofTarget('cotenant_container_last_kill_timestamp_seconds')} * 1000`)],
  panels: [...STATE, ...OFFENDERS, ...UTILIZATION, ...SATURATION, ...ERRORS, ...LISTS],
});
