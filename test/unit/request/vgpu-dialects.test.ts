// Golden cases of the vGPU dialects and of TKE's. Meanings and units are those of the projects' own pages:
// project-hami.io (userguide, "Device sharing" and "Configure"), the user guide of Volcano's vGPU, the READMEs of
// vgpu-manager and of tkestack/gpu-manager.
import test from 'ava';
import { MIB } from '../../../src/common/quantity.ts';
import { readPodRequest } from '../../../src/request/read-pod.ts';
import { outcome, podWith, rules } from './pods.ts';
import { bytes, limit, percent, table, whole } from './tables.ts';

const FAMILY = {
  hami: ['nvidia.com/gpu', 'nvidia.com/gpumem', 'nvidia.com/gpucores', 'nvidia.com/gpumem-percentage'],
  volcano: [
    'volcano.sh/vgpu-number',
    'volcano.sh/vgpu-memory',
    'volcano.sh/vgpu-cores',
    'volcano.sh/vgpu-memory-percentage',
  ],
  'vgpu-manager': ['nvidia.com/vgpu-number', 'nvidia.com/vgpu-memory', 'nvidia.com/vgpu-cores', undefined],
} as const;

for (const [dialect, [N, M, C, P]] of Object.entries(FAMILY)) {
  const settings = { dialects: [dialect] };
  table(dialect, {
    'memory is MiB of each vGPU, compute percent of each': {
      settings,
      limits: { [N]: 2, [M]: 3000, [C]: 30 },
      expected: [
        { ...bytes(3000 * MIB), coresPercent: 30 },
        { ...bytes(3000 * MIB), coresPercent: 30 },
      ],
    },
    'a count alone is whole GPUs': { settings, limits: { [N]: '2' }, expected: [whole, whole] },
    'memory without a count is one vGPU': { settings, limits: { [M]: '10240' }, expected: [bytes(10_240 * MIB)] },
    "the API server's text of a round number": {
      settings,
      limits: { [N]: '1', [M]: '10k' },
      expected: [bytes(10_000 * MIB)],
    },
    'compute alone comes with all memory': {
      settings,
      limits: { [C]: '50' },
      expected: [{ ...whole, coresPercent: 50 }],
    },
    'compute of 0 is no limit of compute': {
      settings,
      limits: { [N]: 1, [M]: 1024, [C]: 0 },
      expected: [bytes(1024 * MIB)],
    },
    'memory of 0 is all memory': { settings, limits: { [N]: 1, [M]: 0 }, expected: [whole] },
    'more compute than a GPU has is all of it': {
      settings,
      limits: { [N]: 1, [C]: 120 },
      expected: [{ ...whole, coresPercent: 100 }],
    },
    'zero vGPUs ask for nothing': { settings, limits: { [N]: '0' }, expected: 'none' },
    'zero vGPUs with memory': {
      settings,
      limits: { [N]: '0', [M]: '1024' },
      expected: [`${limit(N)}: "0" is less than 1; write a whole number from 1 to 64: GPUs`],
    },
    'half a vGPU': {
      settings,
      limits: { [N]: '0.5' },
      expected: [`${limit(N)}: "0.5" is not a whole number; write a whole number from 1 to 64: GPUs`],
    },
    'a size with a unit is bytes, not MiB': {
      settings,
      limits: { [N]: 1, [M]: '4Gi' },
      expected: [
        `${limit(M)}: "4Gi" is an amount of bytes, and units of 1Mi are counted here; write 4096: MiB of each GPU`,
      ],
    },
    'names of the dialect beside ours': {
      settings,
      limits: { [N]: 1, 'cotenant.io/gpu-memory': '1Gi' },
      expected: [
        `spec.containers[0].resources.limits: has names of two dialects (cotenant.io/gpu-memory: 1Gi; ${N}: 1); write the amounts in one of them`,
      ],
    },
    ...(P && {
      'percent of the memory of each GPU': {
        settings,
        limits: { [N]: 2, [P]: 50 },
        expected: [percent(50), percent(50)],
      },
      'all percent are the whole GPU': { settings, limits: { [N]: 1, [P]: 100 }, expected: [whole] },
      'MiB win over percent': { settings, limits: { [N]: 1, [M]: 512, [P]: 50 }, expected: [bytes(512 * MIB)] },
      'more than all memory': {
        settings,
        limits: { [N]: 1, [P]: 101 },
        expected: [
          `${limit(P)}: "101" is more than 100; write a whole number from 0 to 100: percent of the memory of each GPU`,
        ],
      },
    }),
  });
  test(`${dialect}: off by default`, (t) => {
    t.is(readPodRequest(podWith({ [N]: '1', [M]: '1024' }), rules()).kind, 'none');
  });
}

table('HAMi alone', {
  'limits are off where the namespace allows it': {
    settings: { dialects: ['hami'], allowMemoryIsolationOff: true },
    limits: { 'nvidia.com/gpumem': 2048 },
    env: [{ name: 'CUDA_DISABLE_CONTROL', value: 'true' }],
    expected: [bytes(2048 * MIB)],
  },
  'limits are not off elsewhere': {
    settings: { dialects: ['hami'] },
    limits: { 'nvidia.com/gpumem': 2048 },
    env: [{ name: 'CUDA_DISABLE_CONTROL', value: 'true' }],
    expected: [
      'spec.containers[0].env: "CUDA_DISABLE_CONTROL=true" switches isolation off, which is not allowed here; leave it out, or have allowMemoryIsolationOff switched on',
    ],
  },
  'a priority alone asks for no GPU': {
    settings: { dialects: ['hami'] },
    limits: { 'nvidia.com/priority': 1 },
    expected: [`${limit('nvidia.com/gpu')}: is missing; write the number of GPUs`],
  },
});

test('what a dialect does not read is a warning that says what to write', (t) => {
  const warningsOf = (limits: object, annotations: object = {}) => {
    const reading = readPodRequest(podWith(limits, { annotations }), rules({ dialects: ['hami'] }));
    return reading.kind === 'request' ? reading.warnings : [reading.kind];
  };
  const share = { 'nvidia.com/gpu': 1, 'nvidia.com/gpumem': 1024 };
  t.deepEqual(warningsOf(share), []);
  t.deepEqual(warningsOf({ ...share, 'nvidia.com/priority': 0 }), [
    'main: priority high has no effect: it is not allowed in this namespace',
  ]);
  t.deepEqual(warningsOf(share, { 'nvidia.com/use-gputype': 'A100', 'hami.io/gpu-scheduler-policy': 'spread' }), [
    'nvidia.com/use-gputype: not read; write cotenant.io/gpu-model, where it is allowed',
  ]);
  t.deepEqual(warningsOf({ ...share, 'nvidia.com/gpumem-percentage': 50, 'nvidia.com/gpucores': 101 }), [
    'nvidia.com/gpucores: 101 is taken as 100, all of each GPU',
    'nvidia.com/gpumem-percentage: no effect beside nvidia.com/gpumem',
  ]);
});

test('annotations that mean the same as ours are read where the namespace allows them', (t) => {
  const uuids = 'GPU-1, GPU-2';
  const cases: [dialect: string, limits: object, annotations: object, settings: object, expected: object][] = [
    ['hami', { 'nvidia.com/gpu': 1 }, { 'hami.io/gpu-scheduler-policy': 'spread' }, {}, { placement: 'spread' }],
    [
      'hami',
      { 'nvidia.com/gpu': 1 },
      { 'nvidia.com/use-gpuuuid': uuids },
      { allowGpuUuid: true },
      { gpuUuids: ['GPU-1', 'GPU-2'] },
    ],
    [
      'volcano',
      { 'volcano.sh/vgpu-number': 1 },
      { 'volcano.sh/vgpu-use-gpuuuid': uuids },
      { allowGpuUuid: true },
      { gpuUuids: ['GPU-1', 'GPU-2'] },
    ],
    [
      'vgpu-manager',
      { 'nvidia.com/vgpu-number': 1 },
      { 'nvidia.com/include-gpu-uuid': 'GPU-1', 'nvidia.com/device-scheduler-policy': 'binpack' },
      { allowGpuUuid: true },
      { gpuUuids: ['GPU-1'], placement: 'binpack' },
    ],
  ];
  for (const [dialect, limits, annotations, settings, expected] of cases) {
    const reading = readPodRequest(podWith(limits, { annotations }), rules({ dialects: [dialect], ...settings }));
    t.like(reading, { kind: 'request', warnings: [] });
    if (reading.kind === 'request') t.like(reading.request, expected);
  }
});

test('priority 0 of HAMi is high where it is allowed and the pod says no other', (t) => {
  const read = (amount: unknown, annotations: object = {}) => {
    const limits = { 'nvidia.com/gpumem': 1024, 'nvidia.com/priority': amount };
    const settings = rules({ dialects: ['hami'], priorities: ['normal', 'high'] });
    const reading = readPodRequest(podWith(limits, { annotations }), settings);
    return reading.kind === 'request' ? reading.request.priority : outcome(podWith(limits), settings);
  };
  t.is(read(0), 'high');
  t.is(read('1'), 'normal');
  t.is(read(0, { 'cotenant.io/priority': 'normal' }), 'normal');
  t.deepEqual(read(2), [
    `${limit('nvidia.com/priority')}: "2" is more than 1; write a whole number from 0 to 1: 0 is high`,
  ]);
});

test('other values of them, and beside ours, are a warning', (t) => {
  const read = (annotations: object, settings: object = {}) => {
    const reading = readPodRequest(
      podWith({ 'nvidia.com/gpu': 1 }, { annotations }),
      rules({ dialects: ['hami'], ...settings }),
    );
    return reading.kind === 'request' ? [reading.request.placement, reading.request.gpuUuids, reading.warnings] : [];
  };
  const notRead = (key: string, own: string) => `${key}: not read; write ${own}, where it is allowed`;
  t.deepEqual(read({ 'nvidia.com/use-gpuuuid': 'GPU-1' }), [
    undefined,
    [],
    [notRead('nvidia.com/use-gpuuuid', 'cotenant.io/gpu-uuid')],
  ]);
  t.deepEqual(read({ 'hami.io/gpu-scheduler-policy': 'topology-aware' }), ['topology', [], []]);
  t.deepEqual(read({ 'hami.io/gpu-scheduler-policy': 'mutex' }), [
    undefined,
    [],
    [notRead('hami.io/gpu-scheduler-policy', 'cotenant.io/placement')],
  ]);
  t.deepEqual(read({ 'hami.io/gpu-scheduler-policy': 'spread', 'cotenant.io/placement': 'binpack' }), [
    'binpack',
    [],
    ['hami.io/gpu-scheduler-policy: no effect beside cotenant.io/placement'],
  ]);
  t.deepEqual(read({ 'nvidia.com/use-gpuuuid': 'all' }, { allowGpuUuid: true })[1], []);
  const out = { 'nvidia.com/nouse-gpuuuid': 'GPU-1, GPU-2' };
  t.deepEqual(read(out, { allowGpuUuid: true }), [undefined, ['!GPU-1', '!GPU-2'], []]);
  t.deepEqual(read({ ...out, 'nvidia.com/use-gpuuuid': 'GPU-3' }, { allowGpuUuid: true })[1], [
    ...['!GPU-1', '!GPU-2', 'GPU-3'],
  ]);
  t.deepEqual(read(out)[2], [notRead('nvidia.com/nouse-gpuuuid', 'cotenant.io/gpu-uuid')]);
});

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
