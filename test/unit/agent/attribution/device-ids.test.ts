// Which GPU a device of another plugin or driver is, by its name or its ResourceSlice.
import test from 'ava';
import { claimedDevice, type NamedDevice, pluginDevice } from '../../../../src/agent/attribution/device-ids.ts';
import { deviceKey, uuidsOfSlices } from '../../../../src/agent/attribution/resource-slices.ts';

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
