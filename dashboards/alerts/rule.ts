// The type of an alert rule, and texts and conditions that several rules share. Pure.
import type { Configuration } from '../lib/configuration.ts';
import { select } from '../lib/metrics.ts';

/** critical pages, warning is for working hours, info for dashboards. */
export type Severity = 'critical' | 'warning' | 'info';

export type AlertRule = {
  readonly alert: string;
  readonly expr: string;
  readonly for?: string;
  readonly labels: { readonly severity: Severity };
  readonly annotations: { readonly summary: string; readonly description: string; readonly runbook_url: string };
};

export type RuleFile = { readonly groups: readonly { readonly name: string; readonly rules: readonly AlertRule[] }[] };

export function rule(
  { runbook }: Configuration,
  alert: string,
  severity: Severity,
  { expr, lasts, summary, description }: { expr: string; lasts?: string; summary: string; description: string },
): AlertRule {
  return {
    alert,
    expr,
    ...(lasts === undefined ? {} : { for: lasts }),
    labels: { severity },
    annotations: { summary, description, runbook_url: `${runbook}#${alert.toLowerCase()}` },
  };
}

// While the agent has no fresh sample, its metrics of containers are old: CotenantExporterDown stands for their alerts. (When a scrape
// fails, Prometheus ends the series itself.) Alertmanager's inhibition would do the same, but we do not configure that.
export const SEEING = `on (job, instance) (${select('cotenant_up')} == 1)`;
/** The same within a window, for expressions over a window: one page without a sample does not end the alert. */
export const seenWithin = (time: string): string =>
  `on (job, instance) (max_over_time(${select('cotenant_up')}[${time}]) == 1)`;
export const CONTAINER = '{{ $labels.namespace }}/{{ $labels.pod }}, container {{ $labels.container }}';
export const GPU = 'GPU {{ $labels.gpu }} ({{ $labels.gpu_uuid }}) of {{ $labels.instance }}';
