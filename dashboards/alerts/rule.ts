// What an alert rule is, and the words and selectors that several have. Pure.
import type { Configuration } from '../lib/configuration.ts';
import { type MetricName, select } from '../lib/metrics.ts';

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
/** The same of what goes by all that was told within a time, so that one page without a sample does not end it. */
export const seenWithin = (time: string): string =>
  `on (job, instance) (max_over_time(${select('cotenant_up')}[${time}]) == 1)`;
export const CONTAINER = '{{ $labels.namespace }}/{{ $labels.pod }}, container {{ $labels.container }}';
export const GPU = 'GPU {{ $labels.gpu }} ({{ $labels.gpu_uuid }}) of {{ $labels.instance }}';

/** How far back a counter is looked for before it is taken for new: longer than an agent is away for an upgrade. */
const BEFORE = '1h';

/**
 * What a counter has grown by, its first value included where it was born within the time: increase() takes that for where
 * it began. Born is what was not there before, and what the agent has had pages without within the time: one that is seen again after
 * a scrape that failed, an agent that was away, or a Prometheus that is new, has its value from whenever. Pages of an agent that sees
 * nothing do not count: the first ones have no counters yet, and what it goes on with would be born after them. So of a time that it
 * was blind in, a counter that was born passes for an old one, rather than the other way. A target may have had its cotenant_up under
 * several labels within the time.
 */
export const grown = (counter: string, within: string): string => {
  const before = `last_over_time(${counter}[${BEFORE}] offset ${within})`;
  const pages = `sum by (job, instance) (sum_over_time(${select('cotenant_up')}[${within}]))`;
  const born = `max_over_time(${counter}[${within}]) unless ${before} and count_over_time(${counter}[${within}]) < on (job, instance) group_left () ${pages}`;
  return `((${born}) or increase(${counter}[${within}]))`;
};

/**
 * How often each container was stopped within so many seconds, whatever for and on whichever GPU. By the times of stops: each change of
 * one is a stop, and so is the first that is seen, where it is within the time. The steps of a stop (terminate, then kill) have a time
 * each, the second perhaps under another reason or GPU, and are one: so the step counts that there was more of. Stops that
 * ended with the first one and others that began with the second are rather counted too few than one stop twice.
 */
export const stopsWithin = (seconds: number, ...matchers: readonly string[]): string => {
  const last = `${select('cotenant_container_last_kill_timestamp_seconds', ...matchers)}[${seconds}s]`;
  const each = `changes(${last}) + (min_over_time(${last}) > bool (time() - ${seconds}))`;
  return `max without (action) (sum without (gpu_uuid, reason) (${each}))`;
};

/** Part of a GPU that a container uses by the driver's samples and is not charged for by the arbiter. */
export const drift = (window: string, ...matchers: readonly string[]): string => {
  const rate = (counter: MetricName) => `rate(${select(counter, ...matchers)}[${window}])`;
  return `${rate('cotenant_container_sm_seconds_total')} - ${rate('cotenant_container_sm_charged_seconds_total')}`;
};
