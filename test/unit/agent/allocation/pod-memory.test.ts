// A pod's grants on the node follow the grant that the scheduler wrote for its memory annotation: done, or refused,
// reported once, and done when there is room.

import test from 'ava';
import { createPodMemory } from '../../../../src/agent/allocation/pod-memory.ts';
import type { RefusedChange } from '../../../../src/agent/compute/node-policy.ts';
import type { Grant } from '../../../../src/agent/grants/grant.ts';
import type { LiveGrant } from '../../../../src/agent/grants/live-grant.ts';
import { formatPodGrant } from '../../../../src/api/grant-annotation.ts';
import { err, ok } from '../../../../src/common/result.ts';
import { grantOf } from '../node.ts';

const UUID = 'GPU-0a000000-0000-4000-8000-000000000001';
const ofPod = (container: string, bytes: number): Grant => {
  const owner = { podUid: 'a', target: '/a', kind: 'app' as const };
  const made = grantOf(container, 100, [0], { pod: 'one', container, owner });
  return { ...made, gpus: made.gpus.map((gpu) => ({ ...gpu, memoryBytes: bytes, limitBytes: bytes })) };
};
const annotated = (sizes: object, ...amounts: readonly (readonly [string, number])[]) => ({
  'cotenant.io/memory': JSON.stringify(sizes),
  'cotenant.io/grant': formatPodGrant({
    epoch: 1,
    containers: amounts.map(([name, bytes]) => ({
      name,
      kind: 'app',
      memoryIsolation: 'on',
      gpus: [{ gpuUuid: UUID, memoryBytes: bytes, limitBytes: bytes, coresPercent: 0 }],
    })),
  }),
});

function node(...grants: readonly Grant[]) {
  const resized: [string, number][] = [];
  const reported: RefusedChange[] = [];
  const room = { bytes: 1000 };
  const memory = createPodMemory({
    registry: { list: () => grants.map((grant) => ({ grant }) as LiveGrant) },
    resize(id, bytes) {
      if (bytes > room.bytes) return err({ refused: `${room.bytes} bytes are left` });
      resized.push([id, bytes]);
      return ok({} as LiveGrant);
    },
    onRefused: (change) => reported.push(change),
  });
  return { memory, resized, reported, room };
}

test('only containers that the annotation names, with another grant, are resized', (t) => {
  const { memory, resized } = node(ofPod('main', 100), ofPod('same', 200), ofPod('side', 300));
  const amounts = [
    ['main', 150],
    ['same', 200],
    ['side', 999],
  ] as const;
  memory.onPod('a', annotated({ main: '1Gi', same: '1Gi' }, ...amounts));
  t.deepEqual(resized, [['main', 150]]);
  memory.onPod('other', annotated({ main: '1Gi' }, ...amounts));
  t.is(resized.length, 1, 'another pod');
});

test('a pod without the annotation, or without a readable grant, keeps what it has', (t) => {
  const { memory, resized } = node(ofPod('main', 100));
  const { 'cotenant.io/grant': grant } = annotated({}, ['main', 150]);
  memory.onPod('a', { 'cotenant.io/grant': grant });
  memory.onPod('a', { 'cotenant.io/grant': '{}', 'cotenant.io/memory': '{"main":"1Gi"}' });
  memory.onPod('a', { 'cotenant.io/grant': grant, 'cotenant.io/memory': '{' });
  memory.onPod('a', undefined);
  t.deepEqual(resized, []);
});

test('a grant without room is reported once, and applied when there is', (t) => {
  const { memory, resized, reported, room } = node(ofPod('main', 100));
  const pod = annotated({ main: '1Gi' }, ['main', 2000]);
  memory.onPod('a', pod);
  memory.onPod('a', { ...pod, label: 'x' });
  memory.retryRefused();
  t.deepEqual(reported, [
    {
      namespace: 'local',
      pod: 'one',
      podUid: 'a',
      reason: 'GPUMemoryChangeRefused',
      message: 'the grant is not applied yet: container main: 1000 bytes are left',
    },
  ]);
  room.bytes = 3000;
  memory.retryRefused();
  t.deepEqual(resized, [['main', 2000]]);
});
