// What a node tells the scheduler of its GPUs.
import test from 'ava';
import { advertisedGpus } from '../../../../src/agent/allocation/advertised-gpus.ts';
import type { GpuStanding } from '../../../../src/api/gpu.ts';
import { compared, gpu, sampleOf } from '../node.ts';

const FENCES = { status: 'True', reason: 'FencesHold', message: '' } as const;

test('GPUs in MIG mode and their instances are neither advertised nor waited for', (t) => {
  const gpus = [
    gpu(0),
    gpu(1, { migEnabled: true }),
    gpu(2, { uuid: 'MIG-2', parent: 1 }),
    gpu(3, { healthy: false }),
    gpu(4, { migModeUnknown: true }),
    gpu(5),
  ];
  const STANDINGS: Readonly<Record<string, GpuStanding>> = {
    'GPU-3': { unfenced: 'a request beyond the grant succeeded' },
    'GPU-5': { mode: 'none' },
  };
  const asked: (readonly string[])[] = [];
  const offered = advertisedGpus(compared(sampleOf(gpus, []), [], {}), {
    isStale: false,
    mostTenantsPerGpu: 5,
    grants: [],
    standingOf: (gpuUuid) => STANDINGS[gpuUuid] ?? {},
    fencesOf: (uuids) => {
      asked.push(uuids);
      return FENCES;
    },
  });
  t.deepEqual(
    offered.gpus.map(({ gpuUuid, healthy, unfenced, mode }) => [gpuUuid, healthy, unfenced, mode]),
    [
      ['GPU-0', true, undefined, undefined],
      ['GPU-3', false, 'a request beyond the grant succeeded', undefined],
      ['GPU-5', true, undefined, 'none'],
    ],
  );
  t.deepEqual(asked, [['GPU-0']]);
  t.is(offered.fences, FENCES);
});

test("a GPU with an Xid is unhealthy with its reason, and so is the node's condition", (t) => {
  const state = compared(sampleOf([gpu(0), gpu(1), gpu(2, { healthy: false })], []), [], {});
  const offer = {
    isStale: false,
    mostTenantsPerGpu: 5,
    grants: [],
    standingOf: (gpuUuid: string) => (gpuUuid === 'GPU-1' ? { fault: 'Xid 79' } : {}),
    fencesOf: (uuids: readonly string[]) => ({ ...FENCES, message: uuids.join() }),
  };
  const offered = advertisedGpus(state, offer);
  t.deepEqual(
    offered.gpus.map(({ healthy, fault }) => [healthy, fault]),
    [
      [true, undefined],
      [false, 'Xid 79'],
      [false, undefined],
    ],
  );
  t.is(offered.fences?.message, 'GPU-0', 'no fence is tried on it');
  t.like(offered.health, { status: 'False', reason: 'GpuUnhealthy' });
  t.regex(offered.health?.message ?? '', /^GPU-1: Xid 79; GPU-2: the driver reports/);
  t.is(advertisedGpus(state, { ...offer, isStale: true }).health, undefined, 'old data say nothing');
});

test('a node advertises how its GPUs are linked, and which NUMA nodes are near them', (t) => {
  const offer = { isStale: false, mostTenantsPerGpu: 5, grants: [], standingOf: () => ({}), fencesOf: undefined };
  const linked = [gpu(0, { links: [0, 8], numaNodes: [1] }), gpu(1, { links: [8, 0], numaNodes: [0, 1] })];
  const offered = advertisedGpus(compared(sampleOf(linked, []), [], {}), offer);
  t.deepEqual(
    offered.gpus.map(({ links }) => links),
    [
      [0, 8],
      [8, 0],
    ],
  );
  t.deepEqual(offered.numaNodes, [0, 1]);
  const unknown = advertisedGpus(compared(sampleOf([...linked, gpu(2)], []), [], {}), offer);
  t.is(unknown.numaNodes, undefined);
  t.is(unknown.gpus[2]?.links, undefined);
});
