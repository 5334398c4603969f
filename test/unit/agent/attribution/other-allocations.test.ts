// Names of devices that other people's plugins and drivers give out, and what the kubelet tells of them.
import test from 'ava';
import { claimedDevice, type NamedDevice, pluginDevice } from '../../../../src/agent/attribution/device-ids.ts';
import { assignedOf, type PodResources } from '../../../../src/agent/attribution/other-allocations.ts';
import { deviceKey, uuidsOfSlices } from '../../../../src/agent/attribution/resource-slices.ts';
import type { AssignedState, OtherAllocations } from '../../../../src/agent/usage/ungranted-usage.ts';
import { MIB } from '../../../../src/common/quantity.ts';
import { compared, gpu, grantOf, ofContainer, ofGrant, reading, sampledProcess, sampleOf, use } from '../node.ts';

const ONE = 'GPU-00000000-1111-4222-8333-444444444444';
const TWO = 'GPU-aaaaaaaa-1111-4222-8333-444444444444';
const GPUS = [
  { uuid: ONE, index: 0, minor: 0 },
  { uuid: TWO, index: 1, minor: 12 },
];
const MIG = 'MIG-bbbbbbbb-1111-4222-8333-444444444444';
const SHAPES: readonly (readonly [what: string, id: string, expected: NamedDevice | undefined])[] = [
  ["NVIDIA's whole GPU", TWO, { mode: 'exclusive', gpuUuid: TWO }],
  ["NVIDIA's replica", `${TWO}::3`, { mode: 'shared', gpuUuid: TWO }],
  ['MIG with a UUID of its own', MIG, { mode: 'mig', gpuUuid: undefined }],
  ['a replica of it', `${MIG}::1`, { mode: 'mig', gpuUuid: undefined }],
  ['MIG as old drivers name it', `MIG-${ONE}/1/0`, { mode: 'mig', gpuUuid: ONE }],
  ['a replica of that', `MIG-${ONE}/13/0::2`, { mode: 'mig', gpuUuid: ONE }],
  ['GKE, whole', 'nvidia12', { mode: 'exclusive', gpuUuid: TWO }],
  ['GKE, shared', 'nvidia0/vgpu7', { mode: 'shared', gpuUuid: ONE }],
  ['GKE, MIG', 'nvidia12/gi3', { mode: 'mig', gpuUuid: TWO }],
  ['GKE, MIG and shared', 'nvidia0/gi1/vgpu2', { mode: 'mig', gpuUuid: ONE }],
  ['HAMi', `${ONE}-4`, { mode: 'shared', gpuUuid: ONE }],
  ['gpushare: the id says nothing of the GPU', `${ONE}-_-22`, { mode: 'shared', gpuUuid: undefined }],
  ['MetaGPU', `cnvrg-meta-0-17-${TWO}`, { mode: 'shared', gpuUuid: TWO }],
  ['a GPU that is not here', ONE.replace('0000', 'ffff'), { mode: 'exclusive', gpuUuid: undefined }],
  ['a GPU number that is not here', 'nvidia3', { mode: 'exclusive', gpuUuid: undefined }],
  ['our own slot', 's-004', undefined],
  ['a network GPU', 'mlx5_0', undefined],
  ['nothing', '', undefined],
  ['more than a name', `${ONE} `, undefined],
];

test('a device names its GPU and its fraction in each format that plugins use', (t) => {
  for (const [what, id, expected] of SHAPES) t.deepEqual(pluginDevice(id, GPUS), expected, what);
});

test('a MIG instance is identified by UUID or by numbers; its GPU has no owner itself', (t) => {
  const gpus = [
    { uuid: ONE, index: 0, minor: 0, migEnabled: true },
    { uuid: TWO, index: 1, minor: 12 },
    { uuid: MIG, index: 2, parent: 0, gpuInstance: 1, computeInstance: 0 },
    { uuid: `${MIG}0`, index: 3, parent: 0, gpuInstance: 13, computeInstance: 1 },
  ];
  const of = (id: string) => pluginDevice(id, gpus)?.gpuUuid;
  t.is(of(MIG), MIG);
  t.is(of(`${MIG}::4`), MIG);
  t.is(of(`MIG-${ONE}/1/0`), MIG);
  t.is(of(`MIG-${ONE}/13/1::2`), `${MIG}0`);
  t.is(of(`MIG-${ONE}/13/0`), undefined);
  t.is(of('nvidia0/gi13'), `${MIG}0`);
  t.is(of('nvidia0/gi1/vgpu2'), MIG);
  t.is(of('nvidia0/gi2'), undefined);
  t.is(of(ONE), undefined);
  t.is(of(TWO), TWO);
  // Of which instance a claim's device is, its name does not say.
  t.deepEqual(
    claimedDevice({ driver: 'gpu.nvidia.com', pool: 'node-a', device: 'gpu-0-mig-1g.10gb-9-0', share: '' }, gpus),
    {
      mode: 'mig',
      gpuUuid: undefined,
    },
  );
});

test('claimed NVIDIA devices are identified by device node; a share is no whole GPU', (t) => {
  const of = (device: string, share = '', driver = 'gpu.nvidia.com') =>
    claimedDevice({ driver, pool: 'node-a', device, share }, GPUS);
  t.deepEqual(of('gpu-12'), { mode: 'exclusive', gpuUuid: TWO });
  t.deepEqual(of('gpu-0', 'share-1'), { mode: 'shared', gpuUuid: ONE });
  t.deepEqual(of('gpu-0-mig-1g.10gb-9-0'), { mode: 'mig', gpuUuid: ONE });
  t.deepEqual(of('something'), { mode: 'shared', gpuUuid: undefined });
  t.is(of('gpu-0', '', 'nic.example.com'), undefined);
});

/** As NVIDIA's driver writes one, what is not read left out. */
const slice = (generation: number, devices: readonly unknown[], more: Record<string, unknown> = {}) => ({
  apiVersion: 'resource.k8s.io/v1',
  kind: 'ResourceSlice',
  metadata: { name: `node-a-gpu.nvidia.com-${generation}` },
  spec: {
    driver: 'gpu.nvidia.com',
    nodeName: 'node-a',
    pool: { name: 'node-a', generation, resourceSliceCount: 1 },
    devices,
    ...more,
  },
});
const device = (name: string, uuid: string, key = 'uuid') => ({
  name,
  attributes: {
    type: { string: 'gpu' },
    [key]: { string: uuid },
    productName: { string: 'NVIDIA L4' },
    driverVersion: { version: '580.95.5' },
  },
  capacity: { memory: { value: '23034Mi' } },
});

test('a claimed device is the GPU whose UUID its driver reports, whatever its name is', (t) => {
  const uuids = uuidsOfSlices(
    [slice(1, [device('gpu-0', TWO), device('gpu-7', ONE, 'gpu.nvidia.com/uuid')])],
    'node-a',
  );
  const of = (name: string, share = '', driver = 'gpu.nvidia.com', pool = 'node-a') =>
    claimedDevice({ driver, pool, device: name, share }, GPUS, uuids);
  t.deepEqual(of('gpu-0'), { mode: 'exclusive', gpuUuid: TWO });
  t.deepEqual(of('gpu-7'), { mode: 'exclusive', gpuUuid: ONE });
  t.deepEqual(of('gpu-7', 'share-1'), { mode: 'shared', gpuUuid: ONE });
  // In no slice: by its name; of another pool or driver: not that one.
  t.deepEqual(of('gpu-12'), { mode: 'exclusive', gpuUuid: TWO });
  t.deepEqual(of('gpu-0', '', 'gpu.nvidia.com', 'node-b'), { mode: 'exclusive', gpuUuid: ONE });
  t.is(of('gpu-0', '', 'nic.example.com'), undefined);
  // A GPU that is not here is none of ours, although its name would do.
  const gone = 'GPU-99999999-9999-4999-8999-999999999999';
  const elsewhere = uuidsOfSlices([slice(1, [device('gpu-0', gone)])], 'node-a');
  t.deepEqual(
    claimedDevice({ driver: 'gpu.nvidia.com', pool: 'node-a', device: 'gpu-0', share: '' }, GPUS, elsewhere),
    { mode: 'shared', gpuUuid: undefined },
  );
  // Of others' drivers it is a part of the GPU, as far as we know.
  const others = uuidsOfSlices([slice(1, [device('a', ONE)], { driver: 'vgpu.example.com' })], 'node-a');
  t.deepEqual(claimedDevice({ driver: 'vgpu.example.com', pool: 'node-a', device: 'a', share: '' }, GPUS, others), {
    mode: 'shared',
    gpuUuid: ONE,
  });
});

test("of ResourceSlices this node's newest pool generation with valid UUIDs counts", (t) => {
  const read = (...slices: readonly unknown[]) => [...uuidsOfSlices(slices, 'node-a').entries()];
  const key = (name: string) => deviceKey('gpu.nvidia.com', 'node-a', name);
  t.deepEqual(read(slice(2, [device('gpu-0', TWO)]), slice(1, [device('gpu-0', ONE), device('gpu-1', ONE)])), [
    [key('gpu-0'), TWO],
  ]);
  t.deepEqual(read(slice(1, [device('gpu-0', ONE)]), slice(1, [device('gpu-1', TWO)])).length, 2);
  t.deepEqual(read(slice(1, [device('gpu-0', ONE)], { nodeName: 'node-b' })), []);
  t.deepEqual(read(slice(1, [device('gpu-0', ONE)]), slice(1, [device('gpu-0', TWO)])), []);
  const odd = [null, 'x', {}, { name: 1 }, { name: 'a', attributes: [] }, { name: 'a', attributes: { uuid: ONE } }];
  t.deepEqual(
    read(slice(1, odd), slice(1, [device('a', 'GPU-1; drop')]), null, {}, { spec: 1 }, slice(Number.NaN, [])),
    [],
  );
  t.is(
    read(
      slice(
        1,
        Array.from({ length: 9000 }, (_, at) => device(`gpu-${at}`, ONE)),
      ),
    ).length,
    8192,
  );
});

const pod = (name: string, ...ids: readonly string[]): PodResources => ({
  name,
  namespace: 'team',
  containers: [
    { name: 'main', devices: [{ resource_name: 'nvidia.com/gpu', device_ids: ids }], dynamic_resources: [] },
    { name: 'side', devices: [], dynamic_resources: [] },
  ],
});

test('each container counts once per GPU; ended pods and other devices do not count', (t) => {
  const pods = [
    pod('two-replicas', `${ONE}::0`, `${ONE}::1`),
    pod('both', ONE, TWO),
    pod('over', ONE),
    pod('nic', 'mlx5_0'),
  ];
  const { list, unknown } = assignedOf([...pods, pod('mig', MIG)], GPUS, (_, name) => name === 'over');
  t.deepEqual(
    list.map((one) => [one.pod, one.container, one.mode, one.gpuUuid]),
    [
      ['two-replicas', 'main', 'shared', ONE],
      ['both', 'main', 'exclusive', ONE],
      ['both', 'main', 'exclusive', TWO],
      ['mig', 'main', 'mig', undefined],
    ],
  );
  t.is(unknown, 1);
});

const assign = (name: string, mode: 'exclusive' | 'shared' | 'mig', gpuUuid: string | undefined) => ({
  namespace: 'team',
  pod: name,
  container: 'main',
  mode,
  gpuUuid,
});
const inContainer = (containerId: string) => ofContainer(containerId, `uid-${containerId}`);
const named: OtherAllocations['nameOf'] = (containerId, podUid) =>
  containerId === ''
    ? { namespace: 'team', pod: (podUid ?? '').slice('uid-'.length), container: '' }
    : { namespace: 'team', pod: containerId, container: 'main' };
const brief = ({ pod: name, mode, gpuUuid, usedBytes }: AssignedState) => [
  name,
  mode,
  gpuUuid,
  usedBytes === undefined ? undefined : usedBytes / MIB,
];

test('a GPU allocated by others is no foreign use and shows 0 while idle', (t) => {
  const sample = sampleOf(
    [gpu(0, { usedBytes: 400 * MIB }), gpu(1), gpu(2)],
    [
      sampledProcess(1, [use(0, { bytes: 100 * MIB }), use(1, { bytes: 7 * MIB })]),
      sampledProcess(2, [use(0, { bytes: 200 * MIB })]),
      sampledProcess(3, [use(2, { bytes: 50 * MIB })]),
      sampledProcess(4, [use(1, { bytes: 9 * MIB })]),
    ],
  );
  const list = [
    assign('a', 'exclusive', 'GPU-0'),
    assign('idle', 'exclusive', 'GPU-1'),
    assign('mig', 'mig', undefined),
  ];
  const byPid = {
    1: inContainer('a'),
    2: inContainer('a'),
    3: inContainer('mig'),
    4: ofContainer('', 'uid-idle'),
  };
  const state = compared(sample, [], byPid, {
    assigned: { list, unknown: 1 },
    nameOf: named,
  });
  t.deepEqual(state.assigned.map(brief), [
    ['a', 'exclusive', 'GPU-0', 300],
    ['idle', 'exclusive', 'GPU-1', 9],
    ['mig', 'mig', 'GPU-2', 50],
  ]);
  t.deepEqual(
    state.foreign.map(({ containerId, gpuUuid, usedBytes }) => [containerId, gpuUuid, (usedBytes ?? 0) / MIB]),
    [['a', 'GPU-1', 7]],
  );
  t.deepEqual(
    state.devices.map(({ mode, unattributedBytes }) => [mode, (unattributedBytes ?? -1) / MIB]),
    [
      ['exclusive', 100],
      ['exclusive', 0],
      ['mig', 0],
    ],
  );
});

test('containers on MIG instances of one GPU are separate, and no sum counts twice', (t) => {
  const instance = (index: number, gpuInstance: number) =>
    gpu(index, {
      uuid: `MIG-${index}`,
      parent: 0,
      gpuInstance,
      computeInstance: 0,
      totalBytes: 1000 * MIB,
      usedBytes: 300 * MIB,
    });
  const { totalBytes: _, usedBytes: __, ...whole } = gpu(0, { migEnabled: true, processLists: [] });
  const sample = sampleOf(
    [whole, instance(1, 1), instance(2, 2)],
    [
      sampledProcess(1, [use(1, { bytes: 300 * MIB })]),
      sampledProcess(2, [use(2, { bytes: 100 * MIB })]),
      sampledProcess(3, [use(2, { bytes: 50 * MIB })]),
    ],
  );
  const list = [assign('a', 'mig', 'MIG-1'), assign('b', 'mig', 'MIG-2'), assign('elsewhere', 'mig', 'MIG-1')];
  const byPid = { 1: inContainer('a'), 2: inContainer('b'), 3: inContainer('a') };
  const state = compared(sample, [], byPid, {
    assigned: { list, unknown: 0 },
    nameOf: named,
  });
  t.deepEqual(state.assigned.map(brief).toSorted(), [
    ['a', 'mig', 'MIG-1', 300],
    ['b', 'mig', 'MIG-2', 100],
    ['elsewhere', 'mig', 'MIG-1', 0],
  ]);
  t.deepEqual(
    state.foreign.map(({ containerId, gpuUuid, usedBytes }) => [containerId, gpuUuid, (usedBytes ?? 0) / MIB]),
    [['a', 'MIG-2', 50]],
  );
  t.deepEqual(
    state.devices.map(({ mode, containers, unattributedBytes }) => [mode, containers, unattributedBytes]),
    [
      ['mig', 0, undefined],
      ['mig', 1, 0],
      ['mig', 2, 150 * MIB],
    ],
  );
});

test('a container with a grant is reported once; a GPU with two containers is shared', (t) => {
  const grant = grantOf('g', 500, [0], { namespace: 'team', pod: 'a', container: 'main' });
  const list = [
    assign('a', 'exclusive', 'GPU-0'),
    assign('b', 'exclusive', 'GPU-1'),
    assign('c', 'exclusive', 'GPU-1'),
  ];
  const state = compared(
    sampleOf([gpu(0), gpu(1)], []),
    [reading(grant)],
    {},
    {
      assigned: { list, unknown: 0 },
      nameOf: named,
    },
  );
  t.deepEqual(state.assigned.map(brief), [
    ['b', 'exclusive', 'GPU-1', 0],
    ['c', 'exclusive', 'GPU-1', 0],
  ]);
  t.deepEqual(
    state.devices.map(({ mode }) => mode),
    ['shared', 'shared'],
  );
});

test('a container with a grant has a row for each other GPU that the kubelet gave it', (t) => {
  const grant = grantOf('g', 500, [0], { namespace: 'team', pod: 'a', container: 'main' });
  const cgroup = '0::/kubepods/pod01234567-89ab-4cde-8f01-23456789abcd';
  const sample = sampleOf(
    [gpu(0, { usedBytes: 100 * MIB }), gpu(1, { usedBytes: 60 * MIB }), gpu(2, { usedBytes: 900 * MIB })],
    [
      sampledProcess(1, [use(0, { bytes: 100 * MIB }), use(1, { bytes: 60 * MIB })], { cgroup }),
      sampledProcess(2, [use(2, { bytes: 900 * MIB, smPercent: 40 })], { cgroup }),
    ],
  );
  const own = { 1: ofGrant('g'), 2: ofGrant('g') };
  const list = [assign('a', 'exclusive', 'GPU-0'), assign('a', 'exclusive', 'GPU-1')];
  const unnamed: OtherAllocations['nameOf'] = () => ({ namespace: '', pod: '', container: '' });
  const state = compared(sample, [reading(grant)], own, { assigned: { list, unknown: 0 }, nameOf: unnamed });
  t.deepEqual(state.assigned.map(brief), [['a', 'exclusive', 'GPU-1', 60]]);
  t.like(state.assigned[0], { containerIds: ['g'], podUid: '01234567-89ab-4cde-8f01-23456789abcd' });
  t.deepEqual(state.foreign, [
    {
      gpuUuid: 'GPU-2',
      gpuIndex: 2,
      containerId: 'g',
      podUid: '01234567-89ab-4cde-8f01-23456789abcd',
      usedBytes: 900 * MIB,
      smPercent: 40,
      processes: 1,
    },
  ]);
  t.deepEqual(
    state.devices.map(({ containers, unattributedBytes }) => [containers, unattributedBytes]),
    [
      [1, 0],
      [1, 0],
      [1, 0],
    ],
  );
  t.is(state.containers[0]?.verdict.severity, 'within', 'foreign use stops no container');
  const idle = compared(
    sampleOf([gpu(0), gpu(1)], []),
    [reading(grant)],
    {},
    { assigned: { list, unknown: 0 }, nameOf: unnamed },
  );
  t.deepEqual(idle.assigned.map(brief), [['a', 'exclusive', 'GPU-1', 0]]);
});

test('an unnamed container has no devices of its pod; a sandbox has all of them', (t) => {
  const sample = sampleOf(
    [gpu(0, { usedBytes: 100 * MIB })],
    [sampledProcess(1, [use(0, { bytes: 60 * MIB })]), sampledProcess(2, [use(0, { bytes: 40 * MIB })])],
  );
  const byPid = { 1: ofContainer('new', 'uid-a'), 2: ofContainer('', 'uid-a') };
  const list = [assign('a', 'exclusive', 'GPU-0')];
  const nameOf: OtherAllocations['nameOf'] = () => ({ namespace: 'team', pod: 'a', container: '' });
  const state = compared(sample, [], byPid, { assigned: { list, unknown: 0 }, nameOf });
  t.deepEqual(state.assigned.map(brief), [['a', 'exclusive', 'GPU-0', 40]]);
  t.deepEqual(
    state.foreign.map(({ containerId, usedBytes }) => [containerId, (usedBytes ?? 0) / MIB]),
    [['new', 60]],
  );
});

test('memory that the driver does not report has no figure and proves no release', (t) => {
  const grant = grantOf('g', 500);
  const sample = sampleOf(
    [gpu(0, { usedBytes: 900 * MIB })],
    [
      sampledProcess(1, [use(0, { bytes: 100 * MIB })]),
      sampledProcess(2, [use(0)]),
      sampledProcess(3, [use(0)]),
      sampledProcess(4, [use(0)]),
    ],
  );
  const byPid = {
    1: ofGrant('g'),
    2: ofGrant('g'),
    3: inContainer('whole'),
    4: inContainer('stray'),
  };
  const state = compared(sample, [reading(grant)], byPid, {
    assigned: { list: [assign('whole', 'exclusive', 'GPU-0')], unknown: 0 },
    nameOf: named,
  });
  t.like(state.containers[0], { allGpusKnown: false, gpus: [{ usedBytes: 100 * MIB, memoryKnown: false }] });
  t.is(state.assigned[0]?.usedBytes, undefined);
  t.is(state.foreign[0]?.usedBytes, undefined);
  t.is(state.devices[0]?.unattributedBytes, undefined);
  t.is(state.failures.memory_not_available, 3);
});
