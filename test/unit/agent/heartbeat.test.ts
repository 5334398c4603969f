// When a limits page is written for nothing but the agent's heartbeat.
import test from 'ava';
import { isDue } from '../../../src/agent/grants/heartbeat.ts';

test('a gate is told at once where it is another one, and the heartbeat with each sample while it is closed, else every 10 s', (t) => {
  const last = { atMs: 1000, gateClosed: false, leased: true };
  t.true(isDue(undefined, last), 'nobody has told it yet');
  t.false(isDue(last, { ...last, atMs: 2000 }));
  t.false(isDue(last, { ...last, atMs: 10_999 }));
  t.true(isDue(last, { ...last, atMs: 11_000 }));
  t.true(isDue(last, { ...last, atMs: 1001, gateClosed: true }));
  t.true(isDue(last, { ...last, atMs: 1001, leased: false }));
  const closed = { ...last, gateClosed: true };
  t.true(isDue(closed, { ...closed, atMs: 2000 }), 'who waits at it counts from the last heartbeat');
  t.true(isDue(closed, { ...last, atMs: 1001 }));
});
