// What a pod chooses by annotations, as far as the rules of its namespace let it.
import test from 'ava';
import { COMPUTE_POLICIES } from '../../../src/api/request.ts';
import { outcome, podWith, requestOf, rules } from './pods.ts';

const M = 'cotenant.io/gpu-memory';
test('annotations choose for the whole pod where the rules allow it', (t) => {
  const allowed = rules({
    priorities: ['normal', 'high'],
    allowGpuUuid: true,
    allowMemoryIsolationOff: true,
    computePolicies: ['native'],
  });
  const annotations = {
    'cotenant.io/placement': 'spread',
    'cotenant.io/compute-policy': 'native',
    'cotenant.io/priority': 'high',
    'cotenant.io/memory-isolation': 'off',
    'cotenant.io/gpu-model': 'Tesla T4, NVIDIA H200,Tesla T4',
    'cotenant.io/gpu-uuid': 'GPU-2,GPU-1',
  };
  const { containers, ...chosen } = requestOf(
    podWith({ [M]: '2Gi', 'cotenant.io/gpu': '2' }, { annotations }),
    allowed,
  );
  t.deepEqual(chosen, {
    priority: 'high',
    placement: 'spread',
    computePolicy: 'native',
    gpuModels: ['NVIDIA H200', 'Tesla T4'],
    gpuUuids: ['GPU-1', 'GPU-2'],
  });
  t.is(containers[0]?.memoryIsolation, 'off');
  const three = podWith({ [M]: '3Gi', 'cotenant.io/gpu': '3' }, { annotations });
  t.deepEqual(outcome(three, allowed), [
    'metadata.annotations["cotenant.io/gpu-uuid"]: "GPU-1,GPU-2" names fewer GPUs than the 3 that "main" asks for; name 3 GPUs',
  ]);
});

test('a GPU or model that is named and left out at once is refused', (t) => {
  const allowed = rules({ allowGpuUuid: true, dialects: ['hami'] });
  const said = (annotations: object, limits: object = { [M]: '1Gi' }) =>
    outcome(podWith(limits, { annotations }), allowed);
  t.deepEqual(said({ 'cotenant.io/gpu-model': 'NVIDIA L4,Tesla T4,!NVIDIA L4' }), [
    'metadata.annotations["cotenant.io/gpu-model"]: "NVIDIA L4,Tesla T4,!NVIDIA L4" names "NVIDIA L4" and leaves it out; write one of the two',
  ]);
  const hami = { 'nvidia.com/use-gpuuuid': 'GPU-1,GPU-2', 'nvidia.com/nouse-gpuuuid': 'GPU-2' };
  t.deepEqual(said(hami, { 'nvidia.com/gpu': '1' }), [
    'metadata.annotations["cotenant.io/gpu-uuid"]: "GPU-1,GPU-2,!GPU-2" names "GPU-2" and leaves it out; write one of the two',
  ]);
  t.true(Array.isArray(said({ 'cotenant.io/gpu-uuid': 'GPU-1,!GPU-2' })));
});

test('an isolation that is on and off at once is refused', (t) => {
  const pod = podWith(
    { 'aliyun.com/gpu-mem': '3' },
    { annotations: { 'cotenant.io/memory-isolation': 'on' }, env: [{ name: 'CGPU_DISABLE', value: '1' }] },
  );
  t.deepEqual(outcome(pod, rules({ allowMemoryIsolationOff: true })), [
    'spec.containers[0].env: "CGPU_DISABLE=1" contradicts cotenant.io/memory-isolation: on; leave one of the two out',
  ]);
});

test("a policy is chosen by name or by cGPU's number", (t) => {
  const annotated = (annotations: object) => podWith({ [M]: '1Gi', 'cotenant.io/gpu-cores': '10' }, { annotations });
  for (const [number, name] of COMPUTE_POLICIES.entries()) {
    const allowed = rules({ computePolicies: COMPUTE_POLICIES });
    t.is(requestOf(annotated({ 'cotenant.io/compute-policy': String(number) }), allowed).computePolicy, name);
    t.is(requestOf(annotated({ 'cotenant.io/compute-policy': name }), allowed).computePolicy, name);
  }
  t.deepEqual(outcome(annotated({ 'cotenant.io/compute-policy': '5' }), rules()), [
    'metadata.annotations["cotenant.io/compute-policy"]: "5" is not allowed in this namespace; write one of average, preemptive, weighted, fixed, soft',
  ]);
  t.deepEqual(outcome(annotated({ 'cotenant.io/compute-policy': '6' }), rules()), [
    'metadata.annotations["cotenant.io/compute-policy"]: "6" is not known; write one of average, preemptive, weighted, fixed, soft',
  ]);
});

const LIMIT = 'cotenant.io/gpu-cores-limit';
const WEIGHT = 'cotenant.io/compute-weight';
const refusalOf = (key: string, rest: string) => [`metadata.annotations["${key}"]: ${rest}`];

test('a weight is chosen up to the largest that the rules allow', (t) => {
  const weighing = (weight: string) => podWith({ [M]: '1Gi' }, { annotations: { [WEIGHT]: weight } });
  t.is(requestOf(weighing('7'), rules({ mostComputeWeight: 10 })).computeWeight, 7);
  t.deepEqual(
    outcome(weighing('11'), rules({ mostComputeWeight: 10 })),
    refusalOf(WEIGHT, '"11" is more than 10; write a whole number from 1 to 10'),
  );
  t.deepEqual(
    outcome(weighing('1'), rules()),
    refusalOf(WEIGHT, '"1" is not allowed in this namespace; leave it out, or have mostComputeWeight raised'),
  );
});

test('a compute limit is a total over the GPUs of the only or the named containers', (t) => {
  const cores = (limits: Readonly<Record<string, string>>, limit: string) =>
    podWith({ [M]: '2Gi', ...limits }, { annotations: { [LIMIT]: limit } });
  const limitsOf = (pod: object) => requestOf(pod, rules()).containers[0]?.gpus.map((gpu) => gpu.coresLimitPercent);
  t.deepEqual(limitsOf(cores({ 'cotenant.io/gpu-cores': '20' }, '80')), [80]);
  t.deepEqual(limitsOf(cores({ 'cotenant.io/gpu-cores': '20', 'cotenant.io/gpu': '2' }, 'main=80')), [40, 40]);
  const refused: readonly [Readonly<Record<string, string>>, string, string][] = [
    [
      { 'cotenant.io/gpu-cores': '20' },
      '10',
      '"10" is not a limit for "main"; write 20 to 100, whole percent of each GPU',
    ],
    [
      { 'cotenant.io/gpu-cores': '20', 'cotenant.io/gpu': '2' },
      '41',
      '"41" is not a limit for "main"; write 20 to 200, whole percent of each GPU',
    ],
    [{}, '80', '"80" needs cotenant.io/gpu-cores of "main"; write both'],
    [{ 'cotenant.io/gpu-cores': '20' }, 'other=80', '"other" names no container with a share; write one of main'],
    [
      { 'cotenant.io/gpu-cores': '20' },
      'main=80,main=90',
      '"main=90" lacks a container, or names one twice; write percent over all its GPUs, such as "80", or container=percent with commas',
    ],
    [
      { 'cotenant.io/gpu-cores': '20' },
      'much',
      '"much" is not a percentage; write percent over all its GPUs, such as "80", or container=percent with commas',
    ],
  ];
  for (const [limits, limit, text] of refused)
    t.deepEqual(outcome(cores(limits, limit), rules()), refusalOf(LIMIT, text));
  t.deepEqual(
    outcome(cores({ 'cotenant.io/gpu-cores': '20' }, '80'), rules({ computePolicies: ['fixed'] })),
    refusalOf(LIMIT, '"80" is not allowed in this namespace; leave it out, or have the policy soft allowed'),
  );
});

test('a pod may choose an enforcement mode as strict as its namespace’s or stricter', (t) => {
  const KEY = 'cotenant.io/enforcement';
  const choosing = (mode?: string) =>
    podWith({ [M]: '1Gi' }, mode === undefined ? {} : { annotations: { [KEY]: mode } });
  t.is(requestOf(choosing(), rules()).enforcement, undefined);
  t.is(requestOf(choosing('enforce'), rules()).enforcement, undefined);
  // The namespace's is what is recorded; the pod's own is in its annotation.
  for (const mode of [undefined, 'report', 'enforce'])
    t.is(requestOf(choosing(mode), rules({ enforcement: 'report' })).enforcement, 'report');
  t.deepEqual(
    outcome(choosing('off'), rules({ enforcement: 'report' })),
    refusalOf(KEY, '"off" is not allowed in this namespace; write one of report, enforce'),
  );
  t.deepEqual(outcome(choosing('kill'), rules()), refusalOf(KEY, '"kill" is not known; write enforce'));
});
