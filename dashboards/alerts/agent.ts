// Alerts about the agent: whether it sees, and whether what it says is whole.
import type { Configuration } from '../lib/configuration.ts';
import { select } from '../lib/metrics.ts';
import { type AlertRule, GPU, grown, rule, SEEING } from './rule.ts';

/** NVML's "not supported": a GPU that lacks a reading, which is no fault. */
const NOT_SUPPORTED = '3';

export function agentAlerts(configuration: Configuration): readonly AlertRule[] {
  return [
    exporterDown(configuration),
    collectorStale(configuration),
    nvmlErrors(configuration),
    samplerAbandoned(configuration),
    utilizationGaps(configuration),
    seriesDropped(configuration),
    volumesNotGiven(configuration),
    notEnforcing(configuration),
  ];
}

/** One expression for every way to be blind: the scrape fails, the page lacks our metrics, NVML does not answer, no target. */
function exporterDown({ job, exporterDown, runbook }: Configuration): AlertRule {
  const target = select('up', `job="${job}"`);
  return {
    alert: 'CotenantExporterDown',
    expr: `(${target} unless ${SEEING}) or absent(${target})`,
    for: exporterDown.for,
    labels: { severity: 'critical' },
    annotations: {
      summary: 'GPUs are not being watched{{ with $labels.instance }} on {{ . }}{{ end }}.',
      description: `{{ if $labels.instance }}The agent on {{ $labels.instance }} {{ if eq $value 0.0 }}does not answer Prometheus{{ else }}answers but cannot read its GPUs{{ end }}.{{ else }}Prometheus has no target in job ${job}.{{ end }} Limits are held by what is in the containers alone; nobody sees or stops who goes past them.`,
      runbook_url: `${runbook}#cotenantexporterdown`,
    },
  };
}

/** A part of the page that cannot be made costs only itself, so it needs a look of its own. */
function collectorStale(configuration: Configuration): AlertRule {
  const { seconds } = configuration.collectorStale;
  const last = select('cotenant_exporter_collector_last_success_timestamp_seconds');
  return rule(configuration, 'CotenantCollectorStale', 'warning', {
    expr: `time() - ${last} > ${seconds}`,
    summary: 'A part of what the agent on {{ $labels.instance }} says is old.',
    description:
      'The part {{ $labels.collector }} of its page could not be made for {{ $value | humanizeDuration }}: its metrics are missing or as they were.',
  });
}

function nvmlErrors(configuration: Configuration): AlertRule {
  const { perSecond, window, lasts } = configuration.nvmlErrors;
  const errors = select('cotenant_exporter_nvml_errors_total', `code!="${NOT_SUPPORTED}"`);
  return rule(configuration, 'CotenantNvmlErrors', 'warning', {
    expr: `rate(${errors}[${window}]) > ${perSecond}`,
    lasts,
    summary: 'The driver on {{ $labels.instance }} refuses to answer.',
    description: '{{ $labels.call }} fails {{ $value | printf "%.2f" }} times a second with code {{ $labels.code }}.',
  });
}

function samplerAbandoned(configuration: Configuration): AlertRule {
  const abandoned = select('cotenant_exporter_samplers_abandoned_total');
  return rule(configuration, 'CotenantDriverHangs', 'warning', {
    expr: `${grown(abandoned, configuration.samplerAbandoned.within)} > 0`,
    summary: 'The driver on {{ $labels.instance }} hung.',
    description:
      'A call of it did not come back, and the sampler that made it was left behind. While this goes on nobody sees who uses the GPUs.',
  });
}

function utilizationGaps(configuration: Configuration): AlertRule {
  const { within, lasts } = configuration.utilizationGaps;
  return rule(configuration, 'CotenantUtilizationGaps', 'info', {
    expr: `increase(${select('cotenant_exporter_utilization_gaps_total')}[${within}]) > 0`,
    lasts,
    summary: 'Compute times of {{ $labels.instance }} have gaps.',
    description: `More than 10 s lay between two readings of ${GPU}; what ran meanwhile is in no figure.`,
  });
}

function seriesDropped(configuration: Configuration): AlertRule {
  const dropped = select('cotenant_exporter_series_dropped_total');
  return rule(configuration, 'CotenantSeriesDropped', 'warning', {
    expr: `${grown(dropped, configuration.seriesDropped.within)} > 0`,
    summary: 'The agent on {{ $labels.instance }} leaves series out of its page.',
    description: 'There are more in {{ $labels.collector }} than it publishes: sums over them are too small.',
  });
}

/** Kubelets ask again every two minutes at the latest. What only waits for a scheduler or a canary is told by other alerts. */
function volumesNotGiven(configuration: Configuration): AlertRule {
  const { within, lasts } = configuration.volumesNotGiven;
  const refused = select('cotenant_volume_publishes_total', 'result=~"refused|failed"');
  return rule(configuration, 'CotenantVolumesNotGiven', 'warning', {
    expr: `${grown(refused, within)} > 0`,
    lasts,
    summary: 'Pods with a share do not start on {{ $labels.instance }}.',
    description:
      'The agent gives them no volume ({{ $labels.result }}); the Events of these pods, FailedMount, say why in its words.',
  });
}

/** A week of report is how one begins; this is for whoever has forgotten it since. */
function notEnforcing(configuration: Configuration): AlertRule {
  return rule(configuration, 'CotenantNotEnforcing', 'info', {
    expr: `${select('cotenant_enforcement_mode', 'mode!="enforce"')} == 1`,
    lasts: configuration.notEnforcing.lasts,
    summary: 'Nobody is stopped on {{ $labels.instance }}.',
    description: 'The mode is {{ $labels.mode }}: who goes past the interposer is reported at most.',
  });
}
