// Events are aggregated and limited as client-go's EventCorrelator does it. The expected figures are those of its source
// (k8s.io/client-go/tools/record/events_cache.go: defaultSpamBurst 25, defaultSpamQPS 1/300, maxEvents 10 within 600 s).
import test from 'ava';
import { createEventCorrelator, type EventWrite, type PodEvent } from '../../../src/kube/event-correlator.ts';

const event = (more: Partial<PodEvent> = {}): PodEvent => ({
  ...{ namespace: 'team', pod: 'one', podUid: 'u1', container: 'main', reason: 'Warned', type: 'Warning' },
  ...{ message: 'm', atMs: 0, by: { component: 'agent', instance: 'node-a' } },
  ...more,
});

test('an Event that is repeated counts up in the same series', (t) => {
  const correlate = createEventCorrelator();
  const first = correlate(event());
  const again = correlate(event({ atMs: 5000 }));
  t.like(first, { count: 1, firstMs: 0 });
  t.like(again, { key: first?.key, count: 2, firstMs: 0 });
  t.not(correlate(event({ container: 'other' }))?.key, first?.key);
  t.not(correlate(event({ reason: 'Stopped' }))?.key, first?.key);
});

test('after ten different messages within ten minutes the next are combined', (t) => {
  const correlate = createEventCorrelator();
  const messages = (count: number, fromMs: number) =>
    Array.from({ length: count }, (_, index) =>
      correlate(event({ message: `m${fromMs + index}`, atMs: fromMs + index })),
    );
  const first = messages(12, 0);
  t.deepEqual(
    first.map((write) => write?.event.message),
    [
      ...Array.from({ length: 10 }, (_, index) => `m${index}`),
      ...[10, 11].map((n) => `(combined from similar events): m${n}`),
    ],
  );
  t.is(first[10]?.key, first[11]?.key);
  t.is(first[11]?.count, 2);
  t.is(messages(1, 700_000)[0]?.event.message, 'm700000', 'after a quiet time they are written one by one again');
});

test('25 Events of one object are written at once, then one in five minutes', (t) => {
  const correlate = createEventCorrelator();
  const writes: (EventWrite | undefined)[] = [];
  for (let second = 0; second < 3600; second += 1) writes.push(correlate(event({ atMs: second * 1000 })));
  const written = writes.filter((write) => write !== undefined);
  t.is(written.length, 25 + 11);
  t.true(writes.slice(0, 25).every((write) => write !== undefined));
  t.is(writes.slice(25, 300).filter((write) => write !== undefined).length, 0);
  t.true((written.at(-1)?.count ?? 0) > 3300, 'those that were not written are counted');
  t.is(correlate(event({ pod: 'two', podUid: 'u2', atMs: 3_600_000 }))?.count, 1);
});

test('objects without end use no memory without end, and the oldest are forgotten', (t) => {
  const correlate = createEventCorrelator();
  correlate(event());
  for (let index = 0; index < 5000; index += 1) correlate(event({ pod: `p${index}`, podUid: `u${index}` }));
  t.is(correlate(event())?.count, 1);
});
