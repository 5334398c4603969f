import test from 'ava';
import * as v from 'valibot';
import { formatProblem } from '../../../src/common/problem.ts';
import { check, oneOf, parse, parseJson, settings, whole } from '../../../src/common/schema.ts';

const Limits = settings({
  memoryMiB: whole(1, 1024),
  mode: v.optional(oneOf(['off', 'report'])),
  labels: v.optional(v.record(v.string(), v.string())),
  gpus: v.optional(v.array(v.object({ index: whole(0, 7), fault: v.nullish(v.string()) }))),
});

test('a value of the declared format comes back with its type', (t) => {
  const read = parseJson(Limits, '{"memoryMiB":4,"mode":"off","gpus":[{"index":0,"fault":null}]}');
  t.deepEqual(read, { ok: true, value: { memoryMiB: 4, mode: 'off', gpus: [{ index: 0, fault: null }] } });
});

test('an error in one line names the path, the value and the expected value', (t) => {
  const cases: [unknown, string][] = [
    ['x', '"x" is not an object of memoryMiB, mode, labels, gpus'],
    [null, 'null is not an object of memoryMiB, mode, labels, gpus'],
    [{}, 'memoryMiB: is missing'],
    [{ memoryMiB: '4' }, 'memoryMiB: "4" is not a whole number from 1 to 1024'],
    [{ memoryMiB: 0 }, 'memoryMiB: 0 is not a whole number from 1 to 1024'],
    [{ memoryMiB: 1.5 }, 'memoryMiB: 1.5 is not a whole number from 1 to 1024'],
    [{ memoryMiB: 4, mode: 'on' }, 'mode: "on" is not one of off, report'],
    [{ memoryMiB: 4, gpus: [{ index: 0 }, 7] }, 'gpus[1]: 7 is not an object'],
    [{ memoryMiB: 4, gpus: [{ index: 0, fault: 7 }] }, 'gpus[0].fault: 7 is not a text'],
    [{ memoryMiB: 4, labels: { 'x/y': 1 } }, 'labels["x/y"]: 1 is not a text'],
    [{ memoryMiB: 4, gpu: 1 }, 'gpu: is not a known key, expected one of memoryMiB, mode, labels, gpus'],
  ];
  for (const [value, error] of cases) t.deepEqual(parse(Limits, value), { ok: false, error });
  t.deepEqual(parseJson(Limits, '{'), { ok: false, error: 'it is not JSON' });
});

test('all problems of settings that a person wrote are listed at once', (t) => {
  const read = check(Limits, { mode: 'on', gpu: 1, gpus: [{ index: 'a' }] }, 'limits');
  t.deepEqual(read.ok ? [] : read.error.map(formatProblem), [
    'limits.memoryMiB: is missing; add it',
    'limits.mode: "on" is not valid; write one of off, report',
    'limits.gpus[0].index: "a" is not valid; write a whole number from 0 to 7',
    'limits.gpu: 1 is not a known key; write one of memoryMiB, mode, labels, gpus',
  ]);
});
