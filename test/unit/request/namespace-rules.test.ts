import test from 'ava';
import { formatProblem } from '../../../src/common/problem.ts';
import { MIB } from '../../../src/common/quantity.ts';
import { DEFAULT_RULES, parseRules } from '../../../src/request/rules/namespace-rules.ts';

const problemsOf = (value: unknown): string[] => {
  const read = parseRules(value, 'rules', DEFAULT_RULES);
  return read.ok ? [] : read.error.map(formatProblem);
};

test('settings that are not given keep what they were based on', (t) => {
  t.deepEqual(parseRules(undefined, 'rules', DEFAULT_RULES), { ok: true, value: DEFAULT_RULES });
  const read = parseRules({ dialects: ['ack'], ack: { unit: '128MiB' } }, 'rules', DEFAULT_RULES);
  t.deepEqual(read, {
    ok: true,
    value: { ...DEFAULT_RULES, dialects: ['ack'], ack: { unitBytes: 128 * MIB, rounding: 'cgpu' } },
  });
});

test('nothing by which a tenant could take from a neighbor is on by default', (t) => {
  t.deepEqual(DEFAULT_RULES.priorities, ['normal']);
  t.false(DEFAULT_RULES.computePolicies.includes('native'));
  t.false(DEFAULT_RULES.allowMemoryIsolationOff);
  t.false(DEFAULT_RULES.allowMemoryOvercommit);
  t.false(DEFAULT_RULES.allowGpuUuid);
  t.deepEqual(DEFAULT_RULES.dialects, []);
  t.is(DEFAULT_RULES.enforcement, 'enforce');
});

test('a setting that is misspelt or of another type is refused with what is known', (t) => {
  const cases: [unknown, RegExp][] = [
    [5, /^rules: 5 is not a map of settings; write dialects, /],
    [{ dialect: ['ack'] }, /^rules\["dialect"\]: a list of 1 is no setting; known are dialects, /],
    [{ dialects: ['hami'] }, /^rules\.dialects: a list of 1 is not a list of known names; write some of ack, metagpu$/],
    [{ dialects: 'ack' }, /^rules\.dialects: "ack" is not a list of known names/],
    [{ allowGpuUuid: 'yes' }, /^rules\.allowGpuUuid: "yes" is not a switch; write true or false$/],
    [{ enforcement: 'warn' }, /^rules\.enforcement: "warn" is not a known name; write one of off, report, enforce$/],
    [{ enforcement: false }, /^rules\.enforcement: false is not a known name; .*; in YAML with quotes, "off"$/],
    [{ ack: { unit: 'GB' } }, /^rules\.ack\.unit: "GB" is no unit that ACK knows; write one of GiB, MiB, 128MiB/],
    [{ ack: { rounding: 'up' } }, /^rules\.ack\.rounding: "up" is no way to round; write cgpu or literal$/],
    [{ ack: [] }, /^rules\.ack: a list of 0 is not a map of settings; write unit, rounding$/],
    [{ ack: { size: 1 } }, /^rules\.ack\["size"\]: 1 is no setting; known are unit, rounding$/],
    [{ templates: { 'a=b': { gpu: 1 } } }, /is not a usable name/],
    [{ templates: { small: {} } }, /names no amounts; write some of gpu, gpuMemory, gpuCores$/],
    [{ templates: { small: { memory: '4Gi' } } }, /\["memory"\]: "4Gi" is no setting/],
    [{ templates: 'small' }, /^rules\.templates: "small" is not a map from name to amounts/],
  ];
  for (const [value, expected] of cases) {
    const problems = problemsOf(value);
    t.is(problems.length, 1, JSON.stringify(value));
    t.regex(problems[0] ?? '', expected);
  }
});

test('every problem of a set of rules is told at once', (t) => {
  t.is(problemsOf({ dialects: 1, allowGpuUuid: 1, ack: { unit: 1, rounding: 1 }, nonsense: 1 }).length, 5);
});

test('templates are read with numbers or text', (t) => {
  const read = parseRules({ templates: { small: { gpu: 1, gpuMemory: '4Gi' } } }, 'rules', DEFAULT_RULES);
  t.deepEqual(read.ok && read.value.templates, new Map([['small', { gpu: '1', gpuMemory: '4Gi' }]]));
});
