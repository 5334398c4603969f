// `spread` over a cluster, pod by pod: replicas share a GPU only where every GPU has one, and then a node.
import test from 'ava';
import fc from 'fast-check';
import { MIB } from '../../../../src/common/quantity.ts';
import { type Allocations, createAllocations } from '../../../../src/placement/allocations.ts';
import { demandOf } from '../../../../src/placement/demand.ts';
import { type ReplicaOf, replicaOf } from '../../../../src/placement/replicas.ts';
import { createDecider } from '../../../../src/scheduler/decisions/filter-and-score.ts';
import { recordOf, uuid } from '../cluster.ts';

/** Nodes with so many GPUs of 1000 MiB each. */
function nodesOf(counts: readonly number[]): { allocations: Allocations; names: readonly string[] } {
  const allocations = createAllocations();
  const names = counts.map((_, index) => `n${index}`);
  let gpu = 0;
  for (const [index, count] of counts.entries()) {
    const gpus = Array.from({ length: count }, (_, at) => ({
      ...{ gpuUuid: uuid(gpu++), index: at, model: 'x', usableBytes: 1000 * MIB, healthy: true },
    }));
    allocations.setNode(names[index] ?? '', { mostTenantsPerGpu: 20, gpus });
  }
  return { allocations, names };
}

/** Places the pod as kube-scheduler and the extender would; its node and GPU, or undefined. */
function place(allocations: Allocations, names: readonly string[], podUid: string, replicas: ReplicaOf | undefined) {
  const decider = createDecider(allocations, 'spread');
  const read = decider.read(recordOf(100), replicas && { replicaOf: replicas });
  if (!read.ok) throw new Error(read.error);
  const { feasible } = decider.filter(read.value, names);
  if (feasible.length === 0) return undefined;
  const best = decider.prioritize(read.value, feasible).reduce((a, b) => (b.Score > a.Score ? b : a));
  const placed = decider.on(read.value, best.Host);
  if (!placed.ok) throw new Error(placed.reason());
  const demand = demandOf(placed.containers);
  allocations.allocate({ podUid, nodeName: best.Host, demand, ...(replicas && { replicaOf: replicas }) });
  return { node: best.Host, gpu: [...demand.keys()][0] ?? '' };
}

const pod = (owner: string, labels: Record<string, string> = {}) =>
  replicaOf({ namespace: 'team', labels, ownerReferences: [{ uid: owner, controller: true }] });

test('replicas take one GPU each, on nodes without a replica first', (t) => {
  const { allocations, names } = nodesOf([2, 2]);
  const taken = Array.from({ length: 6 }, (_, index) => place(allocations, names, `p${index}`, pod('web')));
  t.is(new Set(taken.slice(0, 2).map((one) => one?.node)).size, 2);
  t.is(new Set(taken.slice(0, 4).map((one) => one?.gpu)).size, 4);
  t.is(new Set(taken.slice(4).map((one) => one?.node)).size, 2);
});

test('replicas stay apart where another pod has filled most of the GPU without one', (t) => {
  const { allocations, names } = nodesOf([1, 1]);
  allocations.allocate({
    ...{ podUid: 'big', nodeName: 'n0' },
    demand: new Map([[uuid(0), { memoryBytes: 800 * MIB, coresPercent: 0, tenants: 1 }]]),
  });
  t.deepEqual(
    [place(allocations, names, 'a', pod('web'))?.node, place(allocations, names, 'b', pod('web'))?.node],
    ['n1', 'n0'],
  );
});

test('pods with the same labels keep apart, too, but owners weigh more', (t) => {
  const labels = { app: 'web', 'pod-template-hash': '1' };
  const { allocations, names } = nodesOf([1, 1, 1]);
  place(allocations, names, 'old', pod('first', labels));
  place(allocations, names, 'other', pod('second', { app: 'db' }));
  place(allocations, names, 'new', pod('second', { ...labels, 'pod-template-hash': '2' }));
  const at = (podUid: string) => allocations.allocationOf(podUid)?.nodeName;
  t.is(new Set(['old', 'other', 'new'].map(at)).size, 3);
  // Every GPU has a replica by owner or by labels: the one by labels alone is shared.
  place(allocations, names, 'last', pod('second', labels));
  t.is(at('last'), at('old'));
});

test('labels of single pods and of revisions do not tell replicas apart', (t) => {
  const of = (labels: Record<string, string>, namespace = 'team') => replicaOf({ namespace, labels })?.labels;
  t.is(of({ app: 'x', 'apps.kubernetes.io/pod-index': '0' }), of({ app: 'x', 'controller-revision-hash': 'h' }));
  t.not(of({ app: 'x' }), of({ app: 'x' }, 'other'));
  t.is(replicaOf({ labels: { 'pod-template-hash': 'x' } }), undefined);
  t.is(replicaOf({ ownerReferences: [{ uid: 'u' }] }), undefined, 'an owner that is no controller');
});

test('no GPU gets a second replica while one fits that has none, then no node', (t) => {
  t.notThrows(() =>
    fc.assert(
      fc.property(
        fc.array(fc.integer({ min: 1, max: 3 }), { minLength: 1, maxLength: 4 }),
        fc.array(fc.constantFrom('a', 'b'), { maxLength: 24 }),
        (counts, owners) => {
          const { allocations, names } = nodesOf(counts);
          const on = { gpu: new Map<string, number>(), node: new Map<string, number>() };
          for (const [index, owner] of owners.entries()) {
            const gpus = names.flatMap((node) =>
              (allocations.placeableNode(node)?.gpus ?? []).map((gpu) => ({ node, ...gpu })),
            );
            const fitting = gpus.filter(({ grantedBytes }) => grantedBytes + 100 * MIB <= 1000 * MIB);
            const replicas = (kind: 'gpu' | 'node', name: string) => on[kind].get(`${owner} ${name}`) ?? 0;
            const fewest = Math.min(...fitting.map(({ gpuUuid }) => replicas('gpu', gpuUuid)));
            const least = fitting.filter(({ gpuUuid }) => replicas('gpu', gpuUuid) === fewest);
            const fewestOnNode = Math.min(...least.map(({ node }) => replicas('node', node)));
            const taken = place(allocations, names, `p${index}`, pod(owner));
            if (!taken) throw new Error('it fits');
            if (replicas('gpu', taken.gpu) !== fewest) throw new Error('a GPU with more replicas was taken');
            if (replicas('node', taken.node) !== fewestOnNode) throw new Error('a node with more replicas was taken');
            on.gpu.set(`${owner} ${taken.gpu}`, fewest + 1);
            on.node.set(`${owner} ${taken.node}`, fewestOnNode + 1);
          }
        },
      ),
      { numRuns: 200 },
    ),
  );
});
