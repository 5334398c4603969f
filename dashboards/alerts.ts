// The six alert rules: what the on-call person is told, and when. Each has an entry of its name in docs/runbook.md.
// Owns expressions, severities and words; numbers are in configuration.ts, and who is notified is Alertmanager's part.
import { CONFIGURATION, type Configuration } from './configuration.ts';
import { select } from './metrics.ts';

/** critical wakes somebody, warning is for working hours, info is for whoever looks. */
export type Severity = 'critical' | 'warning' | 'info';

export type AlertRule = {
  readonly alert: string;
  readonly expr: string;
  readonly for?: string;
  readonly labels: { readonly severity: Severity };
  readonly annotations: { readonly summary: string; readonly description: string; readonly runbook_url: string };
};

export type RuleFile = { readonly groups: readonly { readonly name: string; readonly rules: readonly AlertRule[] }[] };

const USED = select('cotenant_container_memory_used_bytes');
// 0 says that there is no limit. A division by it would be +Inf, which is more than any threshold.
const LIMIT = `(${select('cotenant_container_memory_limit_bytes')} > 0)`;
const OVER = `${select('cotenant_container_over_limit')} == 1`;
// What a blind exporter says of containers is old: its own alert stands for theirs. (When a scrape fails, Prometheus ends
// the series itself.) Alertmanager's inhibition would do the same, but is not ours to configure.
const SEEING = `on (job, instance) (${select('cotenant_up')} == 1)`;
const CONTAINER = '{{ $labels.namespace }}/{{ $labels.pod }}, container {{ $labels.container }}';
const CARD = 'GPU {{ $labels.gpu }} ({{ $labels.gpu_uuid }}) of {{ $labels.instance }}';

export function alertRules(configuration: Configuration = CONFIGURATION): RuleFile {
  const rules = [
    exporterDown(configuration),
    nearLimit(configuration),
    overLimit(configuration),
    stopped(configuration),
    bypass(configuration),
    engineRefused(configuration),
  ];
  return { groups: [{ name: 'cotenant', rules }] };
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

function nearLimit({ nearLimit, runbook }: Configuration): AlertRule {
  return {
    alert: 'CotenantContainerNearLimit',
    // Who is over has an alert of its own.
    expr: `(${USED} / ${LIMIT} > ${nearLimit.ratio} unless ${OVER}) and ${SEEING}`,
    for: nearLimit.for,
    labels: { severity: 'info' },
    annotations: {
      summary: `${CONTAINER}: close to its GPU memory limit.`,
      description: `Holds {{ $value | humanizePercentage }} of its memory on ${CARD}. Its next allocation may be refused.`,
      runbook_url: `${runbook}#cotenantcontainernearlimit`,
    },
  };
}

/** Over is what the agent calls over, tolerance included, so that alert, event and stop go by one measure. */
function overLimit({ overLimit, runbook }: Configuration): AlertRule {
  return {
    alert: 'CotenantContainerOverLimit',
    expr: `(${USED} / ${LIMIT} and ${OVER}) and ${SEEING}`,
    for: overLimit.for,
    labels: { severity: 'warning' },
    annotations: {
      summary: `${CONTAINER}: over its GPU memory limit and not stopped.`,
      description: `Holds {{ $value | humanizePercentage }} of its memory on ${CARD} for more than ${overLimit.for}. Others on this card may be refused what they were granted.`,
      runbook_url: `${runbook}#cotenantcontaineroverlimit`,
    },
  };
}

/**
 * Goes by the time of the stop, not by increase() of the counter: a counter that is born at 1 has increased by 0. The maximum
 * over the time keeps the alert when the container, and with it the series, is gone after one scrape. A stop has steps
 * (terminate, then kill), each with a series: it is one alert.
 */
function stopped({ stopped, runbook }: Configuration): AlertRule {
  const { withinSeconds } = stopped;
  const lastKill = select('cotenant_container_last_kill_timestamp_seconds');
  return {
    alert: 'CotenantContainerStopped',
    expr: `time() - max without (action) (max_over_time(${lastKill}[${withinSeconds}s])) < ${withinSeconds}`,
    labels: { severity: 'warning' },
    annotations: {
      summary: `${CONTAINER}: stopped by Cotenant.`,
      description:
        'Stopped {{ $value | humanizeDuration }} ago on {{ $labels.instance }} (card {{ $labels.gpu_uuid }}). Reason: {{ $labels.reason }}.',
      runbook_url: `${runbook}#cotenantcontainerstopped`,
    },
  };
}

function bypass({ bypass, runbook }: Configuration): AlertRule {
  return {
    alert: 'CotenantBypass',
    // Without a limit there is no interposer, so that the ledger rightly knows nothing.
    expr: `(${select('cotenant_container_bypass_memory_bytes')} > ${bypass.bytes} and ${LIMIT}) and ${SEEING}`,
    for: bypass.for,
    labels: { severity: 'warning' },
    annotations: {
      summary: `${CONTAINER}: uses a GPU past the interposer.`,
      description: `{{ $value | humanize1024 }}B on ${CARD} belong to processes that account to no ledger. Only the agent holds this container to its limit.`,
      runbook_url: `${runbook}#cotenantbypass`,
    },
  };
}

function engineRefused({ engineRefused, runbook }: Configuration): AlertRule {
  return {
    alert: 'CotenantEngineRefused',
    expr: `${select('cotenant_container_engine_refused_processes')} > 0 and ${SEEING}`,
    for: engineRefused.for,
    labels: { severity: 'warning' },
    annotations: {
      summary: `${CONTAINER}: does not run the interposer's engine that it was told to.`,
      description:
        '{{ $value }} of its processes on {{ $labels.instance }} could not change and go on with the engine that they had. Limits hold as before; what the new engine mends is not mended there.',
      runbook_url: `${runbook}#cotenantenginerefused`,
    },
  };
}
