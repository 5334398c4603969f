// Golden cases of the vGPU dialects. Meanings and units are those of the projects' own pages: project-hami.io (userguide,
// "Device sharing" and "Configure"), the user guides of Volcano's vGPU, GPU sharing and GPU number, and the README of
// vgpu-manager.
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
      expected: [
        `${limit(N)}: "0.5" is not a whole number; write ${P ? `${P}: 50` : `${M}, MiB, for a part of a GPU`}`,
      ],
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
  'a limit of compute is not switched off by a variable': {
    settings: { dialects: ['hami'] },
    limits: { 'nvidia.com/gpumem': 2048, 'nvidia.com/gpucores': 30 },
    env: [{ name: 'GPU_CORE_UTILIZATION_POLICY', value: 'disable' }],
    expected: [{ ...bytes(2048 * MIB), coresPercent: 30 }],
  },
  'a priority alone asks for no GPU': {
    settings: { dialects: ['hami'] },
    limits: { 'nvidia.com/priority': 1 },
    expected: [`${limit('nvidia.com/gpu')}: is missing; write the number of GPUs`],
  },
});

test('what a dialect does not read is a warning that says what to write', (t) => {
  const warningsOf = (limits: object, annotations: object = {}, env: object[] = []) => {
    const reading = readPodRequest(podWith(limits, { annotations, env }), rules({ dialects: ['hami'] }));
    return reading.kind === 'request' ? reading.warnings : [reading.kind];
  };
  const share = { 'nvidia.com/gpu': 1, 'nvidia.com/gpumem': 1024 };
  t.deepEqual(warningsOf(share), []);
  // project-hami.io, "Configure": of `default`, `force` and `disable` the last one ignores the limit.
  const policy = (value: string) => [{ name: 'GPU_CORE_UTILIZATION_POLICY', value }];
  t.deepEqual(warningsOf(share, {}, policy('force')), []);
  t.deepEqual(warningsOf(share, {}, policy('disable')), [
    'GPU_CORE_UTILIZATION_POLICY: no effect; for no limit of compute leave out nvidia.com/gpucores',
  ]);
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

const OLD = { memory: 'volcano.sh/gpu-memory', count: 'volcano.sh/gpu-number' } as const;
const volcano = { dialects: ['volcano'], defaults: { gpuMemory: '1Gi' } };

table('Volcano before its vGPUs', {
  'memory is MiB of one GPU': { settings: volcano, limits: { [OLD.memory]: 1024 }, expected: [bytes(1024 * MIB)] },
  "a number is whole GPUs, whatever the namespace's default": {
    settings: volcano,
    limits: { [OLD.count]: 2 },
    expected: [whole, whole],
  },
  'both at once, as in Volcano issue 2701': {
    settings: volcano,
    limits: { [OLD.count]: 1, [OLD.memory]: 1024 },
    expected: [`${limit(OLD.count)}: "1" is not possible beside ${OLD.memory}; leave one of them out`],
  },
  'beside a vGPU': {
    settings: volcano,
    limits: { [OLD.memory]: 1024, 'volcano.sh/vgpu-number': 1 },
    expected: [`${limit(OLD.memory)}: "1024" is not possible beside volcano.sh/vgpu-number; leave one of them out`],
  },
  bytes: {
    settings: volcano,
    limits: { [OLD.memory]: '1Gi' },
    expected: [
      `${limit(OLD.memory)}: "1Gi" is an amount of bytes, and units of 1Mi are counted here; write 1024: MiB of each GPU`,
    ],
  },
  zero: { settings: volcano, limits: { [OLD.memory]: 0 }, expected: 'none' },
});
