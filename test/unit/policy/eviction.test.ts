import test from 'ava';
import { DEFAULT_EVICTION, isEvictionDue, stopsWithin } from '../../../src/policy/eviction.ts';

const policy = { evictAfterStops: 3, evictWindowSeconds: 60 };

test('an eviction is due with enough stops in the window, not with one less or older', (t) => {
  const cases: [stopsS: number[], nowS: number, due: boolean][] = [
    [[], 0, false],
    [[0, 10], 10, false],
    [[0, 10, 20], 20, true],
    [[0, 10, 20], 59.9, true],
    [[0, 10, 20], 60, false],
    [[0, 10, 20, 61], 61, true],
  ];
  for (const [stops, now, due] of cases) {
    const ms = stops.map((second) => second * 1000);
    t.is(isEvictionDue(ms, now * 1000, policy), due, JSON.stringify([stops, now]));
  }
  t.deepEqual(stopsWithin([0, 10_000], 65_000, policy), [10_000]);
});

test('no pod is evicted unless the settings ask for it', (t) => {
  t.is(DEFAULT_EVICTION.evictAfterStops, 0);
  t.false(isEvictionDue(Array(1000).fill(0), 0, DEFAULT_EVICTION));
});
