// The account of random programs over all verbs against the simulated driver's own books: several processes that are
// born, forked, replaced and killed, in one grant of two cards, with failures injected into any call of the driver.
import test from 'ava';
import { runBooks } from '../support/books.ts';

const STEPS = 10_000;

for (const seed of [1, 2]) {
  test(`random programs, one step after the other: no byte of drift, nothing over the grant, no refusal of what fits (${seed})`, async (t) => {
    const result = await runBooks(t, { seed, steps: STEPS });
    t.true(result.done > STEPS * 0.9);
    t.true(result.refusals > STEPS * 0.01, 'the grant was full at times');
    t.true(result.deaths > STEPS * 0.01 && result.pauses > STEPS * 0.005);
    t.true(result.failedSymbols >= 40, 'failures all over the driver');
  });
}
