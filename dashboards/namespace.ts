// The board "Namespace": what a team has, uses, wastes and was refused, and which grants would be enough.
import * as common from '@grafana/grafana-foundation-sdk/common';
import { boardOf, stopMarks, variable } from './board.ts';
import {
  answers,
  graph,
  line,
  ORANGE_FROM_ONE,
  others,
  type Panel,
  REST,
  row,
  table,
  top,
  topOfTwo,
  WHO,
} from './builders.ts';
import { stopsWithin, sumBy } from './lib/expressions.ts';
import { type MetricName, select } from './lib/metrics.ts';
import { toContainer } from './links.ts';

const CHOSEN = ['job=~"$job"', 'instance=~"$instance"', 'namespace=~"$namespace"'];
const of = (metric: MetricName): string => select(metric, ...CHOSEN);
const rate = (counter: MetricName): string => `rate(${of(counter)}[$__rate_interval])`;
const by = (expr: string): string => `sum by (${WHO}) (${expr})`;
const LIMIT = of('cotenant_container_memory_limit_bytes');
const USED = of('cotenant_container_memory_used_bytes');
const COMPUTE = rate('cotenant_container_sm_seconds_total');
const COMPUTE_LIMIT = of('cotenant_container_sm_limit_ratio');
const DENIED = `increase(${of('cotenant_container_allocations_denied_total')}[$__rate_interval])`;
const PEAK = `max_over_time(${of('cotenant_container_memory_peak_bytes')}[$__range])`;
const SHORT = '{{pod}} {{container}}';
const LABELS = { namespace: 'Namespace', pod: 'Pod', container: 'Container' };

const STATE = answers(
  {
    title: 'Containers',
    is: 'Containers of the namespace with a GPU grant.',
    expr: `count(count by (${WHO}) (${LIMIT}))`,
  },
  { title: 'Memory granted', is: 'Sum of the memory grants.', expr: `sum(${LIMIT})`, unit: 'bytes' },
  {
    title: 'Memory used',
    is: 'Used memory relative to the grants. Below 50 % for long: "What to ask for" proposes smaller grants.',
    expr: `sum(${USED}) / sum(${LIMIT} > 0)`,
    unit: 'percentunit',
  },
  {
    title: 'Compute granted',
    is: 'Sum of the compute grants, in GPUs.',
    expr: `sum(${COMPUTE_LIMIT}) or vector(0)`,
    unit: 'short',
  },
  { title: 'Compute used', is: 'Compute that kernels used, in GPUs.', expr: `sum(${COMPUTE})`, unit: 'short' },
  {
    title: 'Idle',
    is: 'Containers with a grant that ran no kernel within an hour. Normal: 0. Give their GPU back.',
    expr: `count((${by(`max_over_time(${COMPUTE}[1h:1m])`)}) == 0) or vector(0)`,
    steps: ORANGE_FROM_ONE,
  },
  {
    title: 'Denied',
    is: 'Memory allocations that were denied in the last interval. Normal: 0. See "Refused".',
    expr: `sum(${DENIED})`,
    steps: ORANGE_FROM_ONE,
  },
  {
    title: 'Stops in 24 h',
    is: 'Containers that the agents stopped within 24 hours. Normal: 0. The board of the container says why.',
    expr: `sum(${stopsWithin(24 * 3600, ...CHOSEN)}) or vector(0)`,
    steps: ORANGE_FROM_ONE,
  },
);

const ADVICE: readonly Panel[] = [
  table(
    'What to ask for',
    'Grants and what was needed of them in the time range: the largest use of memory, and 95 % of the time at most this much compute. A grant a tenth above that is enough. To give back: what is granted beyond that; below 0 the container needs more, and where it was denied memory it is not known how much. "cotenant recommend" computes it over days.',
    [
      ['Memory granted', by(LIMIT), 'bytes'],
      ['Memory needed', by(PEAK), 'bytes'],
      ['To give back', by(`${LIMIT} - 1.1 * ${PEAK}`), 'bytes'],
      ['Compute granted', by(COMPUTE_LIMIT), 'percentunit'],
      ['Compute needed', by(`quantile_over_time(0.95, ${COMPUTE}[$__range:$__rate_interval])`), 'percentunit'],
    ],
    LABELS,
    toContainer,
  )
    .height(11)
    .sortBy([new common.TableSortByFieldStateBuilder().displayName('To give back').desc(true)]),
];

/** Of extended resources, whose quotas have such names. */
const quota = (type: 'used' | 'hard'): string =>
  select('kube_resourcequota', 'namespace=~"$namespace"', 'resource=~"requests[.].+/.+"', `type="${type}"`);

const QUOTAS: readonly Panel[] = [
  table(
    'Quotas',
    'What is used of the ResourceQuotas of GPU shares and other devices, by kube-state-metrics. At 100 % the API server refuses further pods of the namespace. Empty without quotas or without kube-state-metrics.',
    [
      [
        'Used',
        `max by (namespace, resourcequota, resource) (${quota('used')} / ignoring (type) (${quota('hard')} > 0))`,
        'percentunit',
      ],
    ],
    { namespace: 'Namespace', resourcequota: 'Quota', resource: 'Resource' },
  )
    .height(6)
    .sortBy([new common.TableSortByFieldStateBuilder().displayName('Used').desc(true)])
    .noValue('none'),
];

const UTILIZATION: readonly Panel[] = [
  row('Used and wasted'),
  graph(
    'Memory by container',
    'Memory of the largest containers as the driver reports it, and of all others together, stacked. Line: sum of the grants. The gap is wasted: no other container can have it.',
    { span: 12, unit: 'bytes', as: 'stack', links: [toContainer] },
    [top(4, sumBy(WHO, USED)), SHORT],
    [others(4, sumBy(WHO, USED)), 'others', REST],
    [`sum(${LIMIT})`, 'granted', line('orange')],
  ),
  graph(
    'Compute by container',
    'Compute of the containers with the most, and of all others together, in GPUs, stacked. Line: sum of the compute grants.',
    { span: 12, unit: 'short', as: 'stack', links: [toContainer] },
    [top(4, sumBy(WHO, COMPUTE)), SHORT],
    [others(4, sumBy(WHO, COMPUTE)), 'others', REST],
    [`sum(${COMPUTE_LIMIT})`, 'granted', line('orange')],
  ),
  graph(
    'Granted but unused',
    'Memory that was granted and is not used, of the containers with the most.',
    { span: 12, unit: 'bytes', links: [toContainer] },
    [topOfTwo(4, WHO, (some) => by(`clamp_min(${some(LIMIT)} - ${USED}, 0)`)), SHORT],
  ),
  table(
    'Most compute in 24 hours',
    'Containers that used the most compute within 24 hours, in hours of a whole GPU.',
    [['GPU hours', `topk(10, ${by(`sum_over_time(${COMPUTE}[24h:1m]) / 60`)})`]],
    LABELS,
    toContainer,
  )
    .span(12)
    .height(9),
];

const REFUSED: readonly Panel[] = [
  row('Refused'),
  graph(
    'Denied allocations',
    'Memory allocations that were denied because of the grant, per step, of the containers with the most. Normal: 0. Many: the grant is too small.',
    { span: 8, unit: 'short', as: 'bars', links: [toContainer] },
    [top(4, sumBy(WHO, DENIED)), SHORT],
  ).decimals(0),
  graph(
    'Waiting for a GPU',
    'Seconds per second that launches waited, summed over threads, of the containers that waited the most. Normal: below 0.5.',
    { span: 8, unit: 's', links: [toContainer] },
    [top(4, sumBy(WHO, rate('cotenant_container_sm_throttled_seconds_total'))), SHORT],
  ),
  graph(
    'Time over limit',
    'Time over the memory grant and the tolerance, per step, of the containers with the most. Normal: 0. The agent stops what stays over.',
    { span: 8, unit: 's', as: 'bars', links: [toContainer] },
    [
      top(4, sumBy(WHO, `increase(${of('cotenant_container_memory_over_limit_seconds_total')}[$__rate_interval])`)),
      SHORT,
    ],
  ),
];

export const namespace = boardOf({
  board: 'namespace',
  description: 'What a namespace has of the GPUs, uses, wastes and was refused, and what its pods should ask for.',
  variables: [variable('namespace', select('cotenant_container_info', 'job=~"$job"', 'instance=~"$instance"'))],
  annotations: [stopMarks(`${of('cotenant_container_last_kill_timestamp_seconds')} * 1000`)],
  panels: [...STATE, ...ADVICE, ...QUOTAS, ...UTILIZATION, ...REFUSED],
});
