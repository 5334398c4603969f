// Odd manifests against `cotenant convert`: each gets a share, or an answer that says where, what and what is right.
import test from 'ava';
import { FOREIGN_DIALECT_NAMES } from '../../../src/api/request.ts';
import { convertDocument, unreadOf } from '../../../src/cli/commands/planning/convert.ts';
import type { JsonObject } from '../../../src/common/json.ts';
import { configured } from '../webhook/reviews.ts';

const all = configured({ rules: { dialects: FOREIGN_DIALECT_NAMES } });
const H = { 'nvidia.com/gpu': '1', 'nvidia.com/gpumem': '4096' };
const main = (limits: unknown, more: object = {}) => ({ name: 'main', image: 'x', resources: { limits }, ...more });
const pod = (spec: object, annotations?: object): JsonObject => ({
  kind: 'Pod',
  metadata: { name: 'p', ...(annotations && { annotations }) },
  spec,
});
const ours = (amount: unknown, more: object = {}) =>
  pod({ containers: [main({ 'cotenant.io/gpu-memory': amount, ...more })] });
const deployment = (metadata: object, container: object, kind = 'Deployment') => ({
  kind,
  metadata: { name: 'd', ...metadata },
  spec: { template: { metadata: {}, spec: { containers: [container] } } },
});
const isvc = (predictor: object): JsonObject => ({
  kind: 'InferenceService',
  metadata: { name: 'i' },
  spec: { predictor },
});
const MIB_4096 = '4096 MiB of one GPU';
const limit = 'spec.containers[0].resources.limits';

/** What is said of each pod: shares of its containers, or `untouched`; then refusals and warnings. */
const ODD: Readonly<Record<string, readonly [document: JsonObject, ...said: string[]]>> = {
  'an init container alone': [
    pod({ initContainers: [main(H, { name: 'i' })], containers: [{ name: 'main', image: 'x' }] }),
    `i: ${MIB_4096}, main: none`,
  ],
  // As a chart writes it without its value; apimachinery, Quantity.UnmarshalJSON: null is 0.
  'an amount without a value': [
    ours('4Gi', { 'cotenant.io/gpu': null }),
    `${limit}["cotenant.io/gpu"]: "0" is less than 1; `,
  ],
  'an amount of another system without a value': [pod({ containers: [main({ 'nvidia.com/gpu': null })] }), 'untouched'],
  'a sidecar and a container': [
    pod({ initContainers: [main(H, { name: 'i', restartPolicy: 'Always' })], containers: [main(H)] }),
    `i: ${MIB_4096}, main: ${MIB_4096}`,
  ],
  'a debug container in a manifest': [
    pod({ containers: [main(H)], ephemeralContainers: [main(H, { name: 'debug' })] }),
    `main: ${MIB_4096}`,
  ],
  'two dialects in two containers': [
    pod({ containers: [main(H), main({ 'aliyun.com/gpu-mem': 3 }, { name: 'two' })] }),
    `main: ${MIB_4096}, two: 3 units of 1024 MiB of one GPU`,
  ],
  'two dialects in one container': [
    pod({ containers: [main({ ...H, 'volcano.sh/vgpu-number': 1 })] }),
    `${limit}: has names of two dialects (nvidia.com/gpu: 1, nvidia.com/gpumem: 4096; volcano.sh/vgpu-number: 1); write the amounts in one of them`,
  ],
  'requests alone': [
    pod({ containers: [{ name: 'main', image: 'x', resources: { requests: { 'nvidia.com/gpu': 1 } } }] }),
    'spec.containers[0].resources.requests["nvidia.com/gpu"]: 1 has no limit for the same resource; write the same amount under resources.limits',
  ],
  'requests below limits': [
    pod({ containers: [main(H, { resources: { limits: H, requests: { ...H, 'nvidia.com/gpumem': '1024' } } })] }),
    'spec.containers[0].resources.requests["nvidia.com/gpumem"]: "1024" is not the limit "4096"; write the same amount in both',
  ],
  'the same amount in another form': [
    pod({ containers: [main(H, { resources: { limits: H, requests: { ...H, 'nvidia.com/gpumem': '4.096e3' } } })] }),
    `main: ${MIB_4096}`,
  ],
  'an exponent': [pod({ containers: [main({ 'nvidia.com/gpumem': '4e3' })] }), 'main: 4000 MiB of one GPU'],
  'a unit in lower case': [ours('4gi'), 'write "4Gi"'],
  'a unit of everyday life': [ours('4GB'), 'write "4Gi"'],
  'a blank before the unit': [ours('4 Gi'), 'write "4Gi"'],
  'a number without a unit': [ours(4096), `"4096" counts bytes, and is not whole MiB; write "4096Mi"`],
  'less than nothing': [ours('-4Gi'), '"-4Gi" is not more than 0; write at least 1Mi, or leave it out'],
  nothing: [ours('0'), '"0" is not more than 0; write at least 1Mi, or leave it out'],
  'more than any node has': [ours('8Ei'), '"8Ei" is more than any node has; write at most 1Pi'],
  'a fraction of a unit': [ours('1.5Gi'), 'main: 1536 MiB of one GPU'],
  'compute in percent': [ours('4Gi', { 'cotenant.io/gpu-cores': '50%' }), 'write 50 (100 is all compute of the GPU)'],
  'compute as a fraction': [ours('4Gi', { 'cotenant.io/gpu-cores': 0.5 }), '"0.5" is not a whole number; write 50'],
  'a name of ours that does not exist': [
    pod({ containers: [main({ 'cotenant.io/gpu-mem': '4Gi' })] }),
    `${limit}["cotenant.io/gpu-mem"]: "4Gi" is not known to Cotenant; write cotenant.io/gpu-memory (there are cotenant.io/gpu, cotenant.io/gpu-memory, cotenant.io/gpu-cores)`,
  ],
  'such a name beside a share': [
    ours('4Gi', { 'cotenant.io/gpu-core': '30' }),
    `${limit}["cotenant.io/gpu-core"]: "30" is not known to Cotenant; write cotenant.io/gpu-cores (`,
  ],
  'an annotation of ours that does not exist': [
    pod({ containers: [main(H)] }, { 'cotenant.io/compute_policy': 'soft' }),
    `main: ${MIB_4096}`,
    'annotation cotenant.io/compute_policy is not known to Cotenant and has no effect',
  ],
  'a name of the other system that is not read': [
    pod({ containers: [main({ ...H, 'nvidia.com/cores': 30 })] }),
    `main: ${MIB_4096}`,
    'main: nvidia.com/cores is not read and stays: the pod waits for a node that has it',
  ],
  'more memory than a GPU has': [
    pod({ containers: [main({ 'aliyun.com/gpu-mem': 3500 })] }),
    'main: 3500 units of 1024 MiB of one GPU',
    'main: 3584000 MiB are more than any GPU has: the pod will wait',
  ],
  'amounts of the pod as a whole': [
    pod({ resources: { limits: { cpu: '1', 'cotenant.io/gpu-memory': '4Gi' } }, containers: [{ name: 'main' }] }),
    'spec.resources.limits["cotenant.io/gpu-memory"]: "4Gi" is asked for by the pod as a whole; write it under the container that uses it',
  ],
  'other resources of the pod as a whole': [
    pod({ resources: { limits: { cpu: '1' } }, containers: [main(H)] }),
    `main: ${MIB_4096}`,
  ],
  'a claim of DRA alone': [
    pod({
      resourceClaims: [{ name: 'gpu' }],
      containers: [{ name: 'main', resources: { claims: [{ name: 'gpu' }] } }],
    }),
    'untouched',
  ],
  'a claim of DRA beside a share': [
    pod({ resourceClaims: [{ name: 'nic' }], containers: [main(H, { resources: { limits: H, claims: [{}] } })] }),
    `main: ${MIB_4096}`,
    'main: a GPU of resources.claims is hidden from CUDA here',
  ],
  'the machine’s processes': [pod({ hostPID: true, containers: [main(H)] }), 'spec.hostPID: true lets the container'],
  Windows: [pod({ os: { name: 'windows' }, containers: [main(H)] }), 'spec.os.name: "windows" has no shares of GPUs;'],
  'a user namespace': [pod({ hostUsers: false, containers: [main(H)] }), `main: ${MIB_4096}`],
  'limits that are no map': [pod({ containers: [main([H])] }), `${limit}: a list of 1 is not a map;`],
  'an amount that is true': [pod({ containers: [main({ 'nvidia.com/gpu': true })] }), 'true is not a quantity;'],
  'an amount that is null': [pod({ containers: [main({ 'nvidia.com/gpu': null })] }), 'untouched'],
  'limits that are null': [pod({ containers: [main(null)] }), 'untouched'],
  'no name': [pod({ containers: [{ image: 'x', resources: { limits: H } }] }), 'spec.containers[0].name: is missing;'],
  'one name twice': [pod({ containers: [main(H), main(H)] }), '"main" names two containers; give each its own name'],
  'no containers': [pod({ containers: [] }), 'untouched'],
  'a StatefulSet': [deployment({}, main(H), 'StatefulSet'), `main: ${MIB_4096}`],
  'a PodTemplate': [{ kind: 'PodTemplate', template: { spec: { containers: [main(H)] } } }, `main: ${MIB_4096}`],
  'an annotation on the Deployment': [
    deployment({ annotations: { 'gpu-fraction': '0.5' } }, { name: 'main', image: 'x' }),
    'untouched',
    'gpu-fraction is on Deployment/d, not on its pods: no effect',
  ],
  'a label on the Deployment': [
    deployment({ labels: { 'aliyun.com/gpu-count': '4' } }, main({ 'aliyun.com/gpu-mem': 8 })),
    'main: 8 units of 1024 MiB of one GPU',
    'aliyun.com/gpu-count is on Deployment/d, not on its pods: no effect',
  ],
  'a SharePod': [
    { ...pod({ containers: [main(H)] }), kind: 'SharePod' },
    `main: ${MIB_4096}`,
    'the webhook sees pods only: write kind Pod in the place of SharePod',
  ],
  // kserve.github.io: "Multi-node/Multi-GPU Inference" (workers without an image), "Collocate Transformer and Predictor".
  'a model of KServe with workers': [
    isvc({ model: { resources: { limits: H } }, workerSpec: { containers: [{ ...main(H), image: undefined }] } }),
    `kserve-container: ${MIB_4096}`,
    `main: ${MIB_4096}`,
  ],
  'a model of KServe with another container': [
    isvc({ model: { resources: { limits: H } }, containers: [{ name: 'transformer', image: 'x' }] }),
    `kserve-container: ${MIB_4096}, transformer: none`,
  ],
  'a ServingRuntime': [{ ...pod({ containers: [main(H)] }), kind: 'ServingRuntime' }, `main: ${MIB_4096}`],
  // argo-workflows.readthedocs.io, "Sidecars" and "Init Containers" of a template.
  'a step of Argo with a sidecar': [
    { kind: 'Workflow', spec: { templates: [{ container: main({ cpu: 1 }), sidecars: [main(H, { name: 'side' })] }] } },
    `main: none, side: ${MIB_4096}`,
  ],
};

test('each odd manifest gets a share or a clear answer', (t) => {
  for (const [name, [document, ...wanted]] of Object.entries(ODD)) {
    const said = convertDocument(document, all).pods.flatMap(({ outcome, containers, problems, warnings }) => [
      ...(outcome === 'share'
        ? [containers.map(({ container, share }) => `${container}: ${share?.meaning ?? 'none'}`).join(', ')]
        : []),
      ...(outcome === 'untouched' ? ['untouched'] : []),
      ...problems,
      ...warnings,
    ]);
    t.is(said.length, wanted.length, `${name}: ${said.join(' | ')}`);
    for (const [index, text] of wanted.entries())
      t.true(said[index]?.includes(text), `${name}: ${said[index]}, not ${text}`);
  }
});

test('each document of a List is read by itself', (t) => {
  const list = { kind: 'List', items: [ours('1Gi'), deployment({}, main(H))] };
  t.deepEqual(
    convertDocument(list, all).pods.map(({ outcome }) => outcome),
    ['share', 'share'],
  );
});

// knative.dev, "Configuring the Defaults ConfigMap": container-name-template is user-container.
test('the container of a Knative service needs no name', (t) => {
  const container = { image: 'x', resources: { limits: H } };
  const { pods } = convertDocument(
    { apiVersion: 'serving.knative.dev/v1', ...deployment({}, container, 'Service') },
    all,
  );
  t.deepEqual(
    pods.map(({ outcome, containers }) => [outcome, containers[0]?.container, containers[0]?.share?.meaning]),
    [['share', 'user-container', MIB_4096]],
  );
  t.is(convertDocument(deployment({}, container), all).pods[0]?.outcome, 'refused');
});

// Spark operator, user guide "Requesting GPU resources"; Tekton, "Compute resources"; Kubeflow Trainer, TrainJob.
test('an object that names GPUs outside of a pod is not passed over', (t) => {
  const said = "names nvidia.com/gpu outside of a pod's template, is not converted";
  const limits = { limits: { 'nvidia.com/gpu': 1 } };
  const objects = {
    SparkApplication: { executor: { gpu: { name: 'nvidia.com/gpu', quantity: 1 } } },
    TaskRun: { taskSpec: { steps: [{ name: 's', image: 'x', computeResources: limits }] } },
    TrainJob: { trainer: { numNodes: 2, resourcesPerNode: limits } },
  };
  for (const [kind, spec] of Object.entries(objects))
    t.is(unreadOf({ kind, metadata: { name: 'a' }, spec }), `${kind}/a: ${said}`);
  const quota = { kind: 'ResourceQuota', metadata: { name: 'q' }, spec: { hard: { 'requests.nvidia.com/gpu': 4 } } };
  t.regex(unreadOf(quota) ?? '', /^ResourceQuota\/q: names requests\.nvidia\.com\/gpu/);
  t.is(unreadOf({ kind: 'ConfigMap', metadata: { name: 'c' }, data: { a: 'nvidia.com/gpu.present' } }), undefined);
  t.is(unreadOf(pod({ containers: [main(H)], tolerations: [{ key: 'nvidia.com/gpu' }] })), undefined);
  const step = {
    container: main(H),
    tolerations: [{ key: 'nvidia.com/gpu' }],
    nodeSelector: { 'nvidia.com/gpu': 'x' },
  };
  t.is(unreadOf({ kind: 'Workflow', spec: { templates: [step] } }), undefined);
  t.is(unreadOf(isvc({ model: { resources: limits } })), undefined);
  // Volcano counts a job's minResources before any pod is there.
  const job = {
    kind: 'Job',
    metadata: { name: 'j' },
    spec: { minResources: limits.limits, tasks: [{ template: pod({ containers: [main(H)] }) }] },
  };
  t.is(unreadOf(job), `Job/j: ${said}`);
});
