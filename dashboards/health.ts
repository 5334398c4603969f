// The board "Health of the agent": whether it reads its GPUs, age of its metrics, failures, and its memory and CPU use.
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
    description: 'Whether the agents read their GPUs, age of their metrics, failures, and their memory and latency.',
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
    value('Agents', 'Agents that Prometheus can scrape.', `sum(${ofTarget('up')})`),
    value(
      'Agents with GPUs',
      'Agents whose driver answers and whose last sample is fresh.',
      `sum(${ofTarget('cotenant_up')})`,
    ),
    value('Oldest metrics', 'Time since the last success of the collector that has failed the longest.', `max(${AGE})`)
      .unit('s')
      .thresholds(steps([null, 'green'], [collectorStale.seconds, 'red'])),
    value(
      'Driver hangs',
      'Sampler processes abandoned in the last interval, because they hung in the driver.',
      `sum(increase(${ofTarget('cotenant_exporter_samplers_abandoned_total')}[$__rate_interval]))`,
    ),
    series('Age of metrics', 'Time since the last success of each collector.', 12)
      .unit('s')
      .min(0)
      .thresholds(steps([null, 'green'], [collectorStale.seconds, 'red']))
      .withTarget(target('A', AGE, '{{instance}} {{collector}}')),
    series('Render time', 'Time that each collector, and the whole page, took.', 12)
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
      'NVML errors',
      'Failed NVML calls per second, by call and code. Code 3 (the GPU has no such reading) is no fault.',
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
    series(
      'Attribution failures',
      'Processes that could not be attributed to a container, per second, by reason. Each counts in every sample.',
      12,
    )
      .unit('short')
      .min(0)
      .withTarget(
        target(
          'A',
          `sum by (instance, reason) (${rate('cotenant_exporter_attribution_failures_total')})`,
          '{{instance}} {{reason}}',
        ),
      ),
    series('Volumes', 'First NodePublishVolume calls for the volumes of pods with a GPU share, by result.', 8)
      .unit('short')
      .min(0)
      .withTarget(
        target(
          'A',
          `sum by (instance, result) (increase(${ofTarget('cotenant_volume_publishes_total')}[$__rate_interval]))`,
          '{{instance}} {{result}}',
        ),
      ),
    series('Utilization gaps', 'Utilization readings that came too late. Compute time in between is not counted.', 8)
      .unit('short')
      .min(0)
      .withTarget(
        target(
          'A',
          `sum by (instance, gpu) (increase(${ofTarget('cotenant_exporter_utilization_gaps_total')}[$__rate_interval]))`,
          '{{instance}} GPU {{gpu}}',
        ),
      ),
    series('Decisions', 'Decisions of the agents about containers over their limits.', 8)
      .unit('short')
      .min(0)
      .withTarget(
        target(
          'A',
          `sum by (instance, decision, reason) (increase(${ofTarget('cotenant_enforcement_decisions_total')}[$__rate_interval]))`,
          '{{instance}} {{decision}}: {{reason}}',
        ),
      ),
    series('Page size', 'Series of each scrape, and series dropped from the page.', 8)
      .unit('short')
      .min(0)
      .withTarget(target('A', `max by (instance) (${ofTarget('scrape_samples_scraped')})`, '{{instance}}'))
      .withTarget(
        target(
          'B',
          `sum by (instance, collector) (increase(${ofTarget('cotenant_exporter_series_dropped_total')}[$__rate_interval]))`,
          '{{instance}} dropped from {{collector}}',
        ),
      ),
    series('Memory of the agent', 'Resident memory and used heap of its process, without the sampler.', 8)
      .unit('bytes')
      .min(0)
      .withTarget(
        target('A', `max by (instance) (${ofTarget('process_resident_memory_bytes')})`, '{{instance}} resident'),
      )
      .withTarget(target('B', `max by (instance) (${ofTarget('nodejs_heap_size_used_bytes')})`, '{{instance}} heap')),
    series(
      'Event loop',
      'Longest iteration of the event loop between two pages. During it the agent neither answers nor enforces.',
      8,
    )
      .unit('s')
      .min(0)
      .withTarget(target('A', `max by (instance) (${ofTarget('nodejs_eventloop_lag_max_seconds')})`, '{{instance}}')),
    table(
      'Nodes',
      'Versions and modes of the agents.',
      [
        { title: 'Up', expr: `max by (instance) (${ofTarget('cotenant_up')})` },
        { title: 'GPUs', expr: `count by (instance) (${GPUS})` },
        { title: 'Mode', expr: `max by (instance, enforcement) (${ofTarget('cotenant_enforcement_mode')} == 1)` },
        { title: 'Build', expr: `max by (instance, version, revision) (${ofTarget('cotenant_exporter_build_info')})` },
      ],
      { instance: 'Node', enforcement: 'Enforcement mode', version: 'Version', revision: 'Revision' },
    ),
  ];
}
