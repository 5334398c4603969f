// How many requests are cached of pods that were filtered and not bound.
import test from 'ava';
import { createRequestCache } from '../../../../src/scheduler/decisions/request-cache.ts';

const textOf = (text: string) => ({ text, aspects: {}, priority: 0 });

test('the newest texts are kept, of each pod the last one', (t) => {
  const cache = createRequestCache(() => 0, { mostLength: 10, mostMs: 1000 });
  cache.put('a', textOf('xxxx'));
  cache.put('b', textOf('yyyy'));
  cache.put('a', textOf('zzzzzz'));
  t.deepEqual([cache.get('a')?.text, cache.get('b')?.text, cache.length], ['zzzzzz', 'yyyy', 10]);
  cache.put('c', textOf('v'));
  t.deepEqual(
    [cache.get('a')?.text, cache.get('b')?.text, cache.get('c')?.text, cache.length],
    ['zzzzzz', undefined, 'v', 7],
  );
  cache.put('huge', textOf('h'.repeat(11)));
  t.deepEqual([cache.get('huge')?.text, cache.length], [undefined, 0]);
  cache.put('d', textOf('w'));
  cache.forget('d');
  cache.forget('d');
  t.deepEqual([cache.get('d')?.text, cache.length], [undefined, 0]);
});

test('texts of pods that were filtered long ago are dropped', (t) => {
  let nowMs = 0;
  const cache = createRequestCache(() => nowMs, { mostLength: 1000, mostMs: 1000 });
  cache.put('old', textOf('x'));
  nowMs = 500;
  cache.put('younger', textOf('x'));
  nowMs = 1001;
  cache.put('new', textOf('x'));
  t.deepEqual(
    [cache.get('old')?.text, cache.get('younger')?.text, cache.get('new')?.text, cache.length],
    [undefined, 'x', 'x', 2],
  );
});
