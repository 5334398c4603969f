// The board "Cluster": GPUs of all nodes, memory and compute granted, used and idle, by namespace and node.
import type { Dashboard } from '@grafana/grafana-foundation-sdk/dashboard';
import { boardOf } from './board.ts';
import {
  among,
  GPUS,
  GRANTABLE,
  histogram,
  line,
  ofTarget,
  type Panel,
  series,
  stacked,
  stat,
  table,
  target,
  USABLE,
  WHO,
} from './builders.ts';
import { stopsWithin } from './lib/expressions.ts';
import { type MetricName, select } from './lib/metrics.ts';

const TOTAL = ofTarget('cotenant_device_memory_total_bytes');
/** Without what the driver reserves. Of a GPU divided by MIG only the instances have memory. */
const MEMORY = `(${TOTAL} - ${ofTarget('cotenant_device_memory_reserved_bytes')} or ${TOTAL})`;
const GRANTABLE_MEMORY = among(GRANTABLE, MEMORY);
const GRANTED = ofTarget('cotenant_device_memory_allocated_bytes');
const rate = (counter: MetricName): string => `rate(${ofTarget(counter)}[$__rate_interval])`;
const LIMIT = ofTarget('cotenant_container_memory_limit_bytes');
const USED = ofTarget('cotenant_container_memory_used_bytes');
/** Steps of a minute, each with its mean. */
const GPU_HOURS = `sum_over_time(${rate('cotenant_container_sm_seconds_total')}[24h:1m]) / 60`;
const BY_GPU = 'max by (instance, gpu_uuid)';
const MODE = select('cotenant_device_allocation_mode', 'job=~"$job"', 'instance=~"$instance"', 'mode!="none"');
const ALLOCATED = `${BY_GPU} (${among(USABLE, `${MODE} == 1`)})`;
/** For MIG instances the driver samples no kernels; their hardware counters say what was active. */
const BUSY = [
  `${BY_GPU} (max_over_time(${rate('cotenant_container_sm_seconds_total')}[1h:1m]))`,
  `${BY_GPU} (max_over_time(${ofTarget('cotenant_device_sm_active_ratio')}[1h]))`,
].join(' or ');

export function cluster(): Dashboard {
  return boardOf({
    title: 'Cluster',
    uid: 'cotenant-cluster',
    description: 'GPUs of all nodes: memory and compute granted, used and idle, by namespace and node.',
    allNodes: true,
    panels: panels(),
  });
}

function panels(): readonly Panel[] {
  const count = (title: string, description: string, expr: string) =>
    stat(title, description)
      .span(4)
      .withTarget(target('A', expr, '').instant());
  const ratio = (title: string, description: string, expr: string) =>
    count(title, description, expr).unit('percentunit');
  return [
    count('GPUs', 'GPUs that the agents monitor. A GPU divided by MIG counts once.', `count(${GPUS})`),
    count(
      'Shared GPUs',
      'GPUs with at least one grant.',
      `sum(${select('cotenant_device_allocation_mode', 'job=~"$job"', 'instance=~"$instance"', 'mode="shared"')})`,
    ),
    ratio(
      'Memory granted',
      'Sum of the grants relative to the memory that can be granted, that of GPUs without MIG.',
      `sum(${GRANTED}) / sum(${GRANTABLE_MEMORY})`,
    ),
    ratio(
      'Memory used',
      'Used memory relative to the memory of all GPUs, without what the driver reserves.',
      `sum(${ofTarget('cotenant_device_memory_used_bytes')}) / sum(${MEMORY})`,
    ),
    ratio(
      'Compute granted',
      'Sum of the compute grants relative to the number of GPUs without MIG. Above 1 if compute is overcommitted.',
      `sum(${ofTarget('cotenant_device_sm_allocated_ratio')}) / count(${GRANTABLE})`,
    ),
    count(
      'Agents down',
      'Nodes whose agent cannot read its GPUs.',
      `count(${ofTarget('cotenant_up')}) - sum(${ofTarget('cotenant_up')})`,
    ),
    count(
      'Allocated but idle GPUs',
      'GPUs that are allocated, as shares or as a whole, and on which no kernel ran within an hour; MIG instances without activity, if they have hardware counters (Hopper and later).',
      `count(${ALLOCATED} and on (instance, gpu_uuid) ((${BUSY}) == 0)) or vector(0)`,
    ).span(12),
    count(
      'Stops in 24 hours',
      'Stops of containers within 24 hours.',
      `sum(${stopsWithin(24 * 3600, 'job=~"$job"', 'instance=~"$instance"')}) or vector(0)`,
    ).span(12),
    stacked(
      series(
        'Memory by namespace',
        'Memory of containers as the driver reports it, stacked by namespace. Lines: sum of the grants, and memory of all GPUs.',
        12,
      ).unit('bytes'),
    )
      .withTarget(target('A', `sum by (namespace) (${USED})`, '{{namespace}}'))
      .withTarget(target('B', `sum(${GRANTED})`, 'granted'))
      .withTarget(target('C', `sum(${MEMORY})`, 'GPUs'))
      .overrideByQuery('B', line('orange'))
      .overrideByQuery('C', line('red')),
    stacked(
      series(
        'Compute by namespace',
        'Compute used, in GPUs, stacked by namespace. Lines: sum of the compute grants, and number of GPUs.',
        12,
      ).unit('short'),
    )
      .withTarget(target('A', `sum by (namespace) (${rate('cotenant_container_sm_seconds_total')})`, '{{namespace}}'))
      .withTarget(target('B', `sum(${ofTarget('cotenant_device_sm_allocated_ratio')})`, 'granted'))
      .withTarget(target('C', `count(${GPUS})`, 'GPUs'))
      .overrideByQuery('B', line('orange'))
      .overrideByQuery('C', line('red')),
    series('Largest free block', 'The largest memory grant that still fits on a GPU of each node.', 12)
      .unit('bytes')
      .min(0)
      .withTarget(target('A', `max by (instance) (${GRANTABLE_MEMORY} - ${GRANTED})`, '{{instance}}')),
    series(
      'Granted but unused',
      'Memory that was granted to containers of each namespace and is not used. It is not available to others.',
      12,
    )
      .unit('bytes')
      .min(0)
      .withTarget(target('A', `sum by (namespace) (clamp_min(${LIMIT} - ${USED}, 0))`, '{{namespace}}')),
    histogram('Containers per GPU', 'Number of GPUs and MIG instances by the number of containers on them.').withTarget(
      target('A', among(USABLE, ofTarget('cotenant_device_containers')), '').instant(),
    ),
    table(
      'Most compute in 24 hours',
      'Containers that used the most compute within 24 hours, in hours of a whole GPU.',
      [{ title: 'GPU hours', expr: `topk(10, sum by (${WHO}) (${GPU_HOURS}))` }],
      { namespace: 'Namespace', pod: 'Pod', container: 'Container' },
    )
      .span(12)
      .height(8),
    table(
      'Namespaces',
      'Current use of each namespace. Denied: memory allocations that were denied in the last interval.',
      [
        { title: 'Containers', expr: `count by (namespace) (${LIMIT})` },
        { title: 'Granted', expr: `sum by (namespace) (${LIMIT})`, unit: 'bytes' },
        { title: 'Used', expr: `sum by (namespace) (${USED})`, unit: 'bytes' },
        { title: 'Compute (GPUs)', expr: `sum by (namespace) (${rate('cotenant_container_sm_seconds_total')})` },
        {
          title: 'Denied',
          expr: `sum by (namespace) (increase(${ofTarget('cotenant_container_allocations_denied_total')}[$__rate_interval]))`,
        },
      ],
      { namespace: 'Namespace' },
    ),
    table(
      'Nodes',
      'GPUs of each node. Largest free: the largest memory grant that still fits on one of its GPUs.',
      [
        { title: 'GPUs', expr: `count by (instance) (${GPUS})` },
        { title: 'Containers', expr: `sum by (instance) (${ofTarget('cotenant_device_containers')})` },
        { title: 'Grantable', expr: `sum by (instance) (${GRANTABLE_MEMORY})`, unit: 'bytes' },
        { title: 'Granted', expr: `sum by (instance) (${GRANTED})`, unit: 'bytes' },
        { title: 'Used', expr: `sum by (instance) (${ofTarget('cotenant_device_memory_used_bytes')})`, unit: 'bytes' },
        { title: 'Largest free', expr: `max by (instance) (${GRANTABLE_MEMORY} - ${GRANTED})`, unit: 'bytes' },
      ],
      { instance: 'Node' },
    ),
  ];
}
