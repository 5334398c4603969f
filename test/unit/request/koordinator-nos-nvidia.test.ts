// Golden cases of the dialects koordinator, nos and nvidia. Meanings and units are those of the projects' own pages:
// koordinator.sh, "Device Scheduling" (and what its webhook refuses), nebuly-ai.github.io/nos, "Getting started with MPS
// partitioning", the README of NVIDIA/k8s-device-plugin and NVIDIA's MIG User Guide.
import test from 'ava';
import { GIB, MIB } from '../../../src/common/quantity.ts';
import { readPodRequest } from '../../../src/request/read-pod.ts';
import { podWith, rules } from './pods.ts';
import { bytes, limit, percent, table, whole } from './tables.ts';

const [BOTH, CORES, MEMORY, RATIO, COUNT] = ['gpu', 'gpu-core', 'gpu-memory', 'gpu-memory-ratio', 'gpu.shared'].map(
  (name) => `koordinator.sh/${name}`,
) as [string, string, string, string, string];
const koordinator = { dialects: ['koordinator'] };

table('Koordinator', {
  'half a GPU, memory and compute at once': {
    settings: koordinator,
    limits: { [BOTH]: 50 },
    expected: [{ ...percent(50), coresPercent: 50 }],
  },
  'two GPUs': {
    settings: koordinator,
    limits: { [BOTH]: '200' },
    expected: [
      { ...whole, coresPercent: 100 },
      { ...whole, coresPercent: 100 },
    ],
  },
  'percent of compute and bytes of memory': {
    settings: koordinator,
    limits: { [COUNT]: 1, [CORES]: 30, [MEMORY]: '8Gi' },
    expected: [{ ...bytes(8 * GIB), coresPercent: 30 }],
  },
  'totals over the GPUs that share them': {
    settings: koordinator,
    limits: { [COUNT]: '2', [CORES]: '100', [RATIO]: '100' },
    expected: [
      { ...percent(50), coresPercent: 50 },
      { ...percent(50), coresPercent: 50 },
    ],
  },
  'bytes over two GPUs, rounded up to MiB': {
    settings: koordinator,
    limits: { [COUNT]: '2', [MEMORY]: '1G' },
    expected: [bytes(477 * MIB), bytes(477 * MIB)],
  },
  'memory without compute': { settings: koordinator, limits: { [RATIO]: 25 }, expected: [percent(25)] },
  'ratio above 100 counts GPUs': { settings: koordinator, limits: { [RATIO]: 200 }, expected: [whole, whole] },
  'compute without memory': {
    settings: koordinator,
    limits: { [CORES]: '50' },
    expected: [`${limit(RATIO)}: is missing; write percent of the memory, or ${MEMORY} in bytes`],
  },
  'both forms of memory': {
    settings: koordinator,
    limits: { [MEMORY]: '8Gi', [RATIO]: '50' },
    expected: [`${limit(MEMORY)}: "8Gi" is not possible beside ${RATIO}; leave one of the two out`],
  },
  'a GPU and a half': {
    settings: koordinator,
    limits: { [BOTH]: '150' },
    expected: [`${limit(BOTH)}: "150" is above one GPU and no number of whole GPUs; write 100 or 200`],
  },
  'percent that two GPUs cannot share equally': {
    settings: koordinator,
    limits: { [COUNT]: '2', [RATIO]: '75' },
    expected: [`${limit(RATIO)}: "75" cannot be split equally over 2 GPUs; write 74 or 76`],
  },
  'more than the GPUs have': {
    settings: koordinator,
    limits: { [COUNT]: '1', [CORES]: '200', [RATIO]: '100' },
    expected: [`${limit(CORES)}: "200" is more than all of the GPUs (1); write 100`],
  },
  'the whole beside its parts': {
    settings: koordinator,
    limits: { [BOTH]: '50', [COUNT]: '2' },
    expected: [`${limit(COUNT)}: "2" is not possible beside ${BOTH}; leave out ${BOTH}`],
  },
  'a bare number of bytes': {
    settings: koordinator,
    limits: { [MEMORY]: '8' },
    expected: [`${limit(MEMORY)}: "8" counts bytes; write "8Mi" or "8Gi"`],
  },
  'a bare number of thousands of bytes, as the API server writes it': {
    settings: koordinator,
    limits: { [MEMORY]: '8k' },
    expected: [`${limit(MEMORY)}: "8k" counts bytes; write "8000Mi"`],
  },
  'zero asks for nothing': { settings: koordinator, limits: { [BOTH]: '0' }, expected: 'none' },
});

const SLICE = 'nvidia.com/gpu-10gb';
const nos = { dialects: ['nos'] };
table('nos', {
  'a slice of 10 GB': { settings: nos, limits: { [SLICE]: 1 }, expected: [bytes(10 * GIB)] },
  'any size': { settings: nos, limits: { 'nvidia.com/gpu-37gb': '1' }, expected: [bytes(37 * GIB)] },
  'two slices': {
    settings: nos,
    limits: { [SLICE]: 2 },
    expected: [`${limit(SLICE)}: "2" is not one slice; write 1, of the size that is needed`],
  },
  'slices of two sizes': {
    settings: nos,
    limits: { [SLICE]: '1', 'nvidia.com/gpu-2gb': '1' },
    expected: [`${limit(SLICE)}: "1" is a second slice beside nvidia.com/gpu-2gb; write one slice of the size of both`],
  },
  'no size': {
    settings: nos,
    limits: { 'nvidia.com/gpu-0gb': '1' },
    expected: [`${limit('nvidia.com/gpu-0gb')}: "1" is for no size of a slice; write nvidia.com/gpu-10gb for 10 GiB`],
  },
  'a name that is no size': {
    settings: nos,
    limits: { 'nvidia.com/gpu-large': '1' },
    expected: [`${limit('nvidia.com/gpu-large')}: "1" is for no size of a slice; write nvidia.com/gpu-10gb for 10 GiB`],
  },
  'zero slices': { settings: nos, limits: { [SLICE]: '0' }, expected: 'none' },
  'a slice beside ours': {
    settings: nos,
    limits: { [SLICE]: 1, 'cotenant.io/gpu': 1 },
    expected: [
      `spec.containers[0].resources.limits: has names of two dialects (cotenant.io/gpu: 1; ${SLICE}: 1); write the amounts in one of them`,
    ],
  },
});

const nvidia = { dialects: ['nvidia'] };
const [GPU, REPLICA] = ['nvidia.com/gpu', 'nvidia.com/gpu.shared'] as const;
const mig = (profile: string) => `nvidia.com/mig-${profile}`;
table('NVIDIA', {
  'whole GPUs': { settings: nvidia, limits: { [GPU]: 2 }, expected: [whole, whole] },
  'half a GPU': {
    settings: nvidia,
    limits: { [GPU]: '0.5' },
    expected: [
      `${limit(GPU)}: "0.5" is not a whole number; write cotenant.io/gpu-memory, such as "4Gi", and cotenant.io/gpu-cores in percent for a part of a GPU`,
    ],
  },
  'a replica is its part of the memory': {
    settings: { ...nvidia, nvidiaReplicas: 3 },
    limits: { [REPLICA]: 1 },
    expected: [percent(33.33)],
  },
  'a replica of a number that is not known': {
    settings: nvidia,
    limits: { [REPLICA]: '1' },
    expected: [
      `${limit(REPLICA)}: "1" is a replica, and no setting says of how many; have nvidiaReplicas set, or write cotenant.io/gpu-memory`,
    ],
  },
  'two replicas are no larger part': {
    settings: { ...nvidia, nvidiaReplicas: 4 },
    limits: { [REPLICA]: '2' },
    expected: [
      `${limit(REPLICA)}: "2" replicas are no larger part of a GPU; write 1, or cotenant.io/gpu-memory for more memory`,
    ],
  },
  'an instance of one of seven slices': {
    settings: nvidia,
    limits: { [mig('1g.5gb')]: 1 },
    expected: [{ ...bytes(5000 * MIB), coresPercent: 14 }],
  },
  'half the memory of a GPU': {
    settings: nvidia,
    limits: { [mig('3g.40gb')]: 1 },
    expected: [{ ...bytes(40_000 * MIB), coresPercent: 42 }],
  },
  'an instance of one of four slices': {
    settings: nvidia,
    limits: { [mig('1g.6gb')]: 1 },
    expected: [{ ...bytes(6000 * MIB), coresPercent: 25 }],
  },
  'media engines change nothing': {
    settings: nvidia,
    limits: { [mig('1g.10gb.me')]: 1 },
    expected: [{ ...bytes(10_000 * MIB), coresPercent: 14 }],
  },
  'all slices are the whole GPU': { settings: nvidia, limits: { [mig('7g.80gb')]: 1 }, expected: [whole] },
  'all four slices too': { settings: nvidia, limits: { [mig('4g.24gb')]: 1 }, expected: [whole] },
  'no profile': {
    settings: nvidia,
    limits: { [mig('small')]: '1' },
    expected: [`${limit(mig('small'))}: "1" is for no MIG profile; write nvidia.com/mig-1g.10gb or another`],
  },
  'two kinds in a container': {
    settings: nvidia,
    limits: { [GPU]: '1', [mig('1g.5gb')]: '1' },
    expected: [`${limit(GPU)}: "1" is a second kind of GPU beside ${mig('1g.5gb')}; leave one of the two out`],
  },
  'zero GPUs': { settings: nvidia, limits: { [GPU]: '0' }, expected: 'none' },
  'with hami on as well, hami reads it': {
    settings: { dialects: ['nvidia', 'hami'] },
    limits: { [GPU]: '1', 'nvidia.com/gpumem': '1024' },
    expected: [bytes(1024 * MIB)],
  },
});

test('a pod for GKE’s shared nodes is read as NVIDIA’s, also where hami is on', (t) => {
  const key = 'cloud.google.com/gke-max-shared-clients-per-gpu';
  const terms = [{ matchExpressions: [{ key, operator: 'In', values: ['4'] }] }];
  const nodeAffinity = { requiredDuringSchedulingIgnoredDuringExecution: { nodeSelectorTerms: terms } };
  const containers = [{ name: 'main', image: 'x', resources: { limits: { [GPU]: '1' } } }];
  const gpusOf = (spec: object, names: readonly string[]) => {
    const reading = readPodRequest({ spec: { ...spec, containers } }, rules({ dialects: names }));
    if (reading.kind !== 'request') throw new Error(JSON.stringify(reading));
    return reading.request.containers[0]?.gpus;
  };
  const quarter = [{ memory: { kind: 'percent' as const, percent: 25 } }];
  for (const names of [['nvidia'], ['hami', 'nvidia']]) {
    t.deepEqual(gpusOf({ nodeSelector: { [key]: '4' } }, names), quarter);
    t.deepEqual(gpusOf({ affinity: { nodeAffinity } }, names), quarter);
    t.deepEqual(gpusOf({}, names), [whole]);
  }
  t.deepEqual(gpusOf({ nodeSelector: { [key]: '4' } }, ['hami']), [whole]);
});

test('Koordinator, nos, NVIDIA: off by default', (t) => {
  for (const resource of [BOTH, SLICE, GPU, REPLICA, mig('1g.5gb')])
    t.is(readPodRequest(podWith({ [resource]: '1' }), rules()).kind, 'none', resource);
});
