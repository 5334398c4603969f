import test from 'ava';
import { runSwitch } from '../support/engine-switch.ts';
import { TSAN_BUILD } from '../support/sanitizers.ts';

test('ThreadSanitizer sees no race while 8 threads call, come and go, and their engine changes all the time', (t) => {
  const { calls, changes } = runSwitch(t, TSAN_BUILD, { processes: 5, threads: 8, rounds: 5000 });
  t.true(calls > 5 * 8 * 5000 && changes > 300, `${changes} changes`);
});
