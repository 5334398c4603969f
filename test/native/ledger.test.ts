import test from 'ava';
import { runLedger } from '../support/ledger.ts';
import { BUILD } from '../support/node.ts';

test('threads of several processes that take, are refused, fail and free at once never pass the grant and leave nothing', (t) => {
  for (const [processes, threads] of [
    [1, 16],
    [4, 4],
    [16, 1],
  ] as const) {
    const result = runLedger(t, BUILD, { processes, threads, rounds: 10_000 });
    t.true(result.granted > 10_000 && result.refused > 1000 && result.failed > 1000, `${processes} x ${threads}`);
  }
});
