// The board "Container": memory and compute of one workload relative to its grant, denied allocations, and throttling.
import type { Dashboard } from '@grafana/grafana-foundation-sdk/dashboard';
import { boardOf, stopMarks, variable } from './board.ts';
import { line, type Panel, series, stacked, stat, steps, target, timeline } from './builders.ts';
import { CONFIGURATION, type Configuration } from './lib/configuration.ts';
import { type MetricName, select } from './lib/metrics.ts';

const CHOSEN = [
  'job=~"$job"',
  'instance=~"$instance"',
  'namespace=~"$namespace"',
  'pod=~"$pod"',
  'container=~"$container"',
];
const of = (metric: MetricName): string => select(metric, ...CHOSEN);
const rate = (counter: MetricName): string => `rate(${of(counter)}[$__rate_interval])`;
const WHERE = 'GPU {{gpu}}';
const BY = 'pod, container, gpu';
const LEGEND = `{{pod}} {{container}} ${WHERE}`;

export function container(configuration: Configuration = CONFIGURATION): Dashboard {
  const info = (...more: readonly string[]) =>
    select('cotenant_container_info', 'job=~"$job"', 'instance=~"$instance"', ...more);
  return boardOf({
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
    panels: panels(configuration),
  });
}

function panels({ nearLimit }: Configuration): readonly Panel[] {
  const limit = `(${of('cotenant_container_memory_limit_bytes')} > 0)`;
  const max = (expr: string) => `max by (${BY}) (${expr})`;
  const value = (title: string, description: string, expr: string) =>
    stat(title, description)
      .span(6)
      .withTarget(target('A', expr, '').instant());
  return [
    value(
      'Memory used',
      'Used relative to granted, for the container nearest to its limit.',
      `max(${of('cotenant_container_memory_used_bytes')} / ${limit})`,
    ).unit('percentunit'),
    value(
      'Peak memory',
      'Largest use since the container started, relative to its grant. A smaller grant must be larger than this.',
      `max(${of('cotenant_container_memory_peak_bytes')} / ${limit})`,
    ).unit('percentunit'),
    value(
      'Denied allocations',
      'Memory allocations that were denied in the last interval.',
      `sum(increase(${of('cotenant_container_allocations_denied_total')}[$__rate_interval]))`,
    ),
    value(
      'Time over limit',
      'Time over grant and tolerance in the last interval.',
      `sum(increase(${of('cotenant_container_memory_over_limit_seconds_total')}[$__rate_interval]))`,
    ).unit('s'),
    series(
      'Memory',
      'Memory that the driver reports, the grant, and the peak since the start. Managed memory is in the peak, but not in what the driver reports.',
      12,
    )
      .unit('bytes')
      .min(0)
      .withTarget(target('A', max(of('cotenant_container_memory_used_bytes')), LEGEND))
      .withTarget(target('B', max(of('cotenant_container_memory_limit_bytes')), `${LEGEND} limit`))
      .withTarget(target('C', max(of('cotenant_container_memory_peak_bytes')), `${LEGEND} peak`))
      .overrideByQuery('B', line('red'))
      .overrideByQuery('C', line('text')),
    series('Memory relative to limit', 'Used memory relative to the grant, by container and GPU.', 12)
      .unit('percentunit')
      .min(0)
      .thresholds(steps([null, 'green'], [nearLimit.ratio, 'orange'], [1, 'red']))
      .withTarget(target('A', max(`${of('cotenant_container_memory_used_bytes')} / ${limit}`), LEGEND)),
    stacked(
      series(
        'Usage ledger',
        'Memory in the usage ledger by kind, and memory of processes that bypass the interposer. The container can write the ledger.',
        12,
      ).unit('bytes'),
    )
      .withTarget(target('A', `sum by (kind) (${of('cotenant_container_memory_ledger_bytes')})`, '{{kind}}'))
      .withTarget(target('B', `sum(${of('cotenant_container_memory_bypass_bytes')})`, 'bypass')),
    series('Compute', 'Fraction of a GPU that its kernels used, and its compute grant.', 12)
      .unit('percentunit')
      .min(0)
      .withTarget(target('A', max(rate('cotenant_container_sm_seconds_total')), LEGEND))
      .withTarget(target('B', max(of('cotenant_container_sm_limit_ratio')), `${LEGEND} granted`))
      .overrideByQuery('B', line('red')),
    series(
      'Sampled and charged compute',
      "Fraction of a GPU by the driver's samples, and by what the arbiter charged, gaps between launches included. If samples stay above the charge, some work bypasses the arbiter.",
      12,
    )
      .unit('percentunit')
      .min(0)
      .withTarget(target('A', max(rate('cotenant_container_sm_seconds_total')), `${LEGEND} sampled`))
      .withTarget(target('B', max(rate('cotenant_container_sm_charged_seconds_total')), `${LEGEND} charged`))
      .withTarget(target('C', max(rate('cotenant_container_sm_contended_seconds_total')), `${LEGEND} contended`)),
    series(
      'Throttling',
      'Time per second that launches waited for the GPU, summed over threads; and charged time in which other containers used the GPU as well.',
      12,
    )
      .unit('percentunit')
      .min(0)
      .withTarget(target('A', max(rate('cotenant_container_sm_throttled_seconds_total')), `${LEGEND} throttled`))
      .withTarget(target('B', max(rate('cotenant_container_sm_contended_seconds_total')), `${LEGEND} contended`)),
    series('Denied allocations per second', 'Memory allocations that were denied, per second.', 12)
      .unit('short')
      .min(0)
      .withTarget(target('A', max(rate('cotenant_container_allocations_denied_total')), LEGEND)),
    series('Processes', 'Running processes of the container on the GPU.', 12)
      .unit('short')
      .min(0)
      .decimals(0)
      .withTarget(target('A', max(of('cotenant_container_processes')), LEGEND)),
    timeline(
      'Over limit',
      'When it exceeded its memory grant and tolerance, or its compute limit. Stops are red marks.',
      { 0: { text: 'within', color: 'green' }, 1: { text: 'over', color: 'red' } },
    )
      .withTarget(target('A', max(of('cotenant_container_memory_over_limit')), `${LEGEND} memory`))
      .withTarget(target('B', max(of('cotenant_container_compute_over_limit')), `${LEGEND} compute`)),
    timeline('Isolation', 'What enforced its memory limit: driver, interposer, agent, or none.', {
      1: { text: 'enforces', color: 'blue' },
    }).withTarget(
      target(
        'A',
        `max by (pod, container, fence) (${of('cotenant_container_info')})`,
        '{{pod}} {{container}} {{fence}}',
      ),
    ),
    series('Idle time', 'Time since the last sample in which it used the GPU.', 12)
      .unit('s')
      .min(0)
      .withTarget(target('A', max(`time() - ${of('cotenant_container_last_active_timestamp_seconds')}`), LEGEND)),
  ];
}
