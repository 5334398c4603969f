// The board "Cluster": how many cards there are, what of them is granted, used and idle, and who has most of it.
import type { Dashboard } from '@grafana/grafana-foundation-sdk/dashboard';
import { boardOf } from './board.ts';
import { histogram, line, ofTarget, type Panel, series, stacked, stat, table, target, WHO } from './builders.ts';
import { type MetricName, select } from './metrics.ts';

const USABLE = `(${ofTarget('cotenant_device_memory_total_bytes')} - ${ofTarget('cotenant_device_memory_reserved_bytes')} or ${ofTarget('cotenant_device_memory_total_bytes')})`;
const GRANTED = ofTarget('cotenant_device_memory_allocated_bytes');
const rate = (counter: MetricName): string => `rate(${ofTarget(counter)}[$__rate_interval])`;
const LIMIT = ofTarget('cotenant_container_memory_limit_bytes');
const USED = ofTarget('cotenant_container_memory_used_bytes');
/** Steps of a minute, each with its mean. */
const CARD_HOURS = `sum_over_time(${rate('cotenant_container_sm_seconds_total')}[24h:1m]) / 60`;
const GIVEN = `max by (instance, gpu_uuid) (${select('cotenant_device_allocation_mode', 'job=~"$job"', 'instance=~"$instance"', 'mode!="none"')} == 1)`;
const BUSY = `max by (instance, gpu_uuid) (max_over_time(${rate('cotenant_container_sm_seconds_total')}[1h:1m]))`;
const STOPS = ofTarget('cotenant_container_last_kill_timestamp_seconds');

export function cluster(): Dashboard {
  return boardOf({
    title: 'Cluster',
    uid: 'cotenant-cluster',
    description: 'All cards together: what is granted, used and idle, where there is room, and who has most of it.',
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
    count('Cards', 'Cards that the agents see.', `count(${ofTarget('cotenant_device_info')})`),
    count(
      'Shared cards',
      'Cards with a grant.',
      `sum(${select('cotenant_device_allocation_mode', 'job=~"$job"', 'instance=~"$instance"', 'mode="shared"')})`,
    ),
    ratio('Memory granted', 'Grants over what can be granted.', `sum(${GRANTED}) / sum(${USABLE})`),
    ratio(
      'Memory used',
      'Used over what can be granted.',
      `sum(${ofTarget('cotenant_device_memory_used_bytes')}) / sum(${USABLE})`,
    ),
    ratio(
      'Compute granted',
      'Granted shares over cards. Above 1 where compute is promised more than once.',
      `sum(${ofTarget('cotenant_device_sm_allocated_ratio')}) / count(${ofTarget('cotenant_device_info')})`,
    ),
    count(
      'Blind agents',
      'Nodes whose agent does not see its cards.',
      `count(${ofTarget('cotenant_up')}) - sum(${ofTarget('cotenant_up')})`,
    ),
    count(
      'Idle cards in use',
      'Cards that somebody was given, a share or the whole, and on which no kernel ran within an hour.',
      `count(${GIVEN} unless on (instance, gpu_uuid) ${BUSY} > 0) or vector(0)`,
    ).span(12),
    count(
      'Stops in a day',
      'Times that a container was stopped within 24 hours.',
      `(sum(changes(${STOPS}[24h])) or vector(0)) + (count(max_over_time(${STOPS}[24h]) unless ${STOPS} offset 24h) or vector(0))`,
    ).span(12),
    stacked(
      series(
        'Memory by namespace',
        'Memory that the driver counts for containers, stacked by namespace. Lines: sum of grants, and what can be granted.',
        12,
      ).unit('bytes'),
    )
      .withTarget(target('A', `sum by (namespace) (${USED})`, '{{namespace}}'))
      .withTarget(target('B', `sum(${GRANTED})`, 'granted'))
      .withTarget(target('C', `sum(${USABLE})`, 'cards'))
      .overrideByQuery('B', line('orange'))
      .overrideByQuery('C', line('red')),
    stacked(
      series(
        'Compute by namespace',
        'Cards kept busy, stacked by namespace. Lines: sum of the granted shares, and cards.',
        12,
      ).unit('short'),
    )
      .withTarget(target('A', `sum by (namespace) (${rate('cotenant_container_sm_seconds_total')})`, '{{namespace}}'))
      .withTarget(target('B', `sum(${ofTarget('cotenant_device_sm_allocated_ratio')})`, 'granted'))
      .withTarget(target('C', `count(${ofTarget('cotenant_device_info')})`, 'cards'))
      .overrideByQuery('B', line('orange'))
      .overrideByQuery('C', line('red')),
    series(
      'Largest free piece',
      'The largest grant that still fits on a card of each node: what is free in many small pieces is no room.',
      12,
    )
      .unit('bytes')
      .min(0)
      .withTarget(target('A', `max by (instance) (${USABLE} - ${GRANTED})`, '{{instance}}')),
    series('Granted and not used', 'Memory that namespaces were granted and do not hold: nobody else can have it.', 12)
      .unit('bytes')
      .min(0)
      .withTarget(target('A', `sum by (namespace) (clamp_min(${LIMIT} - ${USED}, 0))`, '{{namespace}}')),
    histogram('Containers on a card', 'How many cards have how many containers on them.').withTarget(
      target('A', ofTarget('cotenant_device_containers'), '').instant(),
    ),
    table(
      'Most compute in a day',
      'Who used most compute within 24 hours, in hours of a whole card.',
      [{ title: 'Card hours', expr: `topk(10, sum by (${WHO}) (${CARD_HOURS}))` }],
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
        { title: 'Cards busy', expr: `sum by (namespace) (${rate('cotenant_container_sm_seconds_total')})` },
        {
          title: 'Refused',
          expr: `sum by (namespace) (increase(${ofTarget('cotenant_container_allocations_denied_total')}[$__rate_interval]))`,
        },
      ],
      { namespace: 'Namespace' },
    ),
    table(
      'Nodes',
      'What each node has. Largest free: the largest grant that still fits on one of its cards.',
      [
        { title: 'Cards', expr: `count by (instance) (${ofTarget('cotenant_device_info')})` },
        { title: 'Containers', expr: `sum by (instance) (${ofTarget('cotenant_device_containers')})` },
        { title: 'Usable', expr: `sum by (instance) (${USABLE})`, unit: 'bytes' },
        { title: 'Granted', expr: `sum by (instance) (${GRANTED})`, unit: 'bytes' },
        { title: 'Used', expr: `sum by (instance) (${ofTarget('cotenant_device_memory_used_bytes')})`, unit: 'bytes' },
        { title: 'Largest free', expr: `max by (instance) (${USABLE} - ${GRANTED})`, unit: 'bytes' },
      ],
      { instance: 'Node' },
    ),
  ];
}
