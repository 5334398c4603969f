// The account of random programs over all verbs against the simulated driver's own books: several processes that are
// born, forked, replaced and killed, in one grant of two cards, with failures injected into any call of the driver.
import test from 'ava';
import { BOOKS_SHARE, runBooks } from '../support/books.ts';

const STEPS = Math.round(10_000 * BOOKS_SHARE);
const LONGEST_MS = 60_000 + 60_000 * BOOKS_SHARE;
const BURST_STEPS = Math.round(6000 * BOOKS_SHARE);

for (const seed of [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]) {
  test.serial(
    `random programs, one step after the other: no byte of drift, nothing over the grant, no refusal of what fits (${seed})`,
    async (t) => {
      t.timeout(LONGEST_MS);
      const result = await runBooks(t, { seed, steps: STEPS });
      t.true(result.done > STEPS * 0.9);
      t.true(result.refusals > STEPS * 0.01, 'the grant was full at times');
      t.true(result.deaths > STEPS * 0.01 && result.pauses > STEPS * 0.005);
      t.true(result.failedSymbols >= (BOOKS_SHARE < 1 ? 20 : 40), 'failures all over the driver');
    },
  );
}

test.serial('all processes of random programs at once: no byte of drift, nothing over the grant', async (t) => {
  t.timeout(LONGEST_MS);
  const result = await runBooks(t, { seed: 11, steps: BURST_STEPS, burst: { steps: 20, lanes: 1 } });
  t.true(result.done > BURST_STEPS * 0.8 && result.refusals > BURST_STEPS * 0.01);
});

test.serial(
  'all processes of random programs at once, in three threads each: no byte of drift, nothing over the grant',
  async (t) => {
    t.timeout(LONGEST_MS);
    const result = await runBooks(t, { seed: 12, steps: BURST_STEPS, burst: { steps: 20, lanes: 3 } });
    t.true(result.done > BURST_STEPS * 0.8 && result.refusals > BURST_STEPS * 0.01);
  },
);
