// The board "Cluster": GPUs of all nodes, memory and compute granted, used and idle, by namespace and node.
import { boardOf } from './board.ts';
import {
  among,
  GPUS,
  GRANTABLE,
  graph,
  histogram,
  line,
  ofTarget,
  type Panel,
  stat,
  table,
  USABLE,
  WHO,
} from './builders.ts';
import { stopsWithin } from './lib/expressions.ts';
import { type MetricName, select } from './lib/metrics.ts';

const TARGET = ['job=~"$job"', 'instance=~"$instance"'];
const TOTAL = ofTarget('cotenant_device_memory_total_bytes');
/** Without what the driver reserves. Of a GPU divided by MIG only the instances have memory. */
const MEMORY = `(${TOTAL} - ${ofTarget('cotenant_device_memory_reserved_bytes')} or ${TOTAL})`;
const GRANTABLE_MEMORY = among(GRANTABLE, MEMORY);
const GRANTED = ofTarget('cotenant_device_memory_allocated_bytes');
const GRANTED_COMPUTE = `sum(${ofTarget('cotenant_device_sm_allocated_ratio')})`;
const rate = (counter: MetricName): string => `rate(${ofTarget(counter)}[$__rate_interval])`;
const LIMIT = ofTarget('cotenant_container_memory_limit_bytes');
const USED = ofTarget('cotenant_container_memory_used_bytes');
const USED_ON_GPUS = ofTarget('cotenant_device_memory_used_bytes');
const USED_COMPUTE = `sum by (namespace) (${rate('cotenant_container_sm_seconds_total')})`;
/** Steps of a minute, each with its mean. */
const GPU_HOURS = `sum_over_time(${rate('cotenant_container_sm_seconds_total')}[24h:1m]) / 60`;
const LARGEST_FREE = `max by (instance) (${GRANTABLE_MEMORY} - ${GRANTED})`;
const BY_GPU = 'max by (instance, gpu_uuid)';
const MODE = select('cotenant_device_allocation_mode', ...TARGET, 'mode!="none"');
const ALLOCATED = `${BY_GPU} (${among(USABLE, `${MODE} == 1`)})`;
/** For MIG instances the driver samples no kernels; their hardware counters say what was active. */
const BUSY = [
  `${BY_GPU} (max_over_time(${rate('cotenant_container_sm_seconds_total')}[1h:1m]))`,
  `${BY_GPU} (max_over_time(${ofTarget('cotenant_device_sm_active_ratio')}[1h]))`,
].join(' or ');

const PANELS: readonly Panel[] = [
  stat('GPUs', 'GPUs that the agents monitor. A GPU divided by MIG counts once.', 4, `count(${GPUS})`),
  stat(
    'Shared GPUs',
    'GPUs with at least one grant.',
    4,
    `sum(${select('cotenant_device_allocation_mode', ...TARGET, 'mode="shared"')})`,
  ),
  stat(
    'Memory granted',
    'Sum of the grants relative to the memory that can be granted, that of GPUs without MIG.',
    4,
    `sum(${GRANTED}) / sum(${GRANTABLE_MEMORY})`,
  ).unit('percentunit'),
  stat(
    'Memory used',
    'Used memory relative to the memory of all GPUs, without what the driver reserves.',
    4,
    `sum(${USED_ON_GPUS}) / sum(${MEMORY})`,
  ).unit('percentunit'),
  stat(
    'Compute granted',
    'Sum of the compute grants relative to the number of GPUs without MIG. Above 1 if compute is overcommitted.',
    4,
    `${GRANTED_COMPUTE} / count(${GRANTABLE})`,
  ).unit('percentunit'),
  stat(
    'Agents down',
    'Nodes whose agent cannot read its GPUs.',
    4,
    `count(${ofTarget('cotenant_up')}) - sum(${ofTarget('cotenant_up')})`,
  ),
  stat(
    'Allocated but idle GPUs',
    'GPUs that are allocated, as shares or as a whole, and on which no kernel ran within an hour; MIG instances without activity, if they have hardware counters (Hopper and later).',
    12,
    `count(${ALLOCATED} and on (instance, gpu_uuid) ((${BUSY}) == 0)) or vector(0)`,
  ),
  stat(
    'Stops in 24 hours',
    'Stops of containers within 24 hours.',
    12,
    `sum(${stopsWithin(24 * 3600, ...TARGET)}) or vector(0)`,
  ),
  graph(
    'Memory by namespace',
    'Memory of containers as the driver reports it, stacked by namespace. Lines: sum of the grants, and memory of all GPUs.',
    { span: 12, unit: 'bytes', as: 'stack' },
    [`sum by (namespace) (${USED})`, '{{namespace}}'],
    [`sum(${GRANTED})`, 'granted', line('orange')],
    [`sum(${MEMORY})`, 'GPUs', line('red')],
  ),
  graph(
    'Compute by namespace',
    'Compute used, in GPUs, stacked by namespace. Lines: sum of the compute grants, and number of GPUs.',
    { span: 12, unit: 'short', as: 'stack' },
    [USED_COMPUTE, '{{namespace}}'],
    [GRANTED_COMPUTE, 'granted', line('orange')],
    [`count(${GPUS})`, 'GPUs', line('red')],
  ),
  graph(
    'Largest free block',
    'The largest memory grant that still fits on a GPU of each node.',
    { span: 12, unit: 'bytes' },
    [LARGEST_FREE, '{{instance}}'],
  ),
  graph(
    'Granted but unused',
    'Memory that was granted to containers of each namespace and is not used. It is not available to others.',
    { span: 12, unit: 'bytes' },
    [`sum by (namespace) (clamp_min(${LIMIT} - ${USED}, 0))`, '{{namespace}}'],
  ),
  histogram(
    'Containers per GPU',
    'Number of GPUs and MIG instances by the number of containers on them.',
    among(USABLE, ofTarget('cotenant_device_containers')),
  ),
  table(
    'Most compute in 24 hours',
    'Containers that used the most compute within 24 hours, in hours of a whole GPU.',
    [['GPU hours', `topk(10, sum by (${WHO}) (${GPU_HOURS}))`]],
    { namespace: 'Namespace', pod: 'Pod', container: 'Container' },
  )
    .span(12)
    .height(8),
  table(
    'Namespaces',
    'Current use of each namespace. Denied: memory allocations that were denied in the last interval.',
    [
      ['Containers', `count by (namespace) (${LIMIT})`],
      ['Granted', `sum by (namespace) (${LIMIT})`, 'bytes'],
      ['Used', `sum by (namespace) (${USED})`, 'bytes'],
      ['Compute (GPUs)', USED_COMPUTE],
      [
        'Denied',
        `sum by (namespace) (increase(${ofTarget('cotenant_container_allocations_denied_total')}[$__rate_interval]))`,
      ],
    ],
    { namespace: 'Namespace' },
  ),
  table(
    'Nodes',
    'GPUs of each node. Largest free: the largest memory grant that still fits on one of its GPUs.',
    [
      ['GPUs', `count by (instance) (${GPUS})`],
      ['Containers', `sum by (instance) (${ofTarget('cotenant_device_containers')})`],
      ['Grantable', `sum by (instance) (${GRANTABLE_MEMORY})`, 'bytes'],
      ['Granted', `sum by (instance) (${GRANTED})`, 'bytes'],
      ['Used', `sum by (instance) (${USED_ON_GPUS})`, 'bytes'],
      ['Largest free', LARGEST_FREE, 'bytes'],
    ],
    { instance: 'Node' },
  ),
];

export const cluster = boardOf({
  title: 'Cluster',
  uid: 'cotenant-cluster',
  description: 'GPUs of all nodes: memory and compute granted, used and idle, by namespace and node.',
  allNodes: true,
  panels: PANELS,
});
