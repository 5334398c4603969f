// Containers on GPUs of which they have no grant: allocated by others, or not at all.
import test from 'ava';
import type { AssignedState, OtherAllocations } from '../../../../src/agent/usage/ungranted-usage.ts';
import { MIB } from '../../../../src/common/quantity.ts';
import { compared, gpu, grantOf, ofContainer, ofGrant, reading, sampledProcess, sampleOf, use } from '../node.ts';

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
