// The webhook's own metrics: reviews, their duration, certificates, live rules, its process.
import type { Problem } from '../src/common/problem.ts';
import { selfMetrics } from '../src/serving/process-metrics.ts';
import { Counter, Gauge, Histogram } from '../src/serving/prom-client.ts';
import type { Outcome as Reviewed, Route } from './admission-review.ts';
import { PROBLEM_KINDS, REFUSED_FIELDS, refusedField } from './refused-field.ts';

/** `overloaded`: not read, because too many large bodies were being sent. */
type Outcome = Reviewed | 'overloaded';

export type WebhookMetrics = ReturnType<typeof createMetrics>;

const ROUTES: readonly Route[] = ['mutate', 'validate'];
const OUTCOMES: readonly Outcome[] = ['allowed', 'patched', 'denied', 'malformed', 'overloaded', 'internal'];

/** `rulesAreValid`: whether the rules in force are those of the ConfigMap, asked at each scrape. */
export function createMetrics(rulesAreValid: () => boolean = () => true) {
  const registry = selfMetrics();
  const registers = [registry];
  const reviews = new Counter({
    name: 'cotenant_webhook_reviews_total',
    help: 'Admission reviews by outcome; internal counts faults of the webhook itself',
    labelNames: ['route', 'outcome'],
    registers,
  });
  const duration = new Histogram({
    name: 'cotenant_webhook_review_duration_seconds',
    help: 'Time from the last byte of a review to its finished answer, without TLS and network',
    labelNames: ['route'],
    buckets: [0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1],
    registers,
  });
  const refusals = new Counter({
    name: 'cotenant_webhook_refusals_total',
    help: 'Refused reviews by the kind of what was wrong and the field; one with several counts once for each',
    labelNames: ['kind', 'field'],
    registers,
  });
  const reloads = new Counter({
    name: 'cotenant_webhook_certificate_loads_total',
    help: 'Certificates loaded or refused; after a refused one the old one stays in use until it expires',
    labelNames: ['result'],
    registers,
  });
  const notAfter = new Gauge({
    name: 'cotenant_webhook_certificate_not_after_timestamp_seconds',
    help: 'When the serving certificate expires',
    registers,
  });
  new Gauge({
    name: 'cotenant_webhook_live_rules_valid',
    help: 'Whether the rules in force are those of the ConfigMap (1 also without one), or those before it (0)',
    registers,
    collect() {
      this.set(rulesAreValid() ? 1 : 0);
    },
  });
  // A series must exist before its first event for rate() to count that event.
  const counters = new Map<string, ReturnType<typeof reviews.labels>>();
  for (const route of ROUTES) {
    for (const outcome of OUTCOMES) {
      const counter = reviews.labels(route, outcome);
      counter.inc(0);
      counters.set(`${route} ${outcome}`, counter);
    }
  }
  for (const kind of PROBLEM_KINDS) for (const field of REFUSED_FIELDS) refusals.labels(kind, field).inc(0);
  for (const result of ['ok', 'refused']) reloads.labels(result).inc(0);
  const timers = new Map(ROUTES.map((route) => [route, duration.labels(route)]));
  return {
    /** One answered request: the seconds are from the last byte of the body to the finished answer. */
    observe: (route: Route, outcome: Outcome, seconds: number) => {
      counters.get(`${route} ${outcome}`)?.inc();
      timers.get(route)?.observe(seconds);
    },
    /** What was wrong with a review that was denied. */
    refused: (problems: readonly Problem[]) => {
      const seen = new Set<string>();
      for (const problem of problems) {
        const [kind, field] = [problem.kind, refusedField(problem)];
        if (seen.has(`${kind} ${field}`)) continue;
        seen.add(`${kind} ${field}`);
        refusals.labels(kind, field).inc();
      }
    },
    certificateLoaded: (notAfterDate: Date) => {
      reloads.labels('ok').inc();
      notAfter.set(notAfterDate.getTime() / 1000);
    },
    certificateRefused: () => reloads.labels('refused').inc(),
    /** The page in Prometheus' text format. */
    render: () => registry.metrics(),
    contentType: registry.contentType,
  };
}
