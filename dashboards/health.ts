// The board "Health of the agent": whether it sees, how old what it says is, what fails, and what it costs.
import type { Dashboard } from '@grafana/grafana-foundation-sdk/dashboard';
import { boardOf } from './board.ts';
import { GPUS, ofTarget, type Panel, series, stat, steps, table, target } from './builders.ts';
import { CONFIGURATION, type Configuration } from './lib/configuration.ts';
import type { MetricName } from './lib/metrics.ts';

const rate = (counter: MetricName): string => `rate(${ofTarget(counter)}[$__rate_interval])`;
const AGE = `time() - max by (instance, collector) (${ofTarget('cotenant_exporter_collector_last_success_timestamp_seconds')})`;

export function health(configuration: Configuration = CONFIGURATION): Dashboard {
  return boardOf({
    title: 'Health of the agent',
    uid: 'cotenant-health',
    description: 'Whether the agents see their GPUs, how old what they say is, what fails, and what it costs.',
    allNodes: true,
    panels: panels(configuration),
  });
}

function panels({ collectorStale }: Configuration): readonly Panel[] {
  const value = (title: string, description: string, expr: string) =>
    stat(title, description)
      .span(6)
      .withTarget(target('A', expr, '').instant());
  return [
    value('Agents', 'Agents that answer.', `sum(${ofTarget('up')})`),
    value(
      'That see their GPUs',
      'Agents whose driver answers, with a sample that is fresh.',
      `sum(${ofTarget('cotenant_up')})`,
    ),
    value('Oldest part of a page', 'Time since the part that is oldest could be made.', `max(${AGE})`)
      .unit('s')
      .thresholds(steps([null, 'green'], [collectorStale.seconds, 'red'])),
    value(
      'Drivers that hung',
      'Samplers that were left behind within the last minutes.',
      `sum(increase(${ofTarget('cotenant_exporter_samplers_abandoned_total')}[$__rate_interval]))`,
    ),
    series('Age of what is said', 'Time since each part of the page could be made.', 12)
      .unit('s')
      .min(0)
      .thresholds(steps([null, 'green'], [collectorStale.seconds, 'red']))
      .withTarget(target('A', AGE, '{{instance}} {{collector}}')),
    series('Time to make it', 'What the parts and the whole page took.', 12)
      .unit('s')
      .min(0)
      .withTarget(
        target(
          'A',
          `max by (instance, collector) (${ofTarget('cotenant_exporter_collector_duration_seconds')})`,
          '{{instance}} {{collector}}',
        ),
      )
      .withTarget(
        target(
          'B',
          `max by (instance) (${ofTarget('cotenant_exporter_render_duration_seconds')})`,
          '{{instance}} page',
        ),
      ),
    series(
      'Calls of the driver that fail',
      'Per second, by call and code. Code 3: the GPU has no such reading, which is no fault.',
      12,
    )
      .unit('short')
      .min(0)
      .withTarget(
        target(
          'A',
          `sum by (instance, call, code) (${rate('cotenant_exporter_nvml_errors_total')})`,
          '{{instance}} {{call}} {{code}}',
        ),
      ),
    series('Processes that cannot be attributed', 'Per sample and second, by reason.', 12)
      .unit('short')
      .min(0)
      .withTarget(
        target(
          'A',
          `sum by (instance, reason) (${rate('cotenant_exporter_attribution_failures_total')})`,
          '{{instance}} {{reason}}',
        ),
      ),
    series('Volumes', 'What kubelets were told when they asked for the volume of a pod with a share.', 8)
      .unit('short')
      .min(0)
      .withTarget(
        target(
          'A',
          `sum by (instance, result) (increase(${ofTarget('cotenant_volume_publishes_total')}[$__rate_interval]))`,
          '{{instance}} {{result}}',
        ),
      ),
    series('Gaps', 'Readings of compute that came too late: what ran meanwhile is in no figure.', 8)
      .unit('short')
      .min(0)
      .withTarget(
        target(
          'A',
          `sum by (instance, gpu) (increase(${ofTarget('cotenant_exporter_utilization_gaps_total')}[$__rate_interval]))`,
          '{{instance}} GPU {{gpu}}',
        ),
      ),
    series('Decisions', 'What agents decided about those over their limit.', 8)
      .unit('short')
      .min(0)
      .withTarget(
        target(
          'A',
          `sum by (instance, decision, reason) (increase(${ofTarget('cotenant_enforcement_decisions_total')}[$__rate_interval]))`,
          '{{instance}} {{decision}}: {{reason}}',
        ),
      ),
    series(
      'Size of the page',
      'Series that Prometheus got with each scrape, and those that were left out of a page.',
      8,
    )
      .unit('short')
      .min(0)
      .withTarget(target('A', `max by (instance) (${ofTarget('scrape_samples_scraped')})`, '{{instance}}'))
      .withTarget(
        target(
          'B',
          `sum by (instance, collector) (increase(${ofTarget('cotenant_exporter_series_dropped_total')}[$__rate_interval]))`,
          '{{instance}} left out of {{collector}}',
        ),
      ),
    series(
      'Memory of the agent',
      'Of its process: resident, and the part of it that is its heap. Without its sampler.',
      8,
    )
      .unit('bytes')
      .min(0)
      .withTarget(
        target('A', `max by (instance) (${ofTarget('process_resident_memory_bytes')})`, '{{instance}} resident'),
      )
      .withTarget(target('B', `max by (instance) (${ofTarget('nodejs_heap_size_used_bytes')})`, '{{instance}} heap')),
    series(
      'Turns of its loop',
      'The longest turn of its event loop between two pages: for so long it answered nobody and decided nothing.',
      8,
    )
      .unit('s')
      .min(0)
      .withTarget(target('A', `max by (instance) (${ofTarget('nodejs_eventloop_lag_max_seconds')})`, '{{instance}}')),
    table(
      'Nodes',
      'What runs where.',
      [
        { title: 'Sees its GPUs', expr: `max by (instance) (${ofTarget('cotenant_up')})` },
        { title: 'GPUs', expr: `count by (instance) (${GPUS})` },
        { title: 'Mode', expr: `max by (instance, mode) (${ofTarget('cotenant_enforcement_mode')} == 1)` },
        { title: 'Build', expr: `max by (instance, version, revision) (${ofTarget('cotenant_exporter_build_info')})` },
      ],
      { instance: 'Node', mode: 'Mode of enforcement', version: 'Version', revision: 'Revision' },
    ),
  ];
}
