// Sizes of a pool of nodes, for the pods that ask for its nodes.
import test from 'ava';
import { parsePodRequest } from '../../../src/api/request-annotation.ts';
import { objectAt } from '../../../src/common/json.ts';
import { formatProblem } from '../../../src/common/problem.ts';
import { parseConfiguration } from '../../../webhook/config.ts';
import { answerOf, configured, creation, sharePod } from './reviews.ts';

const SMALL = { pool: 'small' };
const pools = {
  small: {
    nodeSelector: SMALL,
    defaults: { gpuMemory: '2Gi', gpuCores: 10 },
    most: { gpu: 4, gpuMemory: '4Gi' },
    memoryIsolation: 'off',
    enforcement: 'report',
  },
  zone: { nodeSelector: { ...SMALL, zone: 'a' }, most: { gpuMemory: '3Gi' }, enforcement: 'off' },
};
const rules = { most: { gpu: 1, gpuCores: 50 }, defaults: { gpuMemory: '8Gi' } };
const configuration = configured({ rules, pools });
const gpus = (limits: object, nodeSelector: object = {}, annotations: object = {}) =>
  answerOf(creation(sharePod({ resources: { limits } }, { nodeSelector }, { annotations })), configuration);

const recordOf = ({ pod }: ReturnType<typeof gpus>) => {
  const read = parsePodRequest(objectAt(objectAt(pod, 'metadata'), 'annotations')['cotenant.io/request']);
  if (!read.ok) throw new Error('no record');
  const [container] = read.value.containers;
  return { mode: read.value.enforcement, isolation: container?.memoryIsolation, gpus: container?.gpus };
};
const bytes = (gibibytes: number) => ({ kind: 'bytes', bytes: gibibytes * 2 ** 30 });

test('a pod that asks for a pool’s nodes has its default size, isolation and mode', (t) => {
  const one = { 'cotenant.io/gpu': '1' };
  t.deepEqual(recordOf(gpus(one, { ...SMALL, other: 'x' })), {
    mode: 'report',
    isolation: 'off',
    gpus: [{ memory: bytes(2), coresPercent: 10 }],
  });
  const ofCluster = { mode: undefined, isolation: 'on', gpus: [{ memory: bytes(8) }] };
  for (const elsewhere of [{}, { pool: 'large' }, { zone: 'a' }]) {
    t.deepEqual(recordOf(gpus(one, elsewhere)), ofCluster as never, JSON.stringify(elsewhere));
  }
});

const affinity = (...terms: object[][]) => ({
  nodeAffinity: {
    requiredDuringSchedulingIgnoredDuringExecution: {
      nodeSelectorTerms: terms.map((matchExpressions) => ({ matchExpressions })),
    },
  },
});
const label = (key: string, ...values: string[]) => ({ key, operator: 'In', values });

test('a required affinity names a pool where each of its terms does, with one value', (t) => {
  const isolationOf = (spec: object) => {
    const resources = { limits: { 'cotenant.io/gpu': '1' } };
    return recordOf(answerOf(creation(sharePod({ resources }, spec)), configuration)).isolation;
  };
  const small = label('pool', 'small');
  const preferred = {
    nodeAffinity: {
      preferredDuringSchedulingIgnoredDuringExecution: [{ weight: 1, preference: { matchExpressions: [small] } }],
    },
  };
  const cases: readonly (readonly [what: string, affinity: object, isolation: 'on' | 'off'])[] = [
    ['one term', affinity([small]), 'off'],
    ['two terms for the pool', affinity([small, label('zone', 'a')], [label('zone', 'b'), small]), 'off'],
    ['the same value twice', affinity([label('pool', 'small', 'small')]), 'off'],
    ['a term for any node', affinity([small], [label('zone', 'b')]), 'on'],
    ['a term without an expression', affinity([small], []), 'on'],
    ['terms for two pools', affinity([small], [label('pool', 'large')]), 'on'],
    ['one of two values', affinity([label('pool', 'small', 'large')]), 'on'],
    ['not this value', affinity([{ ...small, operator: 'NotIn' }]), 'on'],
    ['a preference', preferred, 'on'],
    ['nothing', {}, 'on'],
  ];
  for (const [what, own, isolation] of cases) t.is(isolationOf({ affinity: own }), isolation, what);
  t.is(isolationOf({ affinity: affinity([small]), nodeSelector: { pool: 'large' } }), 'on', 'no node has both values');
});

test('a pod chooses within its pool: isolation on, and a stricter mode', (t) => {
  const chosen = { 'cotenant.io/memory-isolation': 'on', 'cotenant.io/enforcement': 'enforce' };
  t.like(recordOf(gpus({ 'cotenant.io/gpu': '1' }, SMALL, chosen)), { isolation: 'on', mode: 'report' });
  const off = { 'cotenant.io/memory-isolation': 'off' };
  t.is(recordOf(gpus({ 'cotenant.io/gpu': '1' }, SMALL, off)).isolation, 'off');
  t.regex(gpus({ 'cotenant.io/gpu': '1' }, {}, off).denial ?? '', /memory-isolation.*is not allowed in this namespace/);
  t.regex(
    gpus({ 'cotenant.io/gpu': '1' }, SMALL, { 'cotenant.io/enforcement': 'off' }).denial ?? '',
    /enforcement.*"off" is not allowed.*write one of report, enforce/,
  );
});

test('of the largest amounts of a pool and a namespace the smaller one holds', (t) => {
  const most = (limits: object, nodeSelector: object) => gpus(limits, nodeSelector).denial ?? 'allowed';
  t.regex(most({ 'cotenant.io/gpu-memory': '5Gi' }, SMALL), /is 5Gi .*; at most 4Gi is allowed/);
  t.is(most({ 'cotenant.io/gpu-memory': '5Gi' }, {}), 'allowed');
  t.regex(most({ 'cotenant.io/gpu': '2', 'cotenant.io/gpu-memory': '2Gi' }, SMALL), /is 2 GPUs; at most 1 is allowed/);
  t.regex(most({ 'cotenant.io/gpu-memory': '1Gi', 'cotenant.io/gpu-cores': '60' }, SMALL), /is 60 .*at most 50/);
  // Both pools.
  t.regex(most({ 'cotenant.io/gpu-memory': '4Gi' }, { ...SMALL, zone: 'a' }), /at most 3Gi is allowed/);
  t.is(recordOf(gpus({ 'cotenant.io/gpu': '1' }, { ...SMALL, zone: 'a' })).mode, 'off');
});

test('a pod of a pool is patched once, and passes the second webhook', (t) => {
  const { pod } = gpus({ 'cotenant.io/gpu': '1' }, SMALL);
  t.deepEqual(answerOf(creation(pod), configuration).patch, []);
  t.true(answerOf(creation(pod), configuration, 'validate').allowed);
});

test('a wrong pool is refused with its path', (t) => {
  const problemsOf = (pool: object) => {
    const read = parseConfiguration({ pools: { p: pool } });
    return read.ok ? [] : read.error.map(formatProblem);
  };
  t.deepEqual(problemsOf({ most: { gpu: 1 } }), ['pools.p.nodeSelector: is missing; add it']);
  t.deepEqual(problemsOf({ nodeSelector: {} }), [
    'pools.p.nodeSelector: an object is not valid; write labels of the nodes',
  ]);
  t.deepEqual(problemsOf({ nodeSelector: SMALL, memoryIsolation: false }), [
    'pools.p.memoryIsolation: false is not valid; write one of on, off; in YAML with quotes, "off"',
  ]);
  t.deepEqual(problemsOf({ nodeSelector: SMALL, dialects: ['ack'] }), [
    'pools.p.dialects: a list of 1 is not a known key; write one of nodeSelector, defaults, most, memoryIsolation, enforcement',
  ]);
});
