// The board "Container": one workload's memory and compute against what it was granted, what it was refused, and what it waited for.
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
    description:
      "One workload's memory and compute against what it was granted, what it was refused, and what it waited for.",
    allNodes: true,
    variables: [
      variable('namespace', info()),
      variable('pod', info('namespace=~"$namespace"')).includeAll(true),
      variable('container', info('namespace=~"$namespace"', 'pod=~"$pod"')).includeAll(true),
    ],
    marks: [stopMarks(`${of('cotenant_container_last_kill_timestamp_seconds')} * 1000`)],
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
      'Memory of its grant',
      'Used over granted, of the container that is nearest to its limit.',
      `max(${of('cotenant_container_memory_used_bytes')} / ${limit})`,
    ).unit('percentunit'),
    value(
      'Memory at its peak',
      'The most that was held since it began, over what is granted: what a smaller grant would have to hold.',
      `max(${of('cotenant_container_memory_peak_bytes')} / ${limit})`,
    ).unit('percentunit'),
    value(
      'Refused',
      'Requests for memory that were refused within the last minutes.',
      `sum(increase(${of('cotenant_container_allocations_denied_total')}[$__rate_interval]))`,
    ),
    value(
      'Time over limit',
      'Time above grant and tolerance within the last minutes.',
      `sum(increase(${of('cotenant_container_memory_over_limit_seconds_total')}[$__rate_interval]))`,
    ).unit('s'),
    series(
      'Memory',
      "What the driver counts, what was granted, and the peak since it began. Managed memory is in the peak and not in the driver's count.",
      12,
    )
      .unit('bytes')
      .min(0)
      .withTarget(target('A', max(of('cotenant_container_memory_used_bytes')), LEGEND))
      .withTarget(target('B', max(of('cotenant_container_memory_limit_bytes')), `${LEGEND} limit`))
      .withTarget(target('C', max(of('cotenant_container_memory_peak_bytes')), `${LEGEND} peak`))
      .overrideByQuery('B', line('red'))
      .overrideByQuery('C', line('text')),
    series('Memory against the limit', 'Memory over the limit of its grant, per container and GPU.', 12)
      .unit('percentunit')
      .min(0)
      .thresholds(steps([null, 'green'], [nearLimit.ratio, 'orange'], [1, 'red']))
      .withTarget(target('A', max(`${of('cotenant_container_memory_used_bytes')} / ${limit}`), LEGEND)),
    stacked(
      series(
        'What the ledger says',
        "Memory as the programs account for it themselves, by kind, and what is held past the interposer. The ledger is the tenant's to write.",
        12,
      ).unit('bytes'),
    )
      .withTarget(target('A', `sum by (kind) (${of('cotenant_container_memory_ledger_bytes')})`, '{{kind}}'))
      .withTarget(target('B', `sum(${of('cotenant_container_memory_bypass_bytes')})`, 'past the interposer')),
    series('Compute', 'Share of a GPU in which its kernels ran, and what was granted.', 12)
      .unit('percentunit')
      .min(0)
      .withTarget(target('A', max(rate('cotenant_container_sm_seconds_total')), LEGEND))
      .withTarget(target('B', max(of('cotenant_container_sm_limit_ratio')), `${LEGEND} granted`))
      .overrideByQuery('B', line('red')),
    series(
      'Driver and arbiter',
      "Share of a GPU by the driver's samples, and what the arbiter charged for it, gaps between launches included. Samples that are above the charge for long are work that goes past the arbiter.",
      12,
    )
      .unit('percentunit')
      .min(0)
      .withTarget(target('A', max(rate('cotenant_container_sm_seconds_total')), `${LEGEND} sampled`))
      .withTarget(target('B', max(rate('cotenant_container_sm_charged_seconds_total')), `${LEGEND} charged`))
      .withTarget(target('C', max(rate('cotenant_container_sm_contended_seconds_total')), `${LEGEND} contended`)),
    series(
      'Waiting for a turn',
      'Time that launches waited, per second, summed over threads; of the time with a turn, what was shared with others.',
      12,
    )
      .unit('percentunit')
      .min(0)
      .withTarget(target('A', max(rate('cotenant_container_sm_throttled_seconds_total')), `${LEGEND} waits`))
      .withTarget(target('B', max(rate('cotenant_container_sm_contended_seconds_total')), `${LEGEND} shares`)),
    series('Refused requests', 'Requests for memory that were refused, per second.', 12)
      .unit('short')
      .min(0)
      .withTarget(target('A', max(rate('cotenant_container_allocations_denied_total')), LEGEND)),
    series('Processes', 'Live processes of the container on the GPU.', 12)
      .unit('short')
      .min(0)
      .decimals(0)
      .withTarget(target('A', max(of('cotenant_container_processes')), LEGEND)),
    timeline(
      'Over limit',
      'When it was above its grant and tolerance, or took more compute than a share that is its limit. Stops are red marks.',
      { 0: { text: 'within', color: 'green' }, 1: { text: 'over', color: 'red' } },
    )
      .withTarget(target('A', max(of('cotenant_container_memory_over_limit')), `${LEGEND} memory`))
      .withTarget(target('B', max(of('cotenant_container_compute_over_limit')), `${LEGEND} compute`)),
    timeline('Fence', 'What held its memory to the grant: driver, interposer, agent, or none.', {
      1: { text: 'holds', color: 'blue' },
    }).withTarget(
      target(
        'A',
        `max by (pod, container, fence) (${of('cotenant_container_info')})`,
        '{{pod}} {{container}} {{fence}}',
      ),
    ),
    series('Last seen at work', 'Time since the driver last named one of its processes.', 12)
      .unit('s')
      .min(0)
      .withTarget(target('A', max(`time() - ${of('cotenant_container_last_active_timestamp_seconds')}`), LEGEND)),
  ];
}
