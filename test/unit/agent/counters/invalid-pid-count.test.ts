// Entries of nobody as one counter: whatever becomes of cards and samplers, it does not fall.
import test from 'ava';
import { createNobodys } from '../../../../src/agent/counters/invalid-pid-count.ts';

const card = (uuid: string, nobodysEntries?: number) => ({ uuid, ...(nobodysEntries && { nobodysEntries }) });

test('the sum of all cards only grows: over a card that is gone for a sample, and a sampler that began again', (t) => {
  const nobodys = createNobodys();
  const steps: readonly (readonly [
    cards: readonly ReturnType<typeof card>[],
    sum: number | undefined,
    round?: number,
  ])[] = [
    [[], undefined],
    [[card('a'), card('b')], 0],
    [[card('a', 5), card('b', 3)], 8],
    [[card('b', 4)], 9],
    [[], 9],
    [[card('a', 6), card('b', 4)], 10],
    [[card('a'), card('b', 2)], 12],
    [[card('a', 1), card('b', 2)], 13],
    // Another sampler that has come as far as the one before it.
    [[card('a', 1), card('b', 3)], 17, 1],
    [[card('a', 1), card('b', 4)], 18],
  ];
  for (const [cards, sum, round = 5] of steps) t.is(nobodys.see({ cards, round }), sum);
});
