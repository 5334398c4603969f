// What of ACK's shared GPU scheduling hangs on more than two amounts: whole GPUs of the mode `topology`, nodes of the
// mode `share`, and pods with several containers. Facts: Alibaba Cloud, "Enable scheduling features" (labels of nodes
// and their values); AliyunContainerService/gpushare-scheduler-extender, which looks for one GPU for a whole pod.
import test from 'ava';
import { readPodRequest } from '../../../src/request/read-pod.ts';
import { outcome, requestOf, rules } from './pods.ts';
import { limit, table, units, whole } from './tables.ts';

const MEMORY = 'aliyun.com/gpu-mem';
const CORES = 'aliyun.com/gpu-core.percentage';
const WHOLE = 'aliyun.com/gpu';

table('whole GPUs of ACK', {
  one: { limits: { [WHOLE]: 1 }, expected: [whole] },
  several: { limits: { [WHOLE]: '3' }, expected: [whole, whole, whole] },
  none: { limits: { [WHOLE]: '0' }, expected: 'none' },
  'none beside a share': { limits: { [WHOLE]: '0', [MEMORY]: '3' }, expected: [units(3)] },
  'beside a share of nothing': { limits: { [WHOLE]: '1', [MEMORY]: '0' }, expected: [whole] },
  'a part': {
    limits: { [WHOLE]: '0.5' },
    expected: [`${limit(WHOLE)}: "0.5" is not a whole number; write aliyun.com/gpu-mem for a part of a GPU`],
  },
  'beside memory': {
    limits: { [WHOLE]: '1', [MEMORY]: '3' },
    expected: [`${limit(MEMORY)}: "3" is a part of a GPU beside whole ones (aliyun.com/gpu); write one of the two`],
  },
  'compute of several GPUs is of each': {
    limits: { [MEMORY]: '8', [CORES]: '20' },
    labels: { 'aliyun.com/gpu-count': '4' },
    expected: Array.from({ length: 4 }, () => ({ ...units(2), coresPercent: 20 })),
  },
  'compute above one GPU': {
    limits: { [MEMORY]: '8', [CORES]: '200' },
    labels: { 'aliyun.com/gpu-count': '4' },
    expected: [`${limit(CORES)}: "200" is more than 100; write a whole number from 1 to 100: percent of one GPU`],
  },
});

const container = (name: string, limits: object) => ({ name, resources: { limits } });
const podOf = (containers: object[], more: { labels?: object; annotations?: object; nodeSelector?: object } = {}) => {
  const { nodeSelector, ...metadata } = more;
  return { metadata, spec: { containers, ...(nodeSelector && { nodeSelector }) } };
};

test('a pod that selects nodes of mode share has no isolation where that is allowed', (t) => {
  const isolationOf = (mode: string, settings: object, annotations = {}) => {
    const nodeSelector = { 'ack.node.gpu.schedule': mode };
    const pod = podOf([container('main', { [MEMORY]: '3' })], { nodeSelector, annotations });
    const reading = readPodRequest(pod, rules(settings));
    if (reading.kind !== 'request') return reading.kind;
    return [reading.request.containers[0]?.memoryIsolation, ...reading.warnings];
  };
  const open = { allowMemoryIsolationOff: true };
  t.deepEqual(isolationOf('share', open), ['off']);
  for (const mode of ['cgpu', 'core_mem', 'mps', 'default', 'topology'])
    t.deepEqual(isolationOf(mode, open), ['on'], mode);
  t.deepEqual(isolationOf('share', open, { 'cotenant.io/memory-isolation': 'on' }), ['on']);
  t.deepEqual(isolationOf('share', {}), ['on', 'ack.node.gpu.schedule: share: memory is limited all the same here']);
});

test('the containers of a pod of ACK get one GPU together', (t) => {
  const [one, two] = [container('a', { [MEMORY]: '3' }), container('b', { [MEMORY]: '2', [CORES]: '30' })];
  t.true(requestOf(podOf([one, two])).sameGpu);
  t.is(requestOf(podOf([one])).sameGpu, undefined);
  t.is(requestOf(podOf([one, container('b', {})])).sameGpu, undefined);
  const labels = { 'aliyun.com/gpu-count': '2' };
  t.is(
    requestOf(podOf([container('a', { [MEMORY]: '4' }), container('b', { [MEMORY]: '2' })], { labels })).sameGpu,
    undefined,
  );
  // Our own names, alone or beside: each container gets its own.
  t.is(requestOf(podOf([one, container('b', { 'cotenant.io/gpu-memory': '1Gi' })])).sameGpu, undefined);
});

test('a pod of ACK that is refused says why in the names of ACK', (t) => {
  t.deepEqual(outcome(podOf([container('main', { [CORES]: '30' })]), rules()), [
    `${limit(MEMORY)}: is missing; ${CORES} needs an amount of ${MEMORY}`,
  ]);
});
