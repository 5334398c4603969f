// When a limits page is written for nothing but the agent's heartbeat.
import test from 'ava';
import { isDue } from '../../../../src/agent/grants/heartbeat.ts';

test('a changed gate is written at once; the heartbeat each sample or every 10 s', (t) => {
  const last = { readNs: 1e9, gateClosed: false, leased: true };
  const page = (seconds: number, more = {}) => ({
    ...{ reading: { readNs: seconds * 1e9 }, gateClosed: false, leased: true },
    ...more,
  });
  t.true(isDue(undefined, page(1)), 'it is not known yet');
  t.false(isDue(last, page(1)));
  t.false(isDue(last, page(10.9)));
  t.true(isDue(last, page(11)));
  t.true(isDue(last, page(1, { gateClosed: true })));
  t.true(isDue(last, page(1, { leased: false })));
  const closed = { ...last, gateClosed: true };
  t.true(isDue(closed, page(1, { gateClosed: true })), 'who waits at it counts from the last heartbeat');
  t.true(isDue(closed, page(1)));
  t.true(isDue({ ...last, readNs: undefined }, page(1)), 'that was before anything was read');
  t.true(isDue(last, { ...page(1), reading: undefined }));
});
