// Allocations added up per node, and the order of nodes.
import test from 'ava';
import type { NodeGpus } from '../../../src/api/node-annotation.ts';
import { type Allocation, createAllocations } from '../../../src/placement/allocations.ts';
import { BEST_SCORE, costOnNode, scoreOfRank } from '../../../src/placement/score.ts';

const gpus = (...names: readonly string[]): NodeGpus => ({
  mostTenantsPerGpu: 4,
  gpus: names.map((gpuUuid, index) => ({ gpuUuid, index, model: 'x', usableBytes: 1000, healthy: true })),
});
const allocation = (podUid: string, nodeName: string, gpuUuid: string, memoryBytes: number): Allocation => ({
  podUid,
  nodeName,
  demand: new Map([[gpuUuid, { memoryBytes, coresPercent: 10, tenants: 1 }]]),
});
const granted = (allocations: ReturnType<typeof createAllocations>, node: string) =>
  allocations
    .placeableNode(node)
    ?.gpus.map(({ grantedBytes, grantedCoresPercent, tenants }) => [grantedBytes, grantedCoresPercent, tenants]);

test('grants are added up per GPU, released and replaced, in any order of events', (t) => {
  const allocations = createAllocations();
  allocations.allocate(allocation('p', 'n', 'a', 300));
  t.is(allocations.placeableNode('n'), undefined, 'a node without GPUs');
  allocations.setNode('n', gpus('a', 'b'));
  allocations.setNode('m', gpus('c'));
  allocations.allocate(allocation('q', 'n', 'a', 200));
  allocations.allocate(allocation('elsewhere', 'n', 'c', 50));
  t.deepEqual(granted(allocations, 'n'), [
    [500, 20, 2],
    [0, 0, 0],
  ]);
  t.deepEqual(granted(allocations, 'm'), [[0, 0, 0]], 'a GPU counts on the node of the pod');
  allocations.allocate(allocation('p', 'm', 'c', 70));
  t.deepEqual([granted(allocations, 'n')?.[0], granted(allocations, 'm')], [[200, 10, 1], [[70, 10, 1]]]);
  allocations.removeNode('n');
  t.is(allocations.placeableNode('n'), undefined);
  allocations.setNode('n', gpus('a'));
  t.deepEqual(granted(allocations, 'n'), [[200, 10, 1]], 'it came back with its pods');
  allocations.release('q');
  allocations.release('q');
  t.deepEqual(granted(allocations, 'n'), [[0, 0, 0]]);
  t.is(allocations.allocationOf('q'), undefined);
});

test('grants of the agent count with the grants of pods', (t) => {
  const allocations = createAllocations();
  const [one, two] = gpus('a', 'b').gpus;
  const others = { memoryBytes: 400, coresPercent: 30, tenants: 2 };
  allocations.allocate(allocation('p', 'n', 'a', 300));
  allocations.setNode('n', { ...gpus(), gpus: one && two ? [{ ...one, others }, two] : [] });
  t.deepEqual(granted(allocations, 'n'), [
    [700, 40, 3],
    [0, 0, 0],
  ]);
});

test('a node is the same object until something changes on it', (t) => {
  const allocations = createAllocations();
  allocations.setNode('n', gpus('a'));
  allocations.setNode('m', gpus('b'));
  const before = allocations.placeableNode('n');
  allocations.allocate(allocation('p', 'm', 'b', 1));
  t.is(allocations.placeableNode('n'), before);
  allocations.allocate(allocation('q', 'n', 'a', 1));
  t.not(allocations.placeableNode('n'), before);
  t.is(before?.gpus[0]?.grantedBytes, 0, 'what was handed out stays as it was');
});

test('nodes that changed since a version are known for 4,096 changes', (t) => {
  const allocations = createAllocations();
  allocations.setNode('n', gpus('a'));
  const before = allocations.version;
  allocations.removeNode('never there');
  allocations.release('never there');
  t.is(allocations.version, before);
  t.deepEqual(allocations.changedSince(before), new Set());
  allocations.allocate(allocation('p', 'n', 'a', 1));
  allocations.allocate(allocation('p', 'm', 'a', 1));
  t.deepEqual(allocations.changedSince(before), new Set(['n', 'm']));
  allocations.release('p');
  t.deepEqual(allocations.changedSince(allocations.version - 1), new Set(['m']));
  for (let turn = 0; turn < 5000; turn += 1) allocations.setNode('n', gpus('a'));
  t.is(allocations.changedSince(before), undefined);
  t.deepEqual(allocations.changedSince(allocations.version - 3000), new Set(['n']));
});

test('faults, unenforced limits and modes are passed on as a node advertises them', (t) => {
  const allocations = createAllocations();
  const two = gpus('a', 'b');
  allocations.setNode('n', {
    ...two,
    gpus: two.gpus.map((gpu, at) => (at === 0 ? { ...gpu, unfenced: 'why', fault: 'Xid', mode: 'none' } : gpu)),
  });
  t.deepEqual(
    allocations.placeableNode('n')?.gpus.map(({ unfenced, fault, mode }) => [unfenced, fault, mode]),
    [
      ['why', 'Xid', 'none'],
      [undefined, undefined, undefined],
    ],
  );
});

test('an invalid grant blocks the GPUs that it names until its pod is gone', (t) => {
  const allocations = createAllocations();
  allocations.setNode('n', gpus('a', 'b'));
  allocations.allocate({ podUid: 'p', nodeName: 'n', demand: new Map(), blocks: { gpuUuids: ['a'], reason: 'why' } });
  t.deepEqual(
    allocations.placeableNode('n')?.gpus.map(({ blocked }) => blocked),
    ['why', undefined],
  );
  allocations.release('p');
  t.deepEqual(
    allocations.placeableNode('n')?.gpus.map(({ blocked }) => blocked),
    [undefined, undefined],
  );
});

test('binpack opens few GPUs, and then prefers full nodes; spread prefers empty ones', (t) => {
  const allocations = createAllocations();
  allocations.setNode('n', gpus('a', 'b'));
  allocations.allocate(allocation('p', 'n', 'a', 500));
  const node = allocations.placeableNode('n');
  if (!node) return t.fail();
  const on = (gpuUuid: string) => ({ gpuUuid, memoryBytes: 200, limitBytes: 200, coresPercent: 0 });
  const cost = (placement: 'binpack' | 'spread', ...uuids: string[]) =>
    costOnNode([{ name: 'm', kind: 'app', memoryIsolation: 'on', gpus: uuids.map(on) }], node, { placement });
  t.deepEqual(cost('binpack', 'a'), { first: 0, second: -0.35 });
  t.deepEqual(cost('binpack', 'a', 'b'), { first: 1, second: -0.45 });
  t.deepEqual(cost('spread', 'a', 'b'), { first: 0, second: 0.45 });
});

test('a node whose compute is granted is full, however much memory it has', (t) => {
  const allocations = createAllocations();
  allocations.setNode('memory', gpus('a', 'b'));
  allocations.setNode('compute', gpus('a', 'b'));
  allocations.allocate(allocation('p', 'memory', 'a', 500));
  const { demand, ...usual } = allocation('q', 'compute', 'a', 100);
  allocations.allocate({
    ...usual,
    demand: new Map([...demand].map(([gpuUuid, one]) => [gpuUuid, { ...one, coresPercent: 80 }])),
  });
  const cost = (name: string, placement: 'binpack' | 'spread') => {
    const grant = { gpuUuid: 'a', memoryBytes: 100, limitBytes: 100, coresPercent: 10 };
    const node = allocations.placeableNode(name);
    return node && costOnNode([{ name: 'm', kind: 'app', memoryIsolation: 'on', gpus: [grant] }], node, { placement });
  };
  // Of two GPUs one is left, and 40 of 100 of the other one's memory, or a tenth of its compute.
  t.deepEqual(
    [cost('memory', 'binpack'), cost('compute', 'binpack')].map((one) => one?.second),
    [-0.3, -0.45],
  );
  t.deepEqual(
    [cost('memory', 'spread'), cost('compute', 'spread')].map((one) => one?.second),
    [0.3, 0.45],
  );
});

test('only the best node has the highest score, and scores stay within 0 to 10', (t) => {
  for (const count of [1, 2, 3, 10, 11, 5000]) {
    const scores = Array.from({ length: count }, (_, place) => scoreOfRank(place, count));
    t.is(scores[0], BEST_SCORE);
    t.true(scores.slice(1).every((score, index) => score >= 0 && score < BEST_SCORE && score <= (scores[index] ?? 0)));
  }
});
