// Golden cases of the dialects of four clouds. Meanings and units are those of their own pages:
// github.com/tkestack/gpu-manager, README; cloud.tencent.com, TKE, "Using qGPU" and "Using qGPU Online/Offline Hybrid
// Deployment"; support.huaweicloud.com, CCE, "Using GPU Virtualization" and "Equal Distribution Scheduling on Virtual GPUs";
// Volcano's design "Device API support for mGPU scheduling"; intl.cloud.baidu.com, CCE, "GPU Exclusive and Shared Usage
// Instructions" and "Best Practice for GPU Virtualization with Optimal Isolation".
import test from 'ava';
import type { JsonObject } from '../../../src/common/json.ts';
import { GIB, MIB } from '../../../src/common/quantity.ts';
import { readPodRequest } from '../../../src/request/read-pod.ts';
import { DEFAULT_CONFIGURATION } from '../../../webhook/config.ts';
import { mutatePod } from '../../../webhook/mutate.ts';
import { outcome, podWith, rules } from './pods.ts';
import { bytes, limit, percent, table, whole } from './tables.ts';

const CORE = 'tencent.com/vcuda-core';
const MEMORY = 'tencent.com/vcuda-memory';
const settings = { dialects: ['tke'] };

table('TKE', {
  'a part of a GPU, in percent and 256 MiB': {
    settings,
    limits: { [CORE]: 30, [MEMORY]: 10 },
    expected: [{ ...bytes(2560 * MIB), coresPercent: 30 }],
  },
  'one GPU': { settings, limits: { [CORE]: 100 }, expected: [whole] },
  'two GPUs, whatever memory says': { settings, limits: { [CORE]: '200', [MEMORY]: '60' }, expected: [whole, whole] },
  'a GPU and a half': {
    settings,
    limits: { [CORE]: '150' },
    expected: [`${limit(CORE)}: "150" is above one GPU and no number of whole GPUs; write 100 or 200`],
  },
  'compute without memory': {
    settings,
    limits: { [CORE]: '30' },
    expected: [`${limit(MEMORY)}: is missing; write units of 256 MiB beside ${CORE}`],
  },
  'memory without compute': {
    settings,
    limits: { [MEMORY]: '8' },
    expected: [`${limit(CORE)}: is missing; ${MEMORY} needs an amount of ${CORE}`],
  },
  'a fraction of a percent': {
    settings,
    limits: { [CORE]: '0.5', [MEMORY]: '8' },
    expected: [`${limit(CORE)}: "0.5" is not a whole number; write 50: 100 is one GPU`],
  },
  'a limit above the share': {
    settings,
    limits: { [CORE]: '30', [MEMORY]: '8' },
    annotations: { 'tencent.com/vcuda-core-limit': '60' },
    expected: [{ ...bytes(2048 * MIB), coresPercent: 30, coresLimitPercent: 60 }],
  },
  'a limit below the share': {
    settings,
    limits: { [CORE]: '30', [MEMORY]: '8' },
    annotations: { 'tencent.com/vcuda-core-limit': '20' },
    expected: [
      `metadata.annotations["tencent.com/vcuda-core-limit"]: "20" is less than 30; write a whole number from 30 to 100: percent of the GPU, from ${CORE} up`,
    ],
  },
  'zero asks for nothing': { settings, limits: { [CORE]: '0', [MEMORY]: '0' }, expected: 'none' },
});

const QGPU = {
  core: 'tke.cloud.tencent.com/qgpu-core',
  memory: 'tke.cloud.tencent.com/qgpu-memory',
  greedy: 'tke.cloud.tencent.com/qgpu-core-greedy',
  ofClass: (value: string) => ({ 'tke.cloud.tencent.com/app-class': value }),
} as const;

table('qGPU', {
  'percent and GiB of one GPU': {
    settings,
    limits: { [QGPU.core]: '30', [QGPU.memory]: '5' },
    expected: [{ ...bytes(5 * GIB), coresPercent: 30 }],
  },
  'whole GPUs need no memory': { settings, limits: { [QGPU.core]: 200 }, expected: [whole, whole] },
  'an online pod asks for memory alone': {
    settings,
    limits: { [QGPU.memory]: 5 },
    annotations: QGPU.ofClass('online'),
    expected: [bytes(5 * GIB)],
  },
  'an offline pod reserves no compute': {
    settings,
    limits: { [QGPU.greedy]: 10, [QGPU.memory]: 5 },
    annotations: QGPU.ofClass('offline'),
    expected: [bytes(5 * GIB)],
  },
  'all idle compute is no whole GPU': {
    settings,
    limits: { [QGPU.greedy]: 100, [QGPU.memory]: 5 },
    expected: [bytes(5 * GIB)],
  },
  'an offline pod has one GPU': {
    settings,
    limits: { [QGPU.greedy]: 200, [QGPU.memory]: 5 },
    expected: [`${limit(QGPU.greedy)}: "200" is more than 100; write a whole number from 1 to 100: 100 is one GPU`],
  },
  'reserved and idle compute': {
    settings,
    limits: { [QGPU.core]: 10, [QGPU.greedy]: 10, [QGPU.memory]: 5 },
    expected: [`${limit(QGPU.core)}: "10" is not possible beside ${QGPU.greedy}; leave one of the two out`],
  },
  'a part of a GPU without memory': {
    settings,
    limits: { [QGPU.core]: 30 },
    expected: [`${limit(QGPU.memory)}: is missing; write units of 1024 MiB beside ${QGPU.core}`],
  },
  'bytes in place of GiB': {
    settings,
    limits: { [QGPU.core]: 30, [QGPU.memory]: '5Gi' },
    expected: [
      `${limit(QGPU.memory)}: "5Gi" is an amount of bytes, and units of 1Gi are counted here; write 5: units of 1024 MiB`,
    ],
  },
  'names of gpu-manager and of qGPU': {
    settings,
    limits: { [QGPU.core]: 30, [QGPU.memory]: 5, [CORE]: 30 },
    expected: [`${limit(CORE)}: "30" is not possible beside ${QGPU.core}; leave one of them out`],
  },
  'zero asks for nothing': { settings, limits: { [QGPU.core]: 0, [QGPU.memory]: 0 }, expected: 'none' },
});

test('an online pod has the GPU first where the namespace allows it', (t) => {
  const priorityOf = (ofClass: string, priorities: readonly string[]) => {
    const pod = podWith({ [QGPU.memory]: 5 }, { annotations: QGPU.ofClass(ofClass) });
    const reading = readPodRequest(pod, rules({ ...settings, priorities }));
    return reading.kind === 'request' ? [reading.request.priority, ...reading.warnings] : [reading.kind];
  };
  t.deepEqual(priorityOf('online', ['normal', 'high']), ['high']);
  t.deepEqual(priorityOf('online', ['normal']), [
    'normal',
    'main: priority high has no effect: it is not allowed in this namespace',
  ]);
  t.deepEqual(priorityOf('offline', ['normal', 'high']), ['normal']);
});

const CCE = { core: 'volcano.sh/gpu-core.percentage', memory: 'volcano.sh/gpu-mem.128Mi' } as const;
const huawei = { dialects: ['huawei'] };
const overGpus = (count: string) => ({ 'volcano.sh/gpu-num': count });

table('Huawei CCE', {
  'units of 128 MiB': { settings: huawei, limits: { [CCE.memory]: 40 }, expected: [bytes(5120 * MIB)] },
  'memory and percent': {
    settings: huawei,
    limits: { [CCE.memory]: 40, [CCE.core]: 25 },
    expected: [{ ...bytes(5120 * MIB), coresPercent: 25 }],
  },
  'totals over the GPUs of the label': {
    settings: huawei,
    limits: { [CCE.memory]: '64', [CCE.core]: '10' },
    labels: overGpus('2'),
    expected: [
      { ...bytes(4096 * MIB), coresPercent: 5 },
      { ...bytes(4096 * MIB), coresPercent: 5 },
    ],
  },
  'all compute is the whole GPU': {
    settings: huawei,
    limits: { [CCE.memory]: 40, [CCE.core]: 100 },
    expected: [whole],
  },
  'all compute of two GPUs': {
    settings: huawei,
    limits: { [CCE.memory]: 40, [CCE.core]: 200 },
    labels: overGpus('2'),
    expected: [whole, whole],
  },
  'compute alone': {
    settings: huawei,
    limits: { [CCE.core]: 25 },
    expected: [`${limit(CCE.memory)}: is missing; write units of 128 MiB beside ${CCE.core}`],
  },
  'memory that cannot be split': {
    settings: huawei,
    limits: { [CCE.memory]: '64' },
    labels: overGpus('3'),
    expected: [`${limit(CCE.memory)}: "64" cannot be split equally over 3 GPUs; write 63 or 66`],
  },
  'more compute than the GPUs have': {
    settings: huawei,
    limits: { [CCE.memory]: '64', [CCE.core]: '300' },
    labels: overGpus('2'),
    expected: [`${limit(CCE.core)}: "300" is more than all of the GPUs (2); write 200`],
  },
  'both cannot be split': {
    settings: huawei,
    limits: { [CCE.memory]: '64', [CCE.core]: '10' },
    labels: overGpus('3'),
    expected: [
      `${limit(CCE.core)}: "10" cannot be split equally over 3 GPUs; write 9 or 12`,
      `${limit(CCE.memory)}: "64" cannot be split equally over 3 GPUs; write 63 or 66`,
    ],
  },
  'no number of GPUs': {
    settings: huawei,
    limits: { [CCE.memory]: '64' },
    labels: overGpus('0'),
    expected: ['metadata.labels["volcano.sh/gpu-num"]: "0" is less than 1; write a whole number from 1 to 64: GPUs'],
  },
  'a label without amounts asks for nothing': {
    settings: huawei,
    limits: {},
    labels: overGpus('2'),
    expected: 'none',
  },
});

const MGPU = { core: 'vke.volcengine.com/mgpu-core', memory: 'vke.volcengine.com/mgpu-memory' } as const;
const COUNTS = 'vke.volcengine.com/container-multiple-gpu';
const volcengine = { dialects: ['volcengine'] };

table('Volcengine mGPU', {
  'MiB and percent of one GPU': {
    settings: volcengine,
    limits: { [MGPU.core]: 30, [MGPU.memory]: 4096 },
    expected: [{ ...bytes(4096 * MIB), coresPercent: 30 }],
  },
  'totals over the GPUs of the annotation': {
    settings: volcengine,
    limits: { [MGPU.core]: 30, [MGPU.memory]: 4096 },
    annotations: { [COUNTS]: '2' },
    expected: [
      { ...bytes(2048 * MIB), coresPercent: 15 },
      { ...bytes(2048 * MIB), coresPercent: 15 },
    ],
  },
  'whole GPUs': { settings: volcengine, limits: { [MGPU.core]: '200' }, expected: [whole, whole] },
  'whole GPUs by number': {
    settings: volcengine,
    limits: { [MGPU.core]: '200' },
    annotations: { [COUNTS]: '2' },
    expected: [whole, whole],
  },
  'two GPUs of which each is half': {
    settings: volcengine,
    limits: { [MGPU.core]: '100', [MGPU.memory]: '8k' },
    annotations: { [COUNTS]: '2' },
    expected: [
      { ...bytes(4000 * MIB), coresPercent: 50 },
      { ...bytes(4000 * MIB), coresPercent: 50 },
    ],
  },
  'a part without memory': {
    settings: volcengine,
    limits: { [MGPU.core]: 30 },
    expected: [`${limit(MGPU.memory)}: is missing; write MiB beside ${MGPU.core}`],
  },
  'memory alone': {
    settings: volcengine,
    limits: { [MGPU.memory]: 4096 },
    expected: [`${limit(MGPU.core)}: is missing; ${MGPU.memory} needs an amount of ${MGPU.core}`],
  },
  'a negative number of GPUs': {
    settings: volcengine,
    limits: { [MGPU.core]: 30, [MGPU.memory]: 4096 },
    annotations: { [COUNTS]: '-1' },
    expected: [`metadata.annotations["${COUNTS}"]: "-1" is less than 1; write a whole number from 1 to 64: GPUs`],
  },
  'percent that cannot be split': {
    settings: volcengine,
    limits: { [MGPU.core]: '130', [MGPU.memory]: '6k' },
    annotations: { [COUNTS]: '3' },
    expected: [`${limit(MGPU.core)}: "130" cannot be split equally over 3 GPUs; write 129 or 132`],
  },
  'more numbers than containers': {
    settings: volcengine,
    limits: { [MGPU.core]: 30, [MGPU.memory]: 4096 },
    annotations: { [COUNTS]: '1,2' },
    expected: [
      `metadata.annotations["${COUNTS}"]: has a number for container 2, and the pod has 1; write one number for each container`,
    ],
  },
});

test('numbers of GPUs follow the order of containers, and stay when others are added', (t) => {
  const limits = { [MGPU.core]: '30', [MGPU.memory]: '6000' };
  const container = (name: string, own: object = { resources: { limits } }) => ({ name, image: 'i', ...own });
  const spec = { containers: [container('a'), container('log', {}), container('b'), container('c')] };
  const pod = { metadata: { annotations: { [COUNTS]: '2,0,1,3' } }, spec } as JsonObject;
  const gpusOf = (one: unknown) => {
    const reading = readPodRequest(one, rules(volcengine));
    return reading.kind === 'request'
      ? reading.request.containers.map(({ name, gpus }) => [name, gpus.length])
      : reading;
  };
  const expected = [
    ['a', 2],
    ['b', 1],
    ['c', 3],
  ];
  t.deepEqual(gpusOf(pod), expected);
  const patched = mutatePod(pod, undefined, { ...DEFAULT_CONFIGURATION, rules: rules(volcengine) });
  if (patched.kind !== 'patched') return t.fail(patched.kind);
  const { spec: after, ...more } = JSON.parse(JSON.stringify(patched.pod));
  const injected = { ...more, spec: { ...after, containers: [container('proxy', {}), ...after.containers] } };
  t.deepEqual(gpusOf(injected), expected);
  t.deepEqual(outcome(podWith({}, { annotations: { [COUNTS]: '1,0' } }), rules(volcengine)), 'none');
});

const T4 = 'baidu.com/t4_16g_cgpu';
const A10 = 'baidu.com/a10_24g_cgpu';
const ofBaidu = { settings: { dialects: ['baidu'] } };

table('Baidu cGPU', {
  'a GPU alone is whole': { ...ofBaidu, limits: { [T4]: 1 }, expected: [whole] },
  'several GPUs alone are whole': { ...ofBaidu, limits: { [T4]: '2' }, expected: [whole, whole] },
  'GiB of one GPU': { ...ofBaidu, limits: { [T4]: 1, [`${T4}_memory`]: 10 }, expected: [bytes(10 * GIB)] },
  'GiB and percent of one GPU': {
    ...ofBaidu,
    limits: { [T4]: 1, [`${T4}_core`]: 10, [`${T4}_memory`]: 10 },
    expected: [{ ...bytes(10 * GIB), coresPercent: 10 }],
  },
  'all compute beside a part of the memory': {
    ...ofBaidu,
    limits: { [T4]: 1, [`${T4}_core`]: 100, [`${T4}_memory`]: 4 },
    expected: [{ ...bytes(4 * GIB), coresPercent: 100 }],
  },
  'percent of the memory': {
    ...ofBaidu,
    limits: { [T4]: 1, [`${T4}_core`]: 5, [`${T4}_memory_percent`]: 10 },
    expected: [{ ...percent(10), coresPercent: 5 }],
  },
  'all of the memory, in percent': {
    ...ofBaidu,
    limits: { [T4]: 1, [`${T4}_memory_percent`]: 100 },
    expected: [whole],
  },
  'totals over two GPUs': {
    ...ofBaidu,
    limits: { [A10]: '2', [`${A10}_core`]: '50', [`${A10}_memory`]: '10' },
    expected: [
      { ...bytes(5 * GIB), coresPercent: 25 },
      { ...bytes(5 * GIB), coresPercent: 25 },
    ],
  },
  'memory that cannot be split': {
    ...ofBaidu,
    limits: { [A10]: 2, [`${A10}_memory`]: 5 },
    expected: [`${limit(`${A10}_memory`)}: "5" cannot be split equally over 2 GPUs; write 4 or 6`],
  },
  'compute that cannot be split': {
    ...ofBaidu,
    limits: { [A10]: 2, [`${A10}_core`]: 25, [`${A10}_memory`]: 10 },
    expected: [`${limit(`${A10}_core`)}: "25" cannot be split equally over 2 GPUs; write 24 or 26`],
  },
  'compute above the GPUs': {
    ...ofBaidu,
    limits: { [T4]: 1, [`${T4}_core`]: 120, [`${T4}_memory`]: 4 },
    expected: [`${limit(`${T4}_core`)}: "120" is more than 100; write a whole number from 1 to 100: 100 is one GPU`],
  },
  'compute without memory': {
    ...ofBaidu,
    limits: { [T4]: 1, [`${T4}_core`]: 50 },
    expected: [`${limit(`${T4}_memory`)}: is missing; write GiB beside ${T4}_core`],
  },
  'memory without a number of GPUs': {
    ...ofBaidu,
    limits: { [`${T4}_memory`]: 4 },
    expected: [`${limit(T4)}: is missing; write the number of GPUs, which is 1 for a share of one`],
  },
  'memory in both forms': {
    ...ofBaidu,
    limits: { [T4]: 1, [`${T4}_memory`]: 4, [`${T4}_memory_percent`]: 25 },
    expected: [`${limit(`${T4}_memory_percent`)}: "25" is not possible beside ${T4}_memory; leave one of the two out`],
  },
  'percent of the memory of several GPUs': {
    ...ofBaidu,
    limits: { [A10]: 2, [`${A10}_memory_percent`]: 50 },
    expected: [`${limit(`${A10}_memory_percent`)}: "50" is not clear for 2 GPUs; write ${A10}_memory, GiB in total`],
  },
  bytes: {
    ...ofBaidu,
    limits: { [T4]: 1, [`${T4}_memory`]: '4Gi' },
    expected: [
      `${limit(`${T4}_memory`)}: "4Gi" is an amount of bytes, and units of 1Gi are counted here; write 4: GiB`,
    ],
  },
  'half, as the API server writes it': {
    ...ofBaidu,
    limits: { [A10]: 2, [`${A10}_core`]: '500m', [`${A10}_memory`]: 10 },
    expected: [`${limit(`${A10}_core`)}: "500m" is not a whole number; write 100 for 50 of each GPU: 100 is one GPU`],
  },
  'two models': {
    ...ofBaidu,
    limits: { [T4]: 1, [`${A10}_memory`]: 4 },
    expected: [
      `${limit(`${A10}_memory`)}: "4" is of another model of GPU than ${T4}; write the amounts of one container for one model`,
    ],
  },
  'zero asks for nothing': { ...ofBaidu, limits: { [T4]: 0, [`${T4}_memory`]: 0 }, expected: 'none' },
  'a name of any model': {
    ...ofBaidu,
    limits: { 'baidu.com/l20_cgpu': 1, 'baidu.com/l20_cgpu_memory': 8 },
    expected: [bytes(8 * GIB)],
  },
  "Baidu's other devices": { ...ofBaidu, limits: { 'baidu.com/xpu': 1, 'baidu.com/_cgpu': 1 }, expected: 'none' },
});

test("Baidu's model of GPU is answered with a warning, unless the pod has ours", (t) => {
  const warned = (annotations: object) => {
    const reading = readPodRequest(podWith({ [T4]: 1 }, { annotations }), rules(ofBaidu.settings));
    return reading.kind === 'request' ? reading.warnings : reading;
  };
  t.deepEqual(warned({}), [
    `${T4}: the model in the name is not read; write cotenant.io/gpu-model, where it is allowed`,
  ]);
  t.deepEqual(warned({ 'cotenant.io/gpu-model': 'Tesla T4' }), []);
});
