// What an alert rule is, and the words and selectors that several have. Pure.
import type { Configuration } from '../configuration.ts';
import { type MetricName, select } from '../metrics.ts';

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

// What a blind exporter says of containers is old: its own alert stands for theirs. (When a scrape fails, Prometheus ends
// the series itself.) Alertmanager's inhibition would do the same, but is not ours to configure.
export const SEEING = `on (job, instance) (${select('cotenant_up')} == 1)`;
export const CONTAINER = '{{ $labels.namespace }}/{{ $labels.pod }}, container {{ $labels.container }}';
export const CARD = 'GPU {{ $labels.gpu }} ({{ $labels.gpu_uuid }}) of {{ $labels.instance }}';

/**
 * What a counter has grown by, its first value included where it was born within the time: increase() takes that for where
 * it began.
 */
export const grown = (counter: string, within: string): string =>
  `((max_over_time(${counter}[${within}]) unless ${counter} offset ${within}) or increase(${counter}[${within}]))`;

/** Part of a card that a container uses by the driver's samples and is not charged for by the arbiter. */
export const drift = (window: string, ...matchers: readonly string[]): string => {
  const rate = (counter: MetricName) => `rate(${select(counter, ...matchers)}[${window}])`;
  return `${rate('cotenant_container_sm_seconds_total')} - ${rate('cotenant_container_sm_charged_seconds_total')}`;
};
