import test from 'ava';
import { runLedger } from '../support/native/ledger.ts';
import { TSAN_BUILD } from '../support/toolchains/sanitizers.ts';

test('ThreadSanitizer finds no race in a ledger with 16 writers and two readers', (t) => {
  const result = runLedger(t, TSAN_BUILD, { processes: 2, threads: 8, rounds: 4000 });
  t.true(result.granted > 5000 && result.refused > 1000 && result.failed > 500, 'the threads met');
});
