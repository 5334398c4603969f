import test from 'ava';
import { runSwitch } from '../support/native/engine-switch.ts';
import { TSAN_BUILD } from '../support/toolchains/sanitizers.ts';

test('ThreadSanitizer finds no race while 8 threads make calls and engines change', (t) => {
  const { calls, changes } = runSwitch(t, TSAN_BUILD, { processes: 5, threads: 8, rounds: 5000 });
  t.true(calls > 5 * 8 * 5000 && changes > 300, `${changes} changes`);
});
