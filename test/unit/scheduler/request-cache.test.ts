// How much is kept of pods that were filtered and not bound.
import test from 'ava';
import { createRemembered } from '../../../src/scheduler/request-cache.ts';

test('the newest texts are kept, of each pod the last one', (t) => {
  const kept = createRemembered(() => 0, { mostLength: 10, mostMs: 1000 });
  kept.put('a', 'xxxx');
  kept.put('b', 'yyyy');
  kept.put('a', 'zzzzzz');
  t.deepEqual([kept.get('a'), kept.get('b'), kept.length], ['zzzzzz', 'yyyy', 10]);
  kept.put('c', 'v');
  t.deepEqual([kept.get('a'), kept.get('b'), kept.get('c'), kept.length], ['zzzzzz', undefined, 'v', 7]);
  kept.put('huge', 'h'.repeat(11));
  t.deepEqual([kept.get('huge'), kept.length], [undefined, 0]);
  kept.put('d', 'w');
  kept.forget('d');
  kept.forget('d');
  t.deepEqual([kept.get('d'), kept.length], [undefined, 0]);
});

test('texts of pods that were filtered long ago go', (t) => {
  let nowMs = 0;
  const kept = createRemembered(() => nowMs, { mostLength: 1000, mostMs: 1000 });
  kept.put('old', 'x');
  nowMs = 500;
  kept.put('younger', 'x');
  nowMs = 1001;
  kept.put('new', 'x');
  t.deepEqual([kept.get('old'), kept.get('younger'), kept.get('new'), kept.length], [undefined, 'x', 'x', 2]);
});
