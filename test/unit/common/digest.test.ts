import { createHash } from 'node:crypto';
import test from 'ava';
import { createPool, shortDigest } from '../../../src/common/digest.ts';

test('a short digest is the beginning of the SHA-256', (t) => {
  for (const text of ['', 'a', 'node-1 {"version":1}'])
    t.is(shortDigest(text), createHash('sha256').update(text).digest('base64').slice(0, 16));
});

test('a pool returns the first value of a key, and forgets all when it is full', (t) => {
  const shared = createPool<object>(2);
  const [first, second, third] = [{}, {}, {}];
  t.is(shared('a', first), first);
  t.is(shared('a', second), first);
  t.is(shared('b', second), second);
  t.is(shared('c', third), third);
  t.is(shared('a', second), second);
});

test('a value with a long key is not kept', (t) => {
  const pool = createPool<object>(10);
  const [first, other] = [{}, {}];
  t.is(pool('k'.repeat(1025), first), first);
  t.is(pool('k'.repeat(1025), other), other);
  t.is(pool('k'.repeat(1024), first), first);
  t.is(pool('k'.repeat(1024), other), first);
});
