// The webhook's metrics about itself, in a registry of its own. Owns their names and buckets; who serves the page is server.ts.
import { Counter, Gauge, Histogram, Registry } from 'prom-client';
import type { Outcome as Reviewed, Route } from './admission-review.ts';

/** `overloaded`: not read, for too much was being sent. */
export type Outcome = Reviewed | 'overloaded';

export type WebhookMetrics = {
  /** One answered request: what came of it, and the seconds from the last byte of the body to the finished answer. */
  readonly observe: (route: Route, outcome: Outcome, seconds: number) => void;
  readonly certificateLoaded: (notAfter: Date) => void;
  readonly certificateRefused: () => void;
  /** The page in Prometheus' text format. */
  readonly render: () => Promise<string>;
  readonly contentType: string;
};

const ROUTES: readonly Route[] = ['mutate', 'validate'];
const OUTCOMES: readonly Outcome[] = ['allowed', 'patched', 'denied', 'malformed', 'overloaded', 'internal'];

export function createMetrics(): WebhookMetrics {
  const registry = new Registry();
  const registers = [registry];
  const reviews = new Counter({
    name: 'cotenant_webhook_reviews_total',
    help: 'Admission reviews by what came of them; internal counts faults of the webhook itself',
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
  const reloads = new Counter({
    name: 'cotenant_webhook_certificate_loads_total',
    help: 'Certificates taken into use or refused, since a refused one leaves the old one serving until it expires',
    labelNames: ['result'],
    registers,
  });
  const notAfter = new Gauge({
    name: 'cotenant_webhook_certificate_not_after_timestamp_seconds',
    help: 'When the serving certificate expires',
    registers,
  });
  // Series that exist from the start let a rate see the first event.
  const counters = new Map<string, ReturnType<typeof reviews.labels>>();
  for (const route of ROUTES) {
    for (const outcome of OUTCOMES) {
      const counter = reviews.labels(route, outcome);
      counter.inc(0);
      counters.set(`${route} ${outcome}`, counter);
    }
  }
  for (const result of ['ok', 'refused']) reloads.labels(result).inc(0);
  const timers = new Map(ROUTES.map((route) => [route, duration.labels(route)]));
  return {
    observe: (route, outcome, seconds) => {
      counters.get(`${route} ${outcome}`)?.inc();
      timers.get(route)?.observe(seconds);
    },
    certificateLoaded: (date) => {
      reloads.labels('ok').inc();
      notAfter.set(date.getTime() / 1000);
    },
    certificateRefused: () => reloads.labels('refused').inc(),
    render: () => registry.metrics(),
    contentType: registry.contentType,
  };
}
