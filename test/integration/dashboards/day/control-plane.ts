// Two replicas each of webhook and scheduler over a day, with troubles or without.
import { after, always, each, type Fleet, trouble, type Value } from './fleet.ts';

const HOUR = 60;

/** Latencies of webhook and scheduler: a tenth of `slow` a minute takes longer than the alert's bound. */
const LATENCIES: readonly (readonly [le: string, counts: (slow: number) => number])[] = [
  ['0.05', (slow) => 100 - slow],
  ['0.25', (slow) => 100 - slow],
  ['0.5', (slow) => 100 - slow],
  ['1', () => 100],
  ['+Inf', () => 100],
];

/** Replicas of webhook and scheduler; of the latter one leads, and another takes over now and then. */
export function controlPlane(fleet: Fleet, slow: readonly [webhook: Value, scheduler: Value], troubles: boolean): void {
  const { next } = fleet;
  const minor = (most: number) => each(() => (next() < 0.005 ? Math.ceil(next() * most) : 0));
  for (const instance of ['a', 'b']) {
    // After the other troubles no replica answers for some minutes.
    const isDown = (minute: number) => troubles && minute >= 18 * HOUR && minute < 18 * HOUR + 9;
    const webhook = fleet.target('cotenant-webhook', instance, { gaps: 4, restarts: 1, isDown });
    const { of, labels } = webhook;
    for (const [le, counts] of LATENCIES)
      fleet.counter(
        of,
        'cotenant_webhook_review_duration_seconds_bucket',
        { ...labels, route: 'mutate', le },
        (minute) => counts(slow[0](minute) ?? 0),
      );
    const fails = troubles && instance === 'a' ? trouble(fleet, 1, 0, 0.3) : always(0);
    const refused = troubles && instance === 'a' ? trouble(fleet, 1, 0, 0.3) : always(0);
    const reviews = { ...labels, route: 'mutate' };
    fleet.counter(of, 'cotenant_webhook_reviews_total', { ...reviews, outcome: 'internal' }, fails);
    fleet.counter(of, 'cotenant_webhook_certificate_loads_total', { ...labels, result: 'refused' }, refused);
    const valid = troubles && instance === 'a' ? trouble(fleet, 0, 1) : after([500], 3, 0, 1);
    fleet.gauge(of, 'cotenant_webhook_live_rules_valid', labels, valid);
    const expires = (troubles ? 14.4 : 60) * 24 * HOUR * 60;
    fleet.gauge(of, 'cotenant_webhook_certificate_not_after_timestamp_seconds', labels, always(expires));

    const scheduler = fleet.target('cotenant-scheduler', instance, { gaps: 4, restarts: 1 });
    const their = scheduler.labels;
    const [leads, rests] = instance === 'a' ? [1, 0] : [0, 1];
    const leader = after([5 * HOUR, 13 * HOUR], 6 * HOUR, leads, rests);
    const lost = troubles ? trouble(fleet, 0, 1) : always(1);
    fleet.gauge(
      scheduler.of,
      'cotenant_scheduler_leader',
      their,
      (minute) => (leader(minute) ?? 0) * (lost(minute) ?? 0),
    );
    for (const [le, counts] of LATENCIES)
      fleet.counter(
        scheduler.of,
        'cotenant_scheduler_decision_duration_seconds_bucket',
        { ...their, verb: 'filter', le },
        (minute) => counts(slow[1](minute) ?? 0),
      );
    const bind = { ...their, verb: 'bind', outcome: 'failed' };
    fleet.counter(
      scheduler.of,
      'cotenant_scheduler_decisions_total',
      bind,
      troubles ? trouble(fleet, 2, 0, 0.2) : minor(2),
    );
    const watches = { ...their, kind: 'pods' };
    const problems = troubles ? trouble(fleet, 6, 0, 0.2) : minor(4);
    fleet.counter(scheduler.of, 'cotenant_scheduler_watch_problems_total', watches, problems);
    const invalid = troubles ? trouble(fleet, 1, 0, 0.02) : after([700], 5, 1, 0);
    fleet.gauge(scheduler.of, 'cotenant_scheduler_invalid_objects', watches, invalid);
  }
}
