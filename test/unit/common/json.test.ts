import test from 'ava';
import { field, isObject, listAt, objectAt, textAt } from '../../../src/common/json.ts';

test('only own keys are read, never those of a prototype', (t) => {
  t.is(field({}, 'toString'), undefined);
  t.is(field(Object.create({ spec: 1 }), 'spec'), undefined);
  t.deepEqual(field(JSON.parse('{"__proto__": {"a": 1}}'), '__proto__'), { a: 1 });
  t.is(field(JSON.parse('{"__proto__": {"a": 1}}'), 'a'), undefined);
});

test('null, and everything of another type, reads as absent', (t) => {
  for (const value of [null, undefined, 7, 'text', true]) {
    t.is(field(value, 'length'), undefined);
    t.deepEqual(objectAt({ a: value }, 'a'), {});
    t.deepEqual(listAt({ a: value }, 'a'), []);
  }
  t.is(field({ a: null }, 'a'), undefined);
  t.is(field({ a: 0 }, 'a'), 0);
  t.is(textAt({ a: '' }, 'a'), '');
  t.is(textAt({ a: 7 }, 'a'), undefined);
  t.false(isObject([]));
});
