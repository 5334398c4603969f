// `cotenant fits`: which pods of manifests fit recorded nodes, and what the command prints.
import test from 'ava';
import { formatNodeGpus } from '../../../src/api/node-annotation.ts';
import { fitLines, fitsOf } from '../../../src/cli/cluster/fits.ts';
import type { Node, Pod } from '../../../src/cli/cluster/objects.ts';
import { EVERY_DIALECT } from '../../../src/cli/options/manifests.ts';
import type { JsonObject } from '../../../src/common/json.ts';
import { MIB } from '../../../src/common/quantity.ts';
import { blocks, readPage, section } from '../../support/docs.ts';

const uuid = (gpu: number) => `GPU-00000000-0000-4000-8000-00000000000${gpu}`;
const node = (name: string, gpu: number, mib: number, more: Partial<Node> = {}): Node => ({
  metadata: {
    name,
    labels: { pool: name },
    annotations: {
      'cotenant.io/gpus': formatNodeGpus({
        mostTenantsPerGpu: 10,
        gpus: [{ gpuUuid: uuid(gpu), index: 0, model: 'NVIDIA L4', usableBytes: mib * MIB, healthy: true }],
      }),
    },
  },
  ...more,
});
const NODES = [node('gpu-1', 1, 22_600), node('gpu-2', 2, 22_600), node('plain', 3, 0)];

const grant = (gpu: number, mib: number) =>
  JSON.stringify({
    version: 1,
    epoch: 1,
    containers: [
      {
        ...{ name: 'main', kind: 'app', memoryIsolation: 'on' },
        gpus: [{ gpuUuid: uuid(gpu), memoryBytes: mib * MIB, limitBytes: mib * MIB, coresPercent: 0 }],
      },
    ],
  });
const HOLDER: Pod = {
  metadata: { name: 'h', namespace: 'team', uid: 'h', annotations: { 'cotenant.io/grant': grant(1, 12_000) } },
  spec: { nodeName: 'gpu-1', containers: [] },
  status: { phase: 'Running' },
};

const template = (limits: object, more: object = {}) => ({
  metadata: { labels: { app: 'x' } },
  spec: { containers: [{ name: 'main', image: 'x', resources: { limits } }], ...more },
});
const deployment = (name: string, replicas: number, memory: string, more: object = {}): JsonObject => ({
  ...{ apiVersion: 'apps/v1', kind: 'Deployment', metadata: { name } },
  spec: { replicas, template: template({ 'cotenant.io/gpu': 1, 'cotenant.io/gpu-memory': memory }, more) },
});
const fitsIn = (documents: readonly JsonObject[], nodes: readonly Node[] = NODES) =>
  fitsOf(nodes, [HOLDER], { documents, configuration: EVERY_DIALECT, placement: 'binpack', namespace: 'team' });

test('what fits, where, how many more, and the nearest miss, as the page shows it', (t) => {
  const fits = fitsIn([deployment('serve', 3, '8Gi'), deployment('train', 1, '16Gi')], NODES.slice(0, 2));
  const [example = ''] = blocks(section(readPage('docs/use/cli.md'), '## cotenant fits'), '');
  const [, ...lines] = example.trimEnd().split('\n');
  t.deepEqual([...fitLines(fits), '1'], lines);
});

test('nodes that take no new pods, or that a selector excludes, do not count', (t) => {
  const some = (more: Partial<Node>) => fitsIn([deployment('a', 1, '1Gi')], [node('gpu-1', 1, 22_600, more)]);
  t.is(some({})[0]?.outcome, 'fits');
  t.is(some({ spec: { unschedulable: true } })[0]?.outcome, 'does not fit');
  t.is(some({ status: { conditions: [{ type: 'Ready', status: 'False' }] } })[0]?.outcome, 'does not fit');
  const [selecting] = fitsIn([deployment('a', 1, '1Gi', { nodeSelector: { pool: 'gpu-2' } })]);
  t.deepEqual(selecting?.placed, [{ node: 'gpu-2', gpus: [uuid(2)] }]);
});

// Rules of kubernetes.io, "Assigning Pods to Nodes": terms are alternatives, the conditions of one must all hold, an empty
// one selects nothing; operators as documented there.
test('required node affinity selects nodes as kube-scheduler reads it', (t) => {
  const size = (name: string, gpu: number, gib: string) => {
    const plain = node(name, gpu, 22_600);
    return { ...plain, metadata: { ...plain.metadata, labels: { pool: name, gib } } };
  };
  const nodes = [size('gpu-1', 1, '24'), size('gpu-2', 2, '80')];
  const of = (key: string, operator: string, ...values: string[]) => ({ key, operator, values });
  const among = (...nodeSelectorTerms: object[]) => {
    const required = { requiredDuringSchedulingIgnoredDuringExecution: { nodeSelectorTerms } };
    const more = { affinity: { nodeAffinity: required } };
    return fitsIn([deployment('a', 1, '1Gi', more)], nodes)[0]?.placed?.map((one) => one.node);
  };
  const term = (...matchExpressions: object[]) => ({ matchExpressions });
  const only = (name: string) => of('metadata.name', 'In', name);
  const [first, second, none] = [['gpu-1'], ['gpu-2'], []];
  t.deepEqual(among(term(of('pool', 'In', 'gpu-2', 'other'))), second);
  t.deepEqual(among(term(of('pool', 'NotIn', 'gpu-1'))), second);
  t.deepEqual(among(term(of('gib', 'Gt', '40'))), second);
  t.deepEqual(among(term(of('gib', 'Lt', '40'))), first);
  t.deepEqual(among({ matchFields: [only('gpu-2')] }), second);
  t.deepEqual(among(term(of('gib', 'Exists'), of('none', 'DoesNotExist'), of('pool', 'In', 'gpu-2'))), second);
  t.deepEqual(among(term(of('pool', 'In', 'x')), term(of('pool', 'In', 'gpu-2'))), second);
  t.deepEqual(among(term(of('pool', 'In', 'gpu-2'), of('gib', 'Lt', '40'))), none);
  t.deepEqual(among({ ...term(of('pool', 'Exists')), matchFields: [only('gpu-3')] }), none);
  for (const odd of [{}, term(of('none', 'Gt', '1')), term(of('pool', 'Gt', '1')), term(of('pool', 'Like', 'g'))])
    t.deepEqual(among(odd), none, JSON.stringify(odd));
});

test('the placement that a label of a node chooses is that of the extender', (t) => {
  const gpus = [1, 2].map((gpu, index) => ({
    ...{ gpuUuid: uuid(gpu), index, model: 'x', usableBytes: 22_600 * MIB, healthy: true },
  }));
  const annotations = { 'cotenant.io/gpus': formatNodeGpus({ mostTenantsPerGpu: 10, gpus }) };
  const placed = (labels: Record<string, string>) =>
    fitsIn([deployment('a', 1, '1Gi')], [{ metadata: { name: 'gpu-1', labels, annotations } }])[0]?.placed;
  t.deepEqual(placed({}), [{ node: 'gpu-1', gpus: [uuid(1)] }], 'beside the pod that is there');
  t.deepEqual(placed({ 'cotenant.io/placement': 'spread' }), [{ node: 'gpu-1', gpus: [uuid(2)] }]);
});

/** As KServe has a pod's spec. */
const inline = ({ spec }: ReturnType<typeof template>) => ({ containers: spec.containers });

test('the pods of objects are counted by their kind', (t) => {
  const pod = template({ 'cotenant.io/gpu': 1, 'cotenant.io/gpu-memory': '1Gi' });
  const specs: [spec: object, replicas: number[]][] = [
    [{ parallelism: 4, completions: 8, template: pod }, [4]],
    [{ replicatedJobs: [{ replicas: 2, template: { spec: { parallelism: 3, template: pod } } }] }, [6]],
    [{ replicas: 2, leaderWorkerTemplate: { size: 4, leaderTemplate: pod, workerTemplate: pod } }, [2, 6]],
    [{ replicas: 2, leaderWorkerTemplate: { size: 4, workerTemplate: pod } }, [8]],
    [{ workerGroupSpecs: [{ replicas: 5, template: pod }] }, [5]],
    [{ replicas: 0, template: pod }, [0]],
    // kubernetes.io, "Jobs": the number of pods that run will not exceed the remaining completions.
    [{ parallelism: 10, completions: 3, template: pod }, [3]],
    [{ completions: 3, template: pod }, [1]],
    // docs.ray.io, "RayCluster Configuration": numOfHosts pods for each replica; minReplicas where there are no replicas.
    [{ workerGroupSpecs: [{ replicas: 2, minReplicas: 1, numOfHosts: 4, template: pod }] }, [8]],
    [{ workerGroupSpecs: [{ replicas: 0, minReplicas: 0, template: pod }] }, [0]],
    // kserve.github.io, "Multi-node/Multi-GPU Inference": pipelineParallelSize counts the head and its workers.
    [
      { predictor: { minReplicas: 2, ...inline(pod), workerSpec: { pipelineParallelSize: 3, ...inline(pod) } } },
      [2, 4],
    ],
    [{ predictor: { minReplicas: 0, ...inline(pod) } }, [1]],
  ];
  for (const [spec, replicas] of specs) {
    const found = fitsIn([{ kind: 'Some', metadata: { name: 'x' }, spec }]);
    t.deepEqual(
      found.map((one) => one.replicas),
      replicas,
      JSON.stringify(spec),
    );
  }
});

// kubernetes.io, "DaemonSet": one pod on each node that its selector and affinity select.
test('a DaemonSet has one pod on each node that it selects', (t) => {
  const daemons = (memory: string, more: object = {}): JsonObject => ({
    ...deployment('d', 7, memory, more),
    kind: 'DaemonSet',
  });
  const small = fitsIn([daemons('1Gi')], NODES.slice(0, 2));
  t.like(small[0], { outcome: 'fits', replicas: 2, more: 0 });
  t.deepEqual(
    small[0]?.placed?.map((one) => one.node),
    ['gpu-1', 'gpu-2'],
  );
  t.deepEqual(fitLines(small)[0], 'DaemonSet/d spec.template: 2 of 2 pods fit, and 0 more');
  const large = fitsIn([daemons('16Gi')], NODES.slice(0, 2));
  t.like(large[0], { outcome: 'does not fit', replicas: 2, placed: [{ node: 'gpu-2' }] });
  t.regex(large[0]?.nearest ?? '', /^node gpu-1: /);
  t.like(fitsIn([daemons('1Gi', { nodeSelector: { pool: 'gpu-2' } })])[0], { outcome: 'fits', replicas: 1 });
});

test('pods without a share and refused ones say so', (t) => {
  const plain = { ...template({ cpu: 1 }), kind: 'Pod', metadata: { name: 'p' } };
  const bad = { ...template({ 'tencent.com/vcuda-core': 150 }), kind: 'Pod', metadata: { name: 'q' } };
  const fits = fitsIn([plain, bad]);
  t.deepEqual(
    fits.map(({ outcome }) => outcome),
    ['no share', 'refused'],
  );
  t.deepEqual(fitLines(fits).slice(0, 2), ['Pod/p: asks for no share', 'Pod/q: is refused']);
  t.deepEqual(fitLines([]), ['there are no pods in these manifests']);
});
