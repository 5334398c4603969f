// The ConfigMap of live rules: what it changes, what is wrong with one, and its review.
import test from 'ava';
import { formatProblem } from '../../../src/common/problem.ts';
import { GIB } from '../../../src/common/quantity.ts';
import { rulesOf } from '../../../webhook/config.ts';
import { readLiveRules } from '../../../webhook/live-rules.ts';
import { answerOf, configured, creation } from './reviews.ts';

const settings = {
  schedulerName: 'other-scheduler',
  rules: { dialects: ['ack'], most: { gpu: 2 } },
  namespaces: { research: { dialects: ['hami'], allowPtrace: true }, plain: {} },
};
const configMap = (text: unknown, more: object = {}) => ({
  apiVersion: 'v1',
  kind: 'ConfigMap',
  metadata: { name: 'cotenant-webhook-rules' },
  data: { 'rules.yaml': text, ...more },
});
const problemsOf = (text: unknown, more: object = {}) => {
  const read = readLiveRules(configMap(text, more), settings);
  return read.ok ? [] : read.error.map(formatProblem);
};

test('a section takes the place of the configuration’s own, and the others stay', (t) => {
  const read = readLiveRules(configMap('rules: {most: {gpuMemory: 4Gi}}'), settings);
  if (!read.ok) throw new Error(read.error.map(formatProblem).join());
  t.is(read.value.schedulerName, 'other-scheduler');
  t.like(rulesOf(read.value, 'elsewhere'), { dialects: [], most: { gpuMemory: 4 * GIB } });
  t.is(rulesOf(read.value, 'elsewhere').most.gpu, undefined);
  t.like(rulesOf(read.value, 'research'), { dialects: ['hami'], most: { gpuMemory: 4 * GIB } });
  const none = readLiveRules(configMap('namespaces: {team: {dialects: [hami]}}'), settings);
  t.deepEqual(none.ok && [...none.value.namespaces.keys()], ['team']);
  t.deepEqual(problemsOf(''), []);
});

test('a wrong ConfigMap is refused with path, value and what would be right', (t) => {
  t.deepEqual(problemsOf('rules: {most: {gpuMemory: 1G}, placements: [tetris]}'), [
    'rules.most.gpuMemory: "1G" is not valid; write an amount of whole MiB such as "4Gi"',
    'rules.placements[0]: "tetris" is not valid; write one of binpack, spread, fragmentation, topology',
  ]);
  t.deepEqual(problemsOf('schedulerName: other'), [
    'schedulerName: "other" is not read here; write rules, namespaces, pools',
  ]);
  t.deepEqual(problemsOf('[1]'), ['data["rules.yaml"]: a list of 1 is not an object; write rules, namespaces, pools']);
  t.regex(problemsOf('a: b: c')[0] ?? '', /^data\["rules\.yaml"\]: is not YAML: .*; mend it$/);
  t.deepEqual(problemsOf(undefined), ['data["rules.yaml"]: is missing; write rules, namespaces, pools there, as YAML']);
  t.deepEqual(problemsOf('', { 'rules.yml': '' }), ['data: "rules.yml" is not read; write all under rules.yaml']);
});

test('what match conditions and policies of the chart decide is refused', (t) => {
  t.deepEqual(problemsOf('rules: {dialects: [ack, hami]}'), []);
  t.deepEqual(problemsOf('rules: {dialects: [tke]}\nnamespaces: {a: {}, b: {dialects: [nos, ack]}}'), [
    'rules.dialects: "tke" is off where the webhook is registered; switch it on in webhook.configuration of the chart, for one namespace at least',
    'namespaces.b.dialects: "nos" is off where the webhook is registered; switch it on in webhook.configuration of the chart, for one namespace at least',
  ]);
  const policy = "is decided by the chart's policies as well; set it in webhook.configuration of the chart";
  t.deepEqual(problemsOf('namespaces: {research: {allowPtrace: true}, plain: {allowPtrace: true}}'), [
    `namespaces.plain.allowPtrace: true ${policy}`,
  ]);
  t.deepEqual(problemsOf('rules: {allowPtrace: true}\nnamespaces: {plain: {allowPtrace: false}}'), [
    `rules.allowPtrace: true ${policy}`,
  ]);
  t.deepEqual(problemsOf('namespaces: {research: {allowPtrace: false}}'), []);
});

test('the review of a ConfigMap allows a right one and refuses a wrong one', (t) => {
  const check = (object: object) => {
    const read = readLiveRules(object, settings);
    return read.ok ? [] : read.error;
  };
  const configuration = { ...configured(settings), checkLiveRules: check };
  const resource = { group: '', version: 'v1', resource: 'configmaps' };
  const reviewed = (text: string, of = configuration) =>
    answerOf(creation(configMap(text), { resource, operation: 'UPDATE' }), of, 'validate');
  t.like(reviewed('pools: {a: {nodeSelector: {a: b}}}'), { allowed: true, outcome: 'allowed', patch: [] });
  t.is(
    reviewed('rules: {most: {gpu: none}}').denial,
    '422 Invalid: rules.most.gpu: "none" is not valid; write a whole number from 1 to 64',
  );
  t.regex(reviewed('rules: {allowPtrace: true}').denial ?? '', /^403 Forbidden: /);
  const { checkLiveRules: _, ...without } = configuration;
  t.true(reviewed('rules: none', without as typeof configuration).allowed);
});
