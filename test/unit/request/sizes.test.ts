// Sizes that a namespace gives where none is asked for, and the largest that it allows.
import test from 'ava';
import { formatProblem } from '../../../src/common/problem.ts';
import { GIB, MIB } from '../../../src/common/quantity.ts';
import { DEFAULT_RULES } from '../../../src/request/rules/namespace-rules.ts';
import { outcome, parseRules, podWith, rules } from './pods.ts';
import { bytes, percent, table, units, whole } from './tables.ts';

const defaults = { defaults: { gpuMemory: '4Gi', gpuCores: 25 } };
const [GPU, MEMORY, CORES] = ['cotenant.io/gpu', 'cotenant.io/gpu-memory', 'cotenant.io/gpu-cores'] as const;
const small = { ...bytes(4 * GIB), coresPercent: 25 };

table('defaults', {
  'a GPU alone': { settings: defaults, limits: { [GPU]: 1 }, expected: [small] },
  'of each of two GPUs': { settings: defaults, limits: { [GPU]: '2' }, expected: [small, small] },
  'compute alone': { settings: defaults, limits: { [CORES]: '50' }, expected: [{ ...small, coresPercent: 50 }] },
  'memory alone': { settings: defaults, limits: { [MEMORY]: '1Gi' }, expected: [{ ...bytes(GIB), coresPercent: 25 }] },
  'nothing is added to what is complete': {
    settings: defaults,
    limits: { [MEMORY]: '1Gi', [CORES]: '10' },
    expected: [{ ...bytes(GIB), coresPercent: 10 }],
  },
  'a count alone of HAMi': {
    settings: { ...defaults, dialects: ['hami'] },
    limits: { 'nvidia.com/gpu': '1' },
    expected: [small],
  },
  'percent of HAMi': {
    settings: { ...defaults, dialects: ['hami'] },
    limits: { 'nvidia.com/gpu': '1', 'nvidia.com/gpumem-percentage': '100' },
    expected: [whole],
  },
  "a whole GPU of NVIDIA's plugin stays whole": {
    settings: { ...defaults, dialects: ['nvidia'] },
    limits: { 'nvidia.com/gpu': '1' },
    expected: [whole],
  },
  'memory of ACK': {
    settings: defaults,
    limits: { 'aliyun.com/gpu-mem': '3' },
    expected: [{ ...units(3), coresPercent: 25 }],
  },
  'only compute': {
    settings: { defaults: { gpuCores: 10 } },
    limits: { 'cnvrg.io/metagpu': '30' },
    expected: [{ ...percent(30), coresPercent: 10 }],
  },
});

const most = { most: { gpu: 2, gpuMemory: '8Gi', gpuCores: 100 } };
const refusal = (asked: string, rest: string) => `spec.containers[0].resources.limits: "${asked}" ${rest}`;
table('most', {
  'as much as is allowed': {
    settings: most,
    limits: { [GPU]: '2', [MEMORY]: '8Gi', [CORES]: '100' },
    expected: [
      { ...bytes(4 * GIB), coresPercent: 50 },
      { ...bytes(4 * GIB), coresPercent: 50 },
    ],
  },
  'more of everything': {
    settings: most,
    limits: { [GPU]: '4', [MEMORY]: '16Gi', [CORES]: '200' },
    expected: [
      'is 4 GPUs; at most 2 is allowed; write cotenant.io/gpu: 2 or less',
      'is 16Gi of cotenant.io/gpu-memory; at most 8Gi is allowed; write cotenant.io/gpu-memory: 8Gi or less',
      'is 200 of cotenant.io/gpu-cores; at most 100 is allowed; write cotenant.io/gpu-cores: 100 or less',
    ].map((rest) => refusal('cotenant.io/gpu: 4, cotenant.io/gpu-memory: 16Gi, cotenant.io/gpu-cores: 200', rest)),
  },
  'a whole GPU': {
    settings: most,
    limits: { [GPU]: '1' },
    expected: [
      refusal(
        'cotenant.io/gpu: 1',
        'is no fixed amount of cotenant.io/gpu-memory; at most 8Gi is allowed; write cotenant.io/gpu-memory: 8Gi or less',
      ),
    ],
  },
  'in the names of a dialect': {
    settings: { ...most, dialects: ['hami'] },
    limits: { 'nvidia.com/gpumem': '10240' },
    expected: [
      refusal(
        'nvidia.com/gpumem: 10240',
        'is 10Gi of cotenant.io/gpu-memory; at most 8Gi is allowed; write cotenant.io/gpu-memory: 8Gi or less',
      ),
    ],
  },
  'a limit above what is reserved': {
    settings: { ...most, dialects: ['kai'], allowMemoryOvercommit: true },
    limits: {},
    annotations: { 'gpu-memory': '1024', 'gpu-memory-limit': '10240' },
    expected: [
      refusal(
        'gpu-memory: 1024, gpu-memory-limit: 10240',
        'is 10Gi of cotenant.io/gpu-memory; at most 8Gi is allowed; write cotenant.io/gpu-memory: 8Gi or less',
      ),
    ],
  },
});

test('a default within what is allowed makes a GPU alone a request', (t) => {
  t.deepEqual(outcome(podWith({ [GPU]: '1' }), rules({ ...defaults, ...most })), [small]);
});

test("a namespace's amounts are laid over the cluster's, one by one", (t) => {
  const cluster = rules({ ...defaults, ...most });
  const read = parseRules({ most: { gpuMemory: '16Gi' }, defaults: { gpuCores: 50 } }, 'rules', cluster);
  t.like(read.ok && read.value, {
    most: { gpu: 2, gpuMemory: 16 * GIB, gpuCores: 100 },
    defaults: { gpuMemory: 4 * GIB, gpuCores: 50 },
  });
});

test('amounts that are none are refused with the setting', (t) => {
  const problemsOf = (settings: object) => {
    const read = parseRules(settings, 'rules', DEFAULT_RULES);
    return read.ok ? [] : read.error.map(formatProblem);
  };
  const wanted = 'is not valid; write an amount of whole MiB such as "4Gi"';
  t.deepEqual(problemsOf({ most: { gpuMemory: '4G' } }), [`rules.most.gpuMemory: "4G" ${wanted}`]);
  t.deepEqual(problemsOf({ defaults: { gpuMemory: 4 } }), [`rules.defaults.gpuMemory: 4 ${wanted}`]);
  t.deepEqual(problemsOf({ most: { gpu: 65 } }), [
    'rules.most.gpu: 65 is not valid; write a whole number from 1 to 64',
  ]);
  t.deepEqual(problemsOf({ defaults: { gpuMemory: 512 * MIB } }), []);
});
