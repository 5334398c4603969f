import test from 'ava';
import { runSwitch } from '../../../support/native/engine-switch.ts';
import { BUILD } from '../../../support/native/node.ts';

test('no call is inside an unloaded engine while 8 threads call and engines change', (t) => {
  const { calls, changes } = runSwitch(t, BUILD, { processes: 10, threads: 8, rounds: 5000 });
  t.true(calls > 10 * 8 * 5000 && changes > 1000, `${changes} changes`);
});
