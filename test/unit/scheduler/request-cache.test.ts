// How many requests are cached of pods that were filtered and not bound.
import test from 'ava';
import { createRequestCache } from '../../../src/scheduler/request-cache.ts';

test('the newest texts are kept, of each pod the last one', (t) => {
  const cache = createRequestCache(() => 0, { mostLength: 10, mostMs: 1000 });
  cache.put('a', 'xxxx');
  cache.put('b', 'yyyy');
  cache.put('a', 'zzzzzz');
  t.deepEqual([cache.get('a'), cache.get('b'), cache.length], ['zzzzzz', 'yyyy', 10]);
  cache.put('c', 'v');
  t.deepEqual([cache.get('a'), cache.get('b'), cache.get('c'), cache.length], ['zzzzzz', undefined, 'v', 7]);
  cache.put('huge', 'h'.repeat(11));
  t.deepEqual([cache.get('huge'), cache.length], [undefined, 0]);
  cache.put('d', 'w');
  cache.forget('d');
  cache.forget('d');
  t.deepEqual([cache.get('d'), cache.length], [undefined, 0]);
});

test('texts of pods that were filtered long ago are dropped', (t) => {
  let nowMs = 0;
  const cache = createRequestCache(() => nowMs, { mostLength: 1000, mostMs: 1000 });
  cache.put('old', 'x');
  nowMs = 500;
  cache.put('younger', 'x');
  nowMs = 1001;
  cache.put('new', 'x');
  t.deepEqual([cache.get('old'), cache.get('younger'), cache.get('new'), cache.length], [undefined, 'x', 'x', 2]);
});
