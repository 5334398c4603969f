// PromQL expressions that boards, alert rules and recording rules share. Pure.
import { type MetricName, select } from './metrics.ts';

/** An aggregation by labels, with commas. */
export type Aggregate = { readonly how: 'sum' | 'max'; readonly by: string; readonly of: string };
export type Sum = Aggregate & { readonly how: 'sum' };
export const sumBy = (by: string, of: string): Sum => ({ how: 'sum', by, of });
export const maxBy = (by: string, of: string): Aggregate => ({ how: 'max', by, of });
export const textOf = (expr: string | Aggregate): string =>
  typeof expr === 'string' ? expr : `${expr.how} by (${expr.by}) (${expr.of})`;

/** How far back to look for a counter before it counts as new: longer than an upgrade of the agent takes. */
const BEFORE = '1h';

/**
 * The increase of a counter, its first value included if the series began within the window; increase() ignores that
 * value. A series began within the window if it was absent before and if the agent had pages without it within the
 * window. Otherwise it may be seen again after a failed scrape, an absence of the agent, or a restart of Prometheus,
 * with a value of any age. Pages of an agent without a fresh sample do not count, because they lack counters: a series
 * that begins around such a page counts as old rather than as new. A target may have had its cotenant_up under several
 * sets of labels within the window.
 */
export const grown = (counter: string, within: string): string => {
  const before = `last_over_time(${counter}[${BEFORE}] offset ${within})`;
  const pages = `sum by (job, instance) (sum_over_time(${select('cotenant_up')}[${within}]))`;
  const born = `max_over_time(${counter}[${within}]) unless ${before} and count_over_time(${counter}[${within}]) < on (job, instance) group_left () ${pages}`;
  return `((${born}) or increase(${counter}[${within}]))`;
};

/**
 * The number of stops of each container within some seconds, for any reason and on any GPU. By the times of stops: each
 * change of the time is a stop, and so is the first one if it is within the window. The steps of a stop (terminate,
 * then kill) have a time each, the second perhaps under another reason or GPU, and are one stop: so the step with more
 * changes counts. That may count too few stops, and never counts one twice.
 */
export const stopsWithin = (seconds: number, ...matchers: readonly string[]): string => {
  const last = `${select('cotenant_container_last_kill_timestamp_seconds', ...matchers)}[${seconds}s]`;
  const each = `changes(${last}) + (min_over_time(${last}) > bool (time() - ${seconds}))`;
  return `max without (action) (sum without (gpu_uuid, reason) (${each}))`;
};

/** Fraction of a GPU that a container uses by the driver's samples and that the arbiter does not charge. */
export const drift = (window: string, ...matchers: readonly string[]): string => {
  const rate = (counter: MetricName) => `rate(${select(counter, ...matchers)}[${window}])`;
  return `${rate('cotenant_container_sm_seconds_total')} - ${rate('cotenant_container_sm_charged_seconds_total')}`;
};

/** Memory that can be granted, of what `of` selects: without what the driver reserves, which some drivers do not report. */
export const usableMemory = (of: (metric: MetricName) => string): string => {
  const total = of('cotenant_device_memory_total_bytes');
  return `(${total} - ${of('cotenant_device_memory_reserved_bytes')} or ${total})`;
};
