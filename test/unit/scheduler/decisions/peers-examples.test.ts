// Where pods of other systems' published examples of placement end: as those systems say.
// ACK: alibabacloud.com, "Configure a GPU selection policy for nodes with the GPU sharing feature enabled": two GPUs of
// 15 GiB, a pod of 2 and one of 3 GiB. HAMi: github.com/Project-HAMi/HAMi, docs/develop/scheduler-policy.md, stories 1 to 4:
// nodes with four GPUs, two pods.
import test from 'ava';
import { formatPodRequest } from '../../../../src/api/request-annotation.ts';
import { GIB } from '../../../../src/common/quantity.ts';
import { createAllocations } from '../../../../src/placement/allocations.ts';
import { demandOf } from '../../../../src/placement/demand.ts';
import { placementIn } from '../../../../src/placement/node.ts';
import { readPodRequest } from '../../../../src/request/read-pod.ts';
import { createDecider } from '../../../../src/scheduler/decisions/filter-and-score.ts';
import { podWith, rules } from '../../request/pods.ts';
import { uuid } from '../cluster.ts';

type Example = {
  readonly nodes: number;
  readonly gpus: number;
  readonly labels?: Readonly<Record<string, string>>;
  readonly annotations?: Readonly<Record<string, string>>;
  readonly pods: readonly Readonly<Record<string, number>>[];
};

/** Node and GPU of each pod, in numbers by the order in which they were first taken. */
function places({ nodes, gpus, labels, annotations = {}, pods }: Example): readonly string[] {
  const allocations = createAllocations();
  const names = Array.from({ length: nodes }, (_, node) => `node-${node}`);
  const placement = placementIn(labels);
  for (const [node, name] of names.entries())
    allocations.setNode(name, {
      ...{ mostTenantsPerGpu: 10, ...(placement && { placement }) },
      gpus: Array.from({ length: gpus }, (_, index) => ({
        ...{ gpuUuid: uuid(node * gpus + index), index, model: 'x', usableBytes: 15 * GIB, healthy: true },
      })),
    });
  const decider = createDecider(allocations, 'binpack');
  const [seenNodes, seenGpus] = [new Map<string, number>(), new Map<string, number>()];
  const numberIn = (seen: Map<string, number>, name: string) => {
    const number = seen.get(name) ?? seen.size + 1;
    seen.set(name, number);
    return number;
  };
  return pods.map((limits, at) => {
    const reading = readPodRequest(podWith(limits, { annotations }), rules({ dialects: ['ack', 'hami'] }));
    if (reading.kind !== 'request') throw new Error(JSON.stringify(reading));
    const request = decider.read(formatPodRequest(reading.request));
    if (!request.ok) throw new Error(request.error);
    const scores = decider.prioritize(request.value, decider.filter(request.value, names).feasible);
    const { Host: nodeName } = scores.reduce((a, b) => (b.Score > a.Score ? b : a));
    const placed = decider.on(request.value, nodeName);
    if (!placed.ok) throw new Error(placed.reason());
    const demand = demandOf(placed.containers);
    allocations.allocate({ podUid: `pod-${at}`, nodeName, demand });
    return `node ${numberIn(seenNodes, nodeName)} GPU ${numberIn(seenGpus, [...demand.keys()].join())}`;
  });
}

const ACK_PODS = [{ 'aliyun.com/gpu-mem': 2 }, { 'aliyun.com/gpu-mem': 3 }];
const ONE_GPU = { 'nvidia.com/gpu': 1 };
const FIFTH = { ...ONE_GPU, 'nvidia.com/gpucores': 20, 'nvidia.com/gpumem-percentage': 20 };
const policy = (name: string) => ({ 'hami.io/gpu-scheduler-policy': name });

test("pods of ACK's example share a GPU with binpack, and have one each with spread", (t) => {
  const node = { nodes: 1, gpus: 2, pods: ACK_PODS };
  const together = ['node 1 GPU 1', 'node 1 GPU 1'];
  t.deepEqual(places(node), together);
  t.deepEqual(places({ ...node, labels: { 'ack.node.gpu.placement': 'binpack' } }), together);
  t.deepEqual(places({ ...node, labels: { 'ack.node.gpu.placement': 'spread' } }), ['node 1 GPU 1', 'node 1 GPU 2']);
});

test("pods of HAMi's stories are on the nodes and GPUs that the stories name", (t) => {
  const cluster = { nodes: 2, gpus: 4 };
  const whole = [ONE_GPU, ONE_GPU];
  t.deepEqual(places({ ...cluster, pods: whole }), ['node 1 GPU 1', 'node 1 GPU 2'], 'story 1');
  const apart = places({ ...cluster, pods: whole, annotations: policy('spread') });
  t.deepEqual(apart, ['node 1 GPU 1', 'node 2 GPU 2'], 'story 2');
  const fifths = { nodes: 1, gpus: 4, pods: [FIFTH, FIFTH] };
  t.deepEqual(places({ ...fifths, annotations: policy('binpack') }), ['node 1 GPU 1', 'node 1 GPU 1'], 'story 3');
  t.deepEqual(places({ ...fifths, annotations: policy('spread') }), ['node 1 GPU 1', 'node 1 GPU 2'], 'story 4');
});
