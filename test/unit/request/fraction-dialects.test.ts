// Golden cases of the dialects kai and kubeshare, whose amounts are annotations or labels of the pod. Meanings and units
// are those of the projects' own pages: docs/gpu-sharing of kai-scheduler/KAI-Scheduler, docs.nvidia.com/run-ai ("Migrate
// GPU Fractions"), the READMEs of both versions of NTHU-LSALAB/KubeShare.
import test from 'ava';
import { formatProblem } from '../../../src/common/problem.ts';
import { GIB, MIB } from '../../../src/common/quantity.ts';
import { readPodRequest } from '../../../src/request/read-pod.ts';
import { rules } from './pods.ts';
import { bytes, percent, table, whole } from './tables.ts';

const kai = { dialects: ['kai'] };
const annotation = (key: string) => `metadata.annotations["${key}"]`;
const fraction = (
  annotations: object,
  expected: Parameters<typeof table>[1][string]['expected'],
  settings: object = kai,
) => ({
  limits: {},
  settings,
  annotations,
  expected,
});
const REQUEST = 'nvidia.com/container.main.gpu-memory.request';
const LIMIT = 'nvidia.com/container.main.gpu-memory.limit';
const over = { ...kai, allowMemoryOvercommit: true };

table('KAI, Run:ai', {
  'half the memory of a GPU': fraction({ 'gpu-fraction': '0.5' }, [percent(50)]),
  'an eighth': fraction({ 'gpu-fraction': '0.125' }, [percent(12.5)]),
  'a third is rounded down, so that three fit': fraction({ 'gpu-fraction': '0.333333' }, [percent(33.33)]),
  'all of it': fraction({ 'gpu-fraction': '1.0' }, [whole]),
  MiB: fraction({ 'gpu-memory': '2000' }, [bytes(2000 * MIB)]),
  'the part of each of several GPUs': fraction({ 'gpu-fraction': '0.25', 'gpu-fraction-num-devices': '2' }, [
    percent(25),
    percent(25),
  ]),
  'more than a GPU': fraction({ 'gpu-fraction': '1.5' }, [
    `${annotation('gpu-fraction')}: "1.5" is no fraction of a GPU; write a fraction of a GPU such as "0.5", up to 1`,
  ]),
  'percent in the place of a fraction': fraction({ 'gpu-fraction': '50%' }, [
    `${annotation('gpu-fraction')}: "50%" is no fraction of a GPU; write "0.5"`,
  ]),
  nothing: fraction({ 'gpu-fraction': '0' }, [
    `${annotation('gpu-fraction')}: "0" is no fraction of a GPU; write a fraction of a GPU such as "0.5", up to 1`,
  ]),
  'MiB with a unit': fraction({ 'gpu-memory': '4Gi' }, [
    `${annotation('gpu-memory')}: "4Gi" is an amount of bytes, and units of 1Mi are counted here; write 4096: MiB`,
  ]),
  'both forms': fraction({ 'gpu-fraction': '0.5', 'gpu-memory': '2000' }, [
    `${annotation('gpu-memory')}: "2000" is not possible beside gpu-fraction; leave one of them out`,
  ]),
  'a container that is not there': fraction({ 'gpu-fraction': '0.5', 'gpu-fraction-container-name': 'x' }, [
    `${annotation('gpu-fraction-container-name')}: "x" names a container that is not in the pod; write one of main`,
  ]),
  'a number of GPUs alone': fraction({ 'gpu-fraction-num-devices': '2' }, [
    `${annotation('gpu-fraction')}: is missing; write the part of each GPU, or leave out gpu-fraction-num-devices`,
  ]),
  'a limit above the fraction': fraction(
    { 'gpu-fraction': '0.25', 'gpu-fraction-limit': '0.8' },
    [{ ...percent(25), memoryLimit: { kind: 'percent', percent: 80 } }],
    over,
  ),
  'a limit where overcommit is not allowed': fraction({ 'gpu-memory': '2000', 'gpu-memory-limit': '4000' }, [
    `${annotation('gpu-memory-limit')}: "4000" is more than what is reserved, and overcommit is not allowed here; leave it out, or have allowMemoryOvercommit switched on`,
  ]),
  'a limit below the fraction': fraction({ 'gpu-fraction': '0.5', 'gpu-fraction-limit': '0.25' }, [
    `${annotation('gpu-fraction-limit')}: "0.25" is less than what is reserved; write "0.5" or more, up to 1`,
  ]),
  'a request of a container by name': fraction({ [REQUEST]: '8Gi' }, [bytes(8 * GIB)]),
  'a limit alone is the request': fraction({ [LIMIT]: '2G' }, [bytes(1908 * MIB)]),
  'a request and a larger limit': fraction(
    { [REQUEST]: '8Gi', [LIMIT]: '16Gi' },
    [{ ...bytes(8 * GIB), memoryLimit: { kind: 'bytes', bytes: 16 * GIB } }],
    over,
  ),
  'a request that is no quantity': fraction({ [REQUEST]: 'half' }, [
    `${annotation(REQUEST)}: "half" is not a quantity (digits, then nothing or one of m, k, M, G, T, Ki, Mi, Gi, Ti); write an amount such as "8Gi"`,
  ]),
  'a fraction beside a request by name': fraction({ 'gpu-fraction': '0.5', [REQUEST]: '8Gi' }, [
    `${annotation('gpu-fraction')}: "0.5" is for the container that ${REQUEST} is for; leave one of the two out`,
  ]),
  "NVIDIA's request for another container": fraction({ 'nvidia.com/container.side.gpu-memory.request': '8Gi' }, [
    `${annotation('nvidia.com/container.side.gpu-memory.request')}: "side" names a container that is not in the pod; write one of main`,
  ]),
  'a compute mode alone asks for nothing': fraction(
    { 'nvidia.com/container.main.gpu-compute.mode': 'sm-sharing' },
    'none',
  ),
  'off by default': fraction({ 'gpu-fraction': '0.5', [REQUEST]: '8Gi' }, 'none', {}),
});

const label = (name: string) => `metadata.labels["sharedgpu/${name}"]`;
const shared = (
  values: Record<string, string>,
  expected: Parameters<typeof table>[1][string]['expected'],
  settings: object = { dialects: ['kubeshare'] },
) => ({
  limits: {},
  settings,
  labels: Object.fromEntries(Object.entries(values).map(([name, value]) => [`sharedgpu/${name}`, value])),
  expected,
});
table('KubeShare', {
  'compute from request to limit, memory in bytes': shared(
    { gpu_request: '0.5', gpu_limit: '1.0', gpu_mem: '1073741824' },
    [{ ...bytes(GIB), coresPercent: 50, coresLimitPercent: 100 }],
  ),
  'memory as much as compute where none is given': shared({ gpu_request: '0.3', gpu_limit: '0.3' }, [
    { ...percent(30), coresPercent: 30, coresLimitPercent: 30 },
  ]),
  'one GPU': shared({ gpu_request: '1.0', gpu_limit: '1.0' }, [
    { ...whole, coresPercent: 100, coresLimitPercent: 100 },
  ]),
  'two GPUs': shared({ gpu_request: '2', gpu_limit: '2.0' }, [whole, whole]),
  'a GPU and a half': shared({ gpu_request: '1.5', gpu_limit: '2' }, [
    `${label('gpu_request')}: "1.5" is above one GPU and no number of GPUs; write a whole number from 2 to 64`,
  ]),
  'a limit of whole GPUs': shared({ gpu_request: '2', gpu_limit: '3' }, [
    `${label('gpu_limit')}: "3" is not gpu_request; write 2: whole GPUs have no other limit`,
  ]),
  'bytes are rounded up to MiB': shared({ gpu_request: '0.1', gpu_mem: '1000000000' }, [
    { ...bytes(954 * MIB), coresPercent: 10 },
  ]),
  'a part of a percent of compute is rounded down': shared({ gpu_request: '0.125', gpu_mem: '1Gi' }, [
    { ...bytes(GIB), coresPercent: 12 },
  ]),
  'an opportunistic pod': shared({ gpu_request: '0', gpu_limit: '0.5', gpu_mem: '1073741824' }, [bytes(GIB)]),
  'a limit below the request': shared({ gpu_request: '0.5', gpu_limit: '0.2', gpu_mem: '1Gi' }, [
    `${label('gpu_limit')}: "0.2" is less than gpu_request; write "0.5" or more, up to 1`,
  ]),
  'a limit without a request': shared({ gpu_limit: '0.5' }, [
    `${label('gpu_request')}: is missing; write a fraction of a GPU such as "0.5"`,
  ]),
  'no fraction': shared({ gpu_request: 'half' }, [
    `${label('gpu_request')}: "half" is no fraction of a GPU; write a fraction of a GPU such as "0.5", up to 1`,
  ]),
  'all of it zero': shared({ gpu_request: '0.0', gpu_limit: '0' }, 'none'),
  'off by default': shared({ gpu_request: '0.5' }, 'none', {}),
  'annotations of version 1': {
    limits: {},
    settings: { dialects: ['kubeshare'] },
    annotations: { 'kubeshare/gpu_request': '0.5', 'kubeshare/gpu_limit': '1.0', 'kubeshare/gpu_mem': '1073741824' },
    expected: [{ ...bytes(GIB), coresPercent: 50, coresLimitPercent: 100 }],
  },
  'version 1 has no default of memory': {
    limits: {},
    settings: { dialects: ['kubeshare'] },
    annotations: { 'kubeshare/gpu_request': '0.5' },
    expected: [`${annotation('kubeshare/gpu_mem')}: is missing; write bytes of memory`],
  },
});

/** Which of the containers gets the share of the pod's annotations. */
const chosen = (names: readonly string[], annotations: object, settings: object = kai) => {
  const containers = names.map((name) => ({ name }));
  const initContainers = [{ name: 'setup' }];
  const reading = readPodRequest({ metadata: { annotations }, spec: { initContainers, containers } }, rules(settings));
  if (reading.kind === 'refused') return reading.problems.map(formatProblem);
  return reading.kind === 'none' ? [] : reading.request.containers.map(({ name }) => name);
};

test('the first container gets the fraction, or the named one, also an init container', (t) => {
  t.deepEqual(chosen(['a', 'b'], { 'gpu-fraction': '0.5' }), ['a']);
  t.deepEqual(chosen(['a', 'b'], { 'gpu-fraction': '0.5', 'gpu-fraction-container-name': 'b' }), ['b']);
  t.deepEqual(chosen(['a', 'b'], { 'gpu-fraction': '0.5', 'gpu-fraction-container-name': 'setup' }), ['setup']);
  const both = {
    'nvidia.com/container.a.gpu-memory.request': '1Gi',
    'nvidia.com/container.b.gpu-memory.request': '2Gi',
  };
  t.deepEqual(chosen(['a', 'b'], both), ['a', 'b']);
});
