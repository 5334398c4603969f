// Alerts about the agent: whether it samples its GPUs, and whether its metrics are complete.
import type { Configuration } from '../lib/configuration.ts';
import { grown } from '../lib/expressions.ts';
import { select } from '../lib/metrics.ts';
import { type AlertRule, GPU, rule, SEEING } from './rule.ts';

/** NVML's NOT_SUPPORTED: the GPU lacks a reading, which is no fault. */
const NOT_SUPPORTED = '3';

export function agentAlerts(configuration: Configuration): readonly AlertRule[] {
  return [
    exporterDown(configuration),
    collectorStale(configuration),
    nvmlErrors(configuration),
    samplerAbandoned(configuration),
    utilizationGaps(configuration),
    seriesDropped(configuration),
    volumesNotPublished(configuration),
    notEnforcing(configuration),
  ];
}

/** One expression for four causes: the scrape fails, our metrics are missing, NVML does not answer, there is no target. */
function exporterDown({ job, exporterDown, runbook }: Configuration): AlertRule {
  const target = select('up', `job="${job}"`);
  return {
    alert: 'CotenantExporterDown',
    expr: `(${target} unless ${SEEING}) or absent(${target})`,
    for: exporterDown.for,
    labels: { severity: 'critical' },
    annotations: {
      summary: 'The GPUs{{ with $labels.instance }} of {{ . }}{{ end }} are not monitored.',
      description: `{{ if $labels.instance }}The agent on {{ $labels.instance }} {{ if eq $value 0.0 }}does not answer Prometheus{{ else }}answers but cannot read its GPUs{{ end }}.{{ else }}Prometheus has no target in job ${job}.{{ end }} Only the interposer enforces limits; containers that bypass it are neither reported nor stopped.`,
      runbook_url: `${runbook}#cotenantexporterdown`,
    },
  };
}

/** A collector that fails costs only its own metrics, so the scrape succeeds. */
function collectorStale(configuration: Configuration): AlertRule {
  const { seconds } = configuration.collectorStale;
  const last = select('cotenant_exporter_collector_last_success_timestamp_seconds');
  return rule(configuration, 'CotenantCollectorStale', 'warning', {
    expr: `time() - ${last} > ${seconds}`,
    summary: 'Metrics of the agent on {{ $labels.instance }} are missing or old.',
    description:
      'The collector {{ $labels.collector }} has failed for {{ $value | humanizeDuration }}. Its metrics are missing from the page.',
  });
}

function nvmlErrors(configuration: Configuration): AlertRule {
  const { perSecond, window, lasts } = configuration.nvmlErrors;
  const errors = select('cotenant_exporter_nvml_errors_total', `code!="${NOT_SUPPORTED}"`);
  return rule(configuration, 'CotenantNvmlErrors', 'warning', {
    expr: `rate(${errors}[${window}]) > ${perSecond}`,
    lasts,
    summary: 'NVML calls fail on {{ $labels.instance }}.',
    description:
      '{{ $labels.call }} fails {{ $value | printf "%.2f" }} times per second with code {{ $labels.code }}. The metrics that need it are missing.',
  });
}

function samplerAbandoned(configuration: Configuration): AlertRule {
  const abandoned = select('cotenant_exporter_samplers_abandoned_total');
  return rule(configuration, 'CotenantDriverHung', 'warning', {
    expr: `${grown(abandoned, configuration.samplerAbandoned.within)} > 0`,
    summary: 'The NVIDIA driver on {{ $labels.instance }} hung.',
    description:
      'A driver call did not return, and the agent abandoned the sampler process that made it. While calls hang, the agent does not know the use of the GPUs and enforces nothing.',
  });
}

function utilizationGaps(configuration: Configuration): AlertRule {
  const { within, lasts } = configuration.utilizationGaps;
  return rule(configuration, 'CotenantUtilizationGaps', 'info', {
    expr: `increase(${select('cotenant_exporter_utilization_gaps_total')}[${within}]) > 0`,
    lasts,
    summary: 'Compute time on {{ $labels.instance }} has gaps.',
    description: `More than 10 s passed between two utilization readings of ${GPU}. Compute time in between is not counted.`,
  });
}

function seriesDropped(configuration: Configuration): AlertRule {
  const dropped = select('cotenant_exporter_series_dropped_total');
  return rule(configuration, 'CotenantSeriesDropped', 'warning', {
    expr: `${grown(dropped, configuration.seriesDropped.within)} > 0`,
    summary: 'The agent on {{ $labels.instance }} drops series from its metrics.',
    description:
      'The page is full, or there are more than 50 processes: the collector {{ $labels.collector }} lacks series, and sums over its metrics are too small.',
  });
}

/** Kubelets retry every two minutes or more often. Pods that wait for a scheduler or an isolation check have other alerts. */
function volumesNotPublished(configuration: Configuration): AlertRule {
  const { within, lasts } = configuration.volumesNotPublished;
  const refused = select('cotenant_volume_publishes_total', 'result=~"refused|failed"');
  return rule(configuration, 'CotenantVolumesNotPublished', 'warning', {
    expr: `${grown(refused, within)} > 0`,
    lasts,
    summary: 'Pods with a GPU share do not start on {{ $labels.instance }}.',
    description:
      'The agent does not publish their volumes (result: {{ $labels.result }}). The FailedMount Events of these pods have the reason.',
  });
}

/** A reminder: `report` is meant for the first week. */
function notEnforcing(configuration: Configuration): AlertRule {
  return rule(configuration, 'CotenantNotEnforcing', 'info', {
    expr: `${select('cotenant_enforcement_mode', 'enforcement!="enforce"')} == 1`,
    lasts: configuration.notEnforcing.lasts,
    summary: 'The agent on {{ $labels.instance }} does not enforce limits.',
    description:
      'The enforcement mode of the node is {{ $labels.enforcement }}: containers that bypass the interposer are not stopped.',
  });
}
