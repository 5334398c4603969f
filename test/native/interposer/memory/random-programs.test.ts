// The charge of random programs over all verbs against the simulated driver's count: several processes that are
// started, forked, replaced and killed, in one grant of two GPUs, with failures injected into any driver call.
import test from 'ava';
import { runProgram, SANITIZED, STEPS_FACTOR } from '../../../support/native/random-programs.ts';

const STEPS = Math.round(10_000 * STEPS_FACTOR);
const BURST_STEPS = Math.round(6000 * STEPS_FACTOR);
const LONGEST_MS = 60_000 + 60_000 * STEPS_FACTOR;
const seeds = (from: number, count: number) => Array.from({ length: SANITIZED ? 1 : count }, (_, i) => from + i);

const failed = new Set<string>();

for (const seed of seeds(1, 10)) {
  test.serial(`random programs step by step: exact charges, no wrong refusal (${seed})`, async (t) => {
    t.timeout(LONGEST_MS);
    const result = await runProgram(t, { seed, steps: STEPS });
    t.true(result.done > STEPS * 0.9);
    if (SANITIZED) return;
    t.true(result.refusals > STEPS * 0.01, 'the grant was full at times');
    t.true(result.deaths > STEPS * 0.01 && result.pauses > STEPS * 0.005);
    for (const symbol of result.failedSymbols) failed.add(symbol);
  });
}

// Under sanitizers the programs take too few steps.
if (!SANITIZED) {
  test.serial('the failures of all these programs are all over the driver', (t) => {
    t.log(failed.size, [...failed].toSorted().join());
    // Of some 1,600 calls; one program alone has 41 to 60.
    t.true(failed.size >= 80, [...failed].join());
  });
}

for (const lanes of [1, 3]) {
  const refusals: number[] = [];
  for (const seed of seeds(11, 5)) {
    test.serial(`random programs at once in ${lanes} threads each: exact charges (${seed})`, async (t) => {
      t.timeout(LONGEST_MS);
      const result = await runProgram(t, { seed, steps: BURST_STEPS, burst: { steps: 20, lanes } });
      t.true(result.done > BURST_STEPS * 0.8);
      refusals.push(result.refusals);
    });
  }

  // Of all together: which of a burst's calls come first, and with it how full the grant is, differs from run to run.
  if (!SANITIZED) {
    test.serial(`the grant was full at times in programs at once in ${lanes} threads each`, (t) => {
      const all = refusals.reduce((sum, one) => sum + one, 0);
      t.true(all > refusals.length * BURST_STEPS * 0.01, refusals.join());
    });
  }
}
