// Alerts about the agent: whether it samples its GPUs, and whether its metrics are complete.
import { grown } from '../lib/expressions.ts';
import { select } from '../lib/metrics.ts';
import { type Alert, alert, GPU, SEEING } from './rule.ts';

/** NVML's NOT_SUPPORTED: the GPU lacks a reading, which is no fault. */
const NOT_SUPPORTED = '3';

export const AGENT_ALERTS: readonly Alert[] = [
  // One expression for four causes: the scrape fails, our metrics are missing, NVML does not answer, there is no
  // target.
  alert('CotenantExporterDown', 'critical', 'agent', ({ job, exporterDown }) => {
    const target = select('up', `job="${job}"`);
    return {
      expr: `(${target} unless ${SEEING}) or absent(${target})`,
      lasts: exporterDown.for,
      summary: 'The GPUs{{ with $labels.instance }} of {{ . }}{{ end }} are not monitored.',
      description: `{{ if $labels.instance }}The agent on {{ $labels.instance }} {{ if eq $value 0.0 }}does not answer Prometheus{{ else }}answers but cannot read its GPUs{{ end }}.{{ else }}Prometheus has no target in job ${job}.{{ end }} Only the interposer enforces limits; containers that bypass it are neither reported nor stopped.`,
    };
  }),
  // A gap is a scrape that failed between two that did not; CotenantExporterDown is for lasting failures.
  alert('CotenantScrapeGaps', 'warning', 'agent', ({ job, scrapeGaps: { gaps, within, keeps } }) => {
    const scraped = `${select('up', `job="${job}"`)}[${within}]`;
    return {
      keeps,
      expr: `floor(changes(${scraped}) / 2) >= ${gaps} and avg_over_time(${scraped}) > 0.5`,
      summary: 'Scrapes of the agent on {{ $labels.instance }} fail now and then.',
      description: `There were {{ $value }} gaps within ${within}. Rates over them are wrong, and alerts may come late.`,
    };
  }),
  // A collector that fails costs only its own metrics, so the scrape succeeds.
  alert('CotenantCollectorStale', 'warning', 'agent', ({ collectorStale: { seconds } }) => ({
    expr: `time() - ${select('cotenant_exporter_collector_last_success_timestamp_seconds')} > ${seconds}`,
    summary: 'Metrics of the agent on {{ $labels.instance }} are missing or old.',
    description:
      'The collector {{ $labels.collector }} has failed for {{ $value | humanizeDuration }}. Its metrics are missing from the page.',
  })),
  alert('CotenantNvmlErrors', 'warning', 'agent', ({ nvmlErrors: { perSecond, window, lasts } }) => ({
    expr: `rate(${select('cotenant_exporter_nvml_errors_total', `code!="${NOT_SUPPORTED}"`)}[${window}]) > ${perSecond}`,
    lasts,
    summary: 'NVML calls fail on {{ $labels.instance }}.',
    description:
      '{{ $labels.call }} fails {{ $value | printf "%.2f" }} times per second with code {{ $labels.code }}. The metrics that need it are missing.',
  })),
  alert('CotenantDriverHung', 'warning', 'agent', ({ samplerAbandoned }) => {
    const abandoned = select('cotenant_exporter_samplers_abandoned_total');
    return {
      expr: `${grown(abandoned, samplerAbandoned.within)} > 0`,
      summary: 'The NVIDIA driver on {{ $labels.instance }} hung.',
      description:
        'A driver call did not return, and the agent abandoned the sampler process that made it. While calls hang, the agent does not know the use of the GPUs and enforces nothing.',
    };
  }),
  alert('CotenantUtilizationGaps', 'info', 'agent', ({ utilizationGaps: { within, lasts } }) => ({
    expr: `increase(${select('cotenant_exporter_utilization_gaps_total')}[${within}]) > 0`,
    lasts,
    summary: 'Compute time on {{ $labels.instance }} has gaps.',
    description: `More than 10 s passed between two utilization readings of ${GPU}. Compute time in between is not counted.`,
  })),
  alert('CotenantSeriesDropped', 'warning', 'agent', ({ seriesDropped }) => ({
    expr: `${grown(select('cotenant_exporter_series_dropped_total'), seriesDropped.within)} > 0`,
    summary: 'The agent on {{ $labels.instance }} drops series from its metrics.',
    description:
      'The page is full, or there are more than 50 processes: the collector {{ $labels.collector }} lacks series, and sums over its metrics are too small.',
  })),
  // Kubelets retry every two minutes or more often. Pods that wait for a scheduler or an isolation check have other
  // alerts.
  alert('CotenantVolumesNotPublished', 'warning', 'node', ({ volumesNotPublished: { within, lasts } }) => ({
    expr: `${grown(select('cotenant_volume_publishes_total', 'result=~"refused|failed"'), within)} > 0`,
    lasts,
    summary: 'Pods with a GPU share do not start on {{ $labels.instance }}.',
    description:
      'The agent does not publish their volumes (result: {{ $labels.result }}). The FailedMount Events of these pods have the reason.',
  })),
  alert('CotenantAgentDisconnected', 'warning', 'agent', ({ agentDisconnected }) => ({
    expr: `${select('cotenant_agent_connected')} == 0 and ${SEEING}`,
    lasts: agentDisconnected.lasts,
    summary:
      'The agent on {{ $labels.instance }} is not connected to {{ if eq $labels.to "api" }}the API server{{ else if eq $labels.to "csi" }}the kubelet{{ else }}the container runtime{{ end }}.',
    description:
      '{{ if eq $labels.to "api" }}It acts by what it knew of its pods before, and writes no Events{{ else if eq $labels.to "csi" }}Pods with a GPU share neither start nor end there{{ else }}Containers that start there get no GPUs, or wait for the agent where the runtime can require it{{ end }}.',
  })),
  // A reminder, one for all nodes of a mode: `report` is meant for the first week, and set for many nodes at once.
  // Containers that should have been stopped there have CotenantContainerOverLimit.
  alert('CotenantNotEnforcing', 'info', 'cluster', ({ notEnforcing, notEnforced: { within } }) => ({
    expr: `count by (job, enforcement) (last_over_time(${select('cotenant_enforcement_mode', 'enforcement!="enforce"')}[${within}]) == 1)`,
    lasts: notEnforcing.lasts,
    summary: 'The agents on {{ $value }} nodes do not enforce limits.',
    description:
      'The enforcement mode of these nodes is {{ $labels.enforcement }}: containers that bypass the interposer are not stopped.',
  })),
];
