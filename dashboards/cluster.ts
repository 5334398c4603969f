// The board "Cluster": how many GPUs there are, what of them is granted, used and idle, and who has most of it.
import type { Dashboard } from '@grafana/grafana-foundation-sdk/dashboard';
import { stopsWithin } from './alerts/rule.ts';
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
import { type MetricName, select } from './lib/metrics.ts';

const TOTAL = ofTarget('cotenant_device_memory_total_bytes');
/** Without what the driver keeps. A divided GPU has no memory: its instances have. */
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
const GIVEN = `${BY_GPU} (${among(USABLE, `${MODE} == 1`)})`;
/** Of an instance no kernels are told, and what was at work where it has counters of its own. */
const BUSY = [
  `${BY_GPU} (max_over_time(${rate('cotenant_container_sm_seconds_total')}[1h:1m]))`,
  `${BY_GPU} (max_over_time(${ofTarget('cotenant_device_sm_active_ratio')}[1h]))`,
].join(' or ');

export function cluster(): Dashboard {
  return boardOf({
    title: 'Cluster',
    uid: 'cotenant-cluster',
    description: 'All GPUs together: what is granted, used and idle, where there is room, and who has most of it.',
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
    count('GPUs', 'GPUs that the agents see. A divided one is one.', `count(${GPUS})`),
    count(
      'Shared GPUs',
      'GPUs with a grant.',
      `sum(${select('cotenant_device_allocation_mode', 'job=~"$job"', 'instance=~"$instance"', 'mode="shared"')})`,
    ),
    ratio(
      'Memory granted',
      'Grants over what can be granted: the memory of GPUs that are not divided.',
      `sum(${GRANTED}) / sum(${GRANTABLE_MEMORY})`,
    ),
    ratio(
      'Memory used',
      'Used over the memory of all GPUs, without what the driver keeps.',
      `sum(${ofTarget('cotenant_device_memory_used_bytes')}) / sum(${MEMORY})`,
    ),
    ratio(
      'Compute granted',
      'Granted shares over GPUs that are not divided. Above 1 where compute is promised more than once.',
      `sum(${ofTarget('cotenant_device_sm_allocated_ratio')}) / count(${GRANTABLE})`,
    ),
    count(
      'Blind agents',
      'Nodes whose agent does not see its GPUs.',
      `count(${ofTarget('cotenant_up')}) - sum(${ofTarget('cotenant_up')})`,
    ),
    count(
      'Idle GPUs in use',
      'GPUs that somebody was given, a share or the whole, and on which no kernel ran within an hour; instances of divided GPUs of which nothing was at work, where they count that (Hopper and later).',
      `count(${GIVEN} and on (instance, gpu_uuid) ((${BUSY}) == 0)) or vector(0)`,
    ).span(12),
    count(
      'Stops in a day',
      'Times that a container was stopped within 24 hours.',
      `sum(${stopsWithin(24 * 3600, 'job=~"$job"', 'instance=~"$instance"')}) or vector(0)`,
    ).span(12),
    stacked(
      series(
        'Memory by namespace',
        'Memory that the driver counts for containers, stacked by namespace. Lines: sum of grants, and the memory of all GPUs.',
        12,
      ).unit('bytes'),
    )
      .withTarget(target('A', `sum by (namespace) (${USED})`, '{{namespace}}'))
      .withTarget(target('B', `sum(${GRANTED})`, 'granted'))
      .withTarget(target('C', `sum(${MEMORY})`, 'gpus'))
      .overrideByQuery('B', line('orange'))
      .overrideByQuery('C', line('red')),
    stacked(
      series(
        'Compute by namespace',
        'GPUs kept busy, stacked by namespace. Lines: sum of the granted shares, and GPUs.',
        12,
      ).unit('short'),
    )
      .withTarget(target('A', `sum by (namespace) (${rate('cotenant_container_sm_seconds_total')})`, '{{namespace}}'))
      .withTarget(target('B', `sum(${ofTarget('cotenant_device_sm_allocated_ratio')})`, 'granted'))
      .withTarget(target('C', `count(${GPUS})`, 'gpus'))
      .overrideByQuery('B', line('orange'))
      .overrideByQuery('C', line('red')),
    series(
      'Largest free piece',
      'The largest grant that still fits on a GPU of each node: what is free in many small pieces is no room.',
      12,
    )
      .unit('bytes')
      .min(0)
      .withTarget(target('A', `max by (instance) (${GRANTABLE_MEMORY} - ${GRANTED})`, '{{instance}}')),
    series('Granted and not used', 'Memory that namespaces were granted and do not hold: nobody else can have it.', 12)
      .unit('bytes')
      .min(0)
      .withTarget(target('A', `sum by (namespace) (clamp_min(${LIMIT} - ${USED}, 0))`, '{{namespace}}')),
    histogram(
      'Containers on a GPU',
      'How many GPUs, and instances of divided ones, have how many containers on them.',
    ).withTarget(target('A', among(USABLE, ofTarget('cotenant_device_containers')), '').instant()),
    table(
      'Most compute in a day',
      'Who used most compute within 24 hours, in hours of a whole GPU.',
      [{ title: 'GPU hours', expr: `topk(10, sum by (${WHO}) (${GPU_HOURS}))` }],
      { namespace: 'Namespace', pod: 'Pod', container: 'Container' },
    )
      .span(12)
      .height(8),
    table(
      'Namespaces',
      'What each namespace has now. Refused: requests for memory, within the last minutes.',
      [
        { title: 'Containers', expr: `count by (namespace) (${LIMIT})` },
        { title: 'Granted', expr: `sum by (namespace) (${LIMIT})`, unit: 'bytes' },
        { title: 'Used', expr: `sum by (namespace) (${USED})`, unit: 'bytes' },
        { title: 'GPUs busy', expr: `sum by (namespace) (${rate('cotenant_container_sm_seconds_total')})` },
        {
          title: 'Refused',
          expr: `sum by (namespace) (increase(${ofTarget('cotenant_container_allocations_denied_total')}[$__rate_interval]))`,
        },
      ],
      { namespace: 'Namespace' },
    ),
    table(
      'Nodes',
      'What each node has. Largest free: the largest grant that still fits on one of its GPUs.',
      [
        { title: 'GPUs', expr: `count by (instance) (${GPUS})` },
        { title: 'Containers', expr: `sum by (instance) (${ofTarget('cotenant_device_containers')})` },
        { title: 'Can be granted', expr: `sum by (instance) (${GRANTABLE_MEMORY})`, unit: 'bytes' },
        { title: 'Granted', expr: `sum by (instance) (${GRANTED})`, unit: 'bytes' },
        { title: 'Used', expr: `sum by (instance) (${ofTarget('cotenant_device_memory_used_bytes')})`, unit: 'bytes' },
        { title: 'Largest free', expr: `max by (instance) (${GRANTABLE_MEMORY} - ${GRANTED})`, unit: 'bytes' },
      ],
      { instance: 'Node' },
    ),
  ];
}
