// The check for circles between C files (native/circles.ts) on graphs and symbol tables of a few lines.
import test from 'ava';
import { callsBetween, findCircles, graphOf, includesOf, isWithin, parseSymbols } from '../../../native/circles.ts';

const circles = (...edges: [string, string][]) => findCircles(graphOf(edges));

test('a graph without a way back has no circle', (t) => {
  t.deepEqual(circles(['a', 'b'], ['b', 'c'], ['a', 'c'], ['d', 'c']), []);
});

test('nodes that reach one another are one circle, others are left out', (t) => {
  t.deepEqual(circles(['x', 'a'], ['a', 'b'], ['b', 'c'], ['c', 'a'], ['c', 'y']), [['a', 'b', 'c']]);
});

test('two circles that meet in one node are one, two apart are two', (t) => {
  t.deepEqual(circles(['a', 'b'], ['b', 'a'], ['b', 'c'], ['c', 'b']), [['a', 'b', 'c']]);
  t.deepEqual(circles(['a', 'b'], ['b', 'a'], ['c', 'd'], ['d', 'c']), [
    ['a', 'b'],
    ['c', 'd'],
  ]);
});

test('a file that calls itself is no circle', (t) => {
  t.deepEqual(circles(['a', 'a']), []);
});

const NM = `
0000000000000010 T cot_reserve
0000000000000000 t fits
                 U cot_pools_trim
0000000000000000 R cot_hooks
0000000000000040 W operator_new
`;

test('nm output gives functions: global defined, missing called, data neither', (t) => {
  t.deepEqual(parseSymbols(NM), { defined: ['cot_reserve', 'operator_new'], called: ['cot_pools_trim'] });
});

test('a call leads to the file that defines it, in the own part of the tree first', (t) => {
  const objects = new Map([
    ['a/one.c', { defined: ['f'], called: ['g', 'main', 'libc'] }],
    ['a/two.c', { defined: ['g', 'main'], called: ['f'] }],
    ['b/three.c', { defined: ['g', 'main'], called: [] }],
    ['c/four.c', { defined: [], called: ['g'] }],
  ]);
  t.deepEqual(callsBetween(objects), [
    ['a/one.c', 'a/two.c'],
    ['a/one.c', 'a/two.c'],
    ['a/two.c', 'a/one.c'],
  ]);
});

test('includes are paths from the including file; those of the system are left out', (t) => {
  const text = '#include <stdio.h>\n#include "near.h"\n  #include "../up/far.h"\n';
  t.deepEqual(includesOf('a/b/one.c', text), ['a/b/near.h', 'a/up/far.h']);
});

test('a part of a known circle is known, a larger one is not', (t) => {
  t.true(isWithin('calls: a b', 'calls: a b c'));
  t.false(isWithin('calls: a b d', 'calls: a b c'));
  t.false(isWithin('folders: a b', 'calls: a b c'));
});
