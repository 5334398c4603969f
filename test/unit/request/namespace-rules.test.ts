import test from 'ava';
import { formatProblem } from '../../../src/common/problem.ts';
import { MIB } from '../../../src/common/quantity.ts';
import { DEFAULT_RULES } from '../../../src/request/rules/namespace-rules.ts';
import { parseRules } from './pods.ts';

const problemsOf = (value: unknown): string[] => {
  const read = parseRules(value, 'rules', DEFAULT_RULES);
  return read.ok ? [] : read.error.map(formatProblem);
};

test('missing settings keep their base values', (t) => {
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

test('a misspelled setting or one of another type is refused', (t) => {
  const cases: [unknown, RegExp][] = [
    [5, /^rules: 5 is not valid; write an object of dialects, /],
    [{ dialect: ['ack'] }, /^rules\.dialect: a list of 1 is not a known key; write one of dialects, /],
    [
      { dialects: ['gaia'] },
      /^rules\.dialects\[0\]: "gaia" is not valid; write one of ack, metagpu, hami, volcano, vgpu-manager, tke, koordinator, kai, kubeshare, nos, nvidia, huawei, volcengine, baidu$/,
    ],
    [{ dialects: 'ack' }, /^rules\.dialects: "ack" is not valid; write a list$/],
    [{ allowGpuUuid: 'yes' }, /^rules\.allowGpuUuid: "yes" is not valid; write true or false$/],
    [{ mostComputeWeight: 1001 }, /^rules\.mostComputeWeight: 1001 is not valid; write a whole number from 0 to 1000$/],
    [{ enforcement: 'warn' }, /^rules\.enforcement: "warn" is not valid; write one of off, report, enforce$/],
    [{ enforcement: false }, /^rules\.enforcement: false is not valid; .*; in YAML with quotes, "off"$/],
    [{ ack: { unit: 'GB' } }, /^rules\.ack\.unit: "GB" is not valid; write one of GiB, MiB, 128MiB/],
    [{ ack: { rounding: 'up' } }, /^rules\.ack\.rounding: "up" is not valid; write one of cgpu, literal$/],
    [{ ack: [] }, /^rules\.ack: a list of 0 is not valid; write an object of unit, rounding$/],
    [{ ack: { size: 1 } }, /^rules\.ack\.size: 1 is not a known key; write one of unit, rounding$/],
    [
      { templates: { 'a=b': { gpu: 1 } } },
      /^rules\.templates\["a=b"\]: "a=b" is not valid; write a name of at most 63/,
    ],
    [
      { templates: { small: {} } },
      /^rules\.templates\.small: an object is not valid; write some of gpu, gpuMemory, gpuCores$/,
    ],
    [{ templates: { small: { memory: '4Gi' } } }, /^rules\.templates\.small\.memory: "4Gi" is not a known key/],
    [
      { templates: { small: { gpu: true } } },
      /^rules\.templates\.small\.gpu: true is not valid; write a text or a number$/,
    ],
    [{ templates: 'small' }, /^rules\.templates: "small" is not valid; write an object$/],
  ];
  for (const [value, expected] of cases) {
    const problems = problemsOf(value);
    t.is(problems.length, 1, JSON.stringify(value));
    t.regex(problems[0] ?? '', expected);
  }
});

test('all problems of a set of rules are listed at once', (t) => {
  t.is(problemsOf({ dialects: 1, allowGpuUuid: 1, ack: { unit: 1, rounding: 1 }, nonsense: 1 }).length, 5);
});

test('templates are read with numbers or text', (t) => {
  const read = parseRules({ templates: { small: { gpu: 1, gpuMemory: '4Gi' } } }, 'rules', DEFAULT_RULES);
  t.deepEqual(read.ok && read.value.templates, new Map([['small', { gpu: '1', gpuMemory: '4Gi' }]]));
});
