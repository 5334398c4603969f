// The type of an alert rule, and texts and conditions that several rules share. Pure.
import type { Configuration } from '../lib/configuration.ts';
import { select } from '../lib/metrics.ts';
import { type About, leadsTo } from './leads-to.ts';

/** critical pages, warning is for working hours, info for dashboards. */
type Severity = 'critical' | 'warning' | 'info';

type AlertRule = {
  readonly alert: string;
  readonly expr: string;
  readonly for?: string;
  readonly keep_firing_for: string;
  readonly labels: { readonly severity: Severity };
  readonly annotations: {
    readonly summary: string;
    readonly description: string;
    readonly runbook_url: string;
    readonly dashboard: string;
    readonly command: string;
  };
};

export type RuleFile = { readonly groups: readonly { readonly name: string; readonly rules: readonly AlertRule[] }[] };

type Plan = {
  readonly expr: string;
  readonly lasts?: string;
  /** For longer than others. */
  readonly keeps?: string;
  readonly summary: string;
  readonly description: string;
};

/** A rule, once the thresholds are known. */
export type Alert = (configuration: Configuration) => AlertRule;

export const alert =
  (name: string, severity: Severity, about: About, plan: (configuration: Configuration) => Plan): Alert =>
  (configuration) => {
    const { expr, lasts, keeps = configuration.keepsFiring, summary, description } = plan(configuration);
    return {
      alert: name,
      expr,
      ...(lasts !== undefined && { for: lasts }),
      keep_firing_for: keeps,
      labels: { severity },
      annotations: {
        ...{ summary, description, runbook_url: `${configuration.runbook}#${name.toLowerCase()}` },
        ...leadsTo(about),
      },
    };
  };

// While the agent has no fresh sample, its metrics of containers are old: CotenantExporterDown stands for their alerts.
// (When a scrape fails, Prometheus ends the series itself.) Alertmanager's inhibition would do the same, but we do not
// configure that.
export const SEEING = `on (job, instance) (${select('cotenant_up')} == 1)`;
/** The same within a window, for expressions over a window: one page without a sample does not end the alert. */
export const seenWithin = (time: string): string =>
  `on (job, instance) (max_over_time(${select('cotenant_up')}[${time}]) == 1)`;
export const CONTAINER = '{{ $labels.namespace }}/{{ $labels.pod }}, container {{ $labels.container }}';
export const GPU = 'GPU {{ $labels.gpu }} ({{ $labels.gpu_uuid }}) of {{ $labels.instance }}';
