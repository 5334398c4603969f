// What the webhook writes into a pod with a share, and that it leaves other pods alone.
import test from 'ava';
import { objectAt } from '../../../src/common/json.ts';
import { mutatePod } from '../../../webhook/mutate.ts';
import { answerOf, configured, creation, mainOf, patched, type Spec, sharePod, specOf } from './reviews.ts';

test('a pod without GPUs is allowed without a patch or a warning', (t) => {
  const answer = patched({
    metadata: {},
    spec: { containers: [{ name: 'web', resources: { limits: { cpu: '1' } } }] },
  });
  t.like(answer, { outcome: 'allowed', allowed: true, patch: [], warnings: [] });
});

test('a pod without a share may carry nothing that only a patched pod has', (t) => {
  const plain = { name: 'a' };
  const cases: [object, RegExp][] = [
    [
      { spec: { containers: [plain], volumes: [{ name: 'cotenant', csi: { driver: 'cotenant.io' } }] } },
      /asks for no share/,
    ],
    [{ spec: { containers: [plain], volumes: [{ name: 'x', csi: { driver: 'cotenant.io' } }] } }, /for another volume/],
    [
      { spec: { containers: [{ ...plain, volumeMounts: [{ name: 'cotenant', mountPath: '/x' }] }] } },
      /only the webhook mounts/,
    ],
    [
      { metadata: { annotations: { 'cotenant.io/grant': '{}' } }, spec: { containers: [plain] } },
      /only by the scheduler/,
    ],
    [
      { metadata: { annotations: { 'cotenant.io/request': '{}' } }, spec: { containers: [plain] } },
      /records a request/,
    ],
  ];
  for (const [pod, expected] of cases) t.regex(patched(pod).denial ?? '', expected);
});

test('a dialect’s amounts are replaced by ours in limits and requests', (t) => {
  const limits = { 'aliyun.com/gpu-mem': '3', 'aliyun.com/gpu-core.percentage': '30', cpu: '1' };
  const idle = { name: 'idle', resources: { limits: { 'aliyun.com/gpu-mem': '0' } } };
  const { pod } = patched(sharePod({ resources: { limits } }, { initContainers: [idle] }));
  const own = { 'cotenant.io/gpu': '1', 'cotenant.io/gpu-memory': '3Gi', 'cotenant.io/gpu-cores': '30' };
  t.deepEqual(mainOf(pod).resources, { limits: { cpu: '1', ...own }, requests: own });
  t.deepEqual(specOf(pod).initContainers?.[0]?.resources, { limits: {} });
});

test('variables that workloads of ACK read are set, and those of the pod stay', (t) => {
  const limits = { 'aliyun.com/gpu-mem': '8', 'aliyun.com/gpu-core.percentage': '30' };
  const own = { name: 'ALIYUN_COM_GPU_SCHD_WEIGHT', value: '2' };
  const labels = { 'aliyun.com/gpu-count': '4' };
  const ofAck = (pod: object) => (mainOf(pod).env ?? []).filter(({ name }) => name.startsWith('ALIYUN_'));
  const units = { ALIYUN_COM_GPU_MEM_CONTAINER: '2', ALIYUN_COM_GPU_MEM_DEV: '2' };
  const asEnv = (values: object) => Object.entries(values).map(([name, value]) => ({ name, value }));
  t.deepEqual(ofAck(patched(sharePod({ resources: { limits } }, {}, { labels })).pod), [
    ...asEnv(units),
    { ...own, value: '6' },
  ]);
  t.deepEqual(ofAck(patched(sharePod({ resources: { limits }, env: [own] }, {}, { labels })).pod), [
    own,
    ...asEnv(units),
  ]);
  t.deepEqual(ofAck(patched(sharePod()).pod), []);
  const open = configured({ rules: { dialects: ['ack'], allowMemoryIsolationOff: true } });
  const off = sharePod({ resources: { limits }, env: [{ name: 'CGPU_DISABLE', value: '1' }] });
  t.deepEqual(
    ofAck(patched(off, open).pod).map(({ name }) => name),
    ['ALIYUN_COM_GPU_MEM_CONTAINER', 'ALIYUN_COM_GPU_SCHD_WEIGHT'],
  );
});

test('variables that workloads of KAI read are set where the part of a GPU is known', (t) => {
  const kai = configured({ rules: { dialects: ['kai'] } });
  const varsOf = (annotations: object, env: object[] = []) => {
    const all = mainOf(patched(sharePod({ resources: undefined, env }, {}, { annotations }), kai).pod).env ?? [];
    return all.filter(({ name }) => /^(GPU_PORTION|RUNAI_)/.test(name)).map(({ name, value }) => `${name}=${value}`);
  };
  const both = (part: string) => [`GPU_PORTION=${part}`, `RUNAI_NUM_OF_GPUS=${part}`];
  t.deepEqual(varsOf({ 'gpu-fraction': '0.5' }), both('0.5'));
  t.deepEqual(varsOf({ 'gpu-fraction': '0.125', 'gpu-fraction-num-devices': '2' }), both('0.125'));
  t.deepEqual(varsOf({ 'gpu-fraction': '1' }), both('1'));
  t.deepEqual(varsOf({ 'gpu-memory': '2000' }), []);
  const own = { name: 'RUNAI_NUM_OF_GPUS', value: '1' };
  t.deepEqual(varsOf({ 'gpu-fraction': '0.5' }, [own]), ['RUNAI_NUM_OF_GPUS=1', 'GPU_PORTION=0.5']);
});

test('a variable of MetaGPU refers to the granted memory, and one of the pod stays', (t) => {
  const resources = { limits: { 'cnvrg.io/metagpu': '30' } };
  const memoryOf = (env: object[]) =>
    (mainOf(patched(sharePod({ resources, env })).pod).env ?? []).filter(({ name }) => name === 'METAGPU_MAX_MEM');
  const fieldRef = { apiVersion: 'v1', fieldPath: "metadata.annotations['gpu-memory.cotenant.io/main']" };
  t.deepEqual(memoryOf([]), [{ name: 'METAGPU_MAX_MEM', valueFrom: { fieldRef } }] as object[] as never);
  const own = { name: 'METAGPU_MAX_MEM', value: '4000' };
  t.deepEqual(memoryOf([own]), [own]);
});

test('a high priority of ACK counts where the namespace allows it', (t) => {
  const env = [{ name: 'ALIYUN_COM_GPU_HIGH_PRIO', value: '1' }];
  const pod = sharePod({ env, resources: { limits: { 'aliyun.com/gpu-mem': '3' } } });
  const recordIn = (priorities: string[]) => {
    const { pod: after, warnings } = patched(pod, configured({ rules: { dialects: ['ack'], priorities } }));
    const record = objectAt(objectAt(after, 'metadata'), 'annotations')['cotenant.io/request'];
    return [JSON.parse(String(record)).priority, warnings.length];
  };
  t.deepEqual(recordIn(['normal', 'high']), ['high', 0]);
  t.deepEqual(recordIn(['normal']), ['normal', 1]);
});

test('shares without a size of their own are counted in GPUs alone', (t) => {
  for (const limits of [{ 'cnvrg.io/metagpu': '150' }, { 'cotenant.io/gpu': '2' }]) {
    const { pod } = patched(sharePod({ resources: { limits } }));
    t.deepEqual(mainOf(pod).resources?.limits, { 'cotenant.io/gpu': limits['cotenant.io/gpu'] ?? '2' });
  }
});

test('an amount of the right value keeps its text', (t) => {
  const limits = { 'cotenant.io/gpu': '10', 'cotenant.io/gpu-memory': '10240Mi', 'cotenant.io/gpu-cores': '1k' };
  const { pod } = patched(sharePod({ resources: { limits } }));
  t.deepEqual(mainOf(pod).resources?.limits, limits);
});

test('rules differ by namespace', (t) => {
  const configuration = configured({ namespaces: { 'team-a': { dialects: [] }, 'team-b': { ack: { unit: 'MiB' } } } });
  const pod = sharePod({ resources: { limits: { 'aliyun.com/gpu-mem': '512' } } });
  const memoryIn = (namespace: string) => {
    const { outcome, pod: after } = answerOf(creation(pod, { namespace }), configuration);
    return [outcome, objectAt(mainOf(after).resources, 'limits')['cotenant.io/gpu-memory']];
  };
  t.deepEqual(memoryIn('team-a'), ['allowed', undefined]);
  t.deepEqual(memoryIn('team-b'), ['patched', '512Mi']);
  t.deepEqual(memoryIn('team-c'), ['patched', '512Gi']);
  t.deepEqual(memoryIn('constructor'), ['patched', '512Gi']);
});

// What other injectors do between our two calls.
const sidecar = { name: 'proxy', image: 'envoy' };
const OTHERS: Record<string, (spec: Spec) => Spec> = {
  'appends a sidecar': (spec) => ({ ...spec, containers: [...spec.containers, sidecar] }),
  'puts its sidecar first': (spec) => ({ ...spec, containers: [sidecar, ...spec.containers] }),
  'adds an init container': (spec) => ({ ...spec, initContainers: [sidecar] }),
  'appends a variable to each container': (spec) => ({
    ...spec,
    containers: spec.containers.map((each) => ({ ...each, env: [...(each.env ?? []), { name: 'ZONE', value: 'a' }] })),
  }),
  'puts a variable first': (spec) => ({
    ...spec,
    containers: spec.containers.map((each) => ({ ...each, env: [{ name: 'ZONE', value: 'a' }, ...(each.env ?? [])] })),
  }),
  'mounts a token': (spec) => ({
    ...spec,
    volumes: [{ name: 'token', emptyDir: {} }, ...spec.volumes],
    containers: spec.containers.map((each) => ({
      ...each,
      volumeMounts: [...(each.volumeMounts ?? []), { name: 'token', mountPath: '/var/run/secrets/token' }],
    })),
  }),
};
const STARTS: Record<string, object> = {
  'our names': { 'cotenant.io/gpu-memory': '2Gi', 'cotenant.io/gpu-cores': '10' },
  ACK: { 'aliyun.com/gpu-mem': '3' },
  MetaGPU: { 'cnvrg.io/metagpu': '30' },
};

for (const [dialect, limits] of Object.entries(STARTS)) {
  for (const [change, apply] of Object.entries(OTHERS)) {
    test(`a second call (${dialect}) after an injector ${change}`, (t) => {
      const first = patched(sharePod({ resources: { limits } }));
      const changed = { ...first.pod, spec: apply(specOf(first.pod)) };
      const second = patched(changed);
      t.true(second.allowed, second.denial);
      const fresh = [...specOf(changed).containers, ...(specOf(changed).initContainers ?? [])].filter(
        (each) => each === sidecar,
      );
      t.is(second.patch.length, fresh.length, 'one operation for each container that is new');
      for (const operation of second.patch) t.regex(operation.path, /\/(initContainers|containers)\/\d\/env$/);
      t.deepEqual(patched(second.pod).patch, []);
      t.deepEqual(mainOf(second.pod), mainOf(changed));
    });
  }
}

test('a later mount at /var/run is moved before ours, which it would cover', (t) => {
  const first = patched(sharePod());
  const main = mainOf(first.pod);
  const late = { name: 'run', mountPath: '/var/run' };
  const spec = specOf(first.pod);
  const changed = {
    ...first.pod,
    spec: {
      ...spec,
      volumes: [...spec.volumes, { name: 'run', emptyDir: {} }],
      containers: [{ ...main, volumeMounts: [...(main.volumeMounts ?? []), late] }],
    },
  };
  const second = patched(changed);
  t.deepEqual(
    mainOf(second.pod).volumeMounts?.map(({ mountPath }) => mountPath),
    ['/var/run', '/etc/ld.so.preload', '/run/cotenant', '/run/cotenant/limits', '/run/cotenant/ledger'],
  );
  t.deepEqual(patched(second.pod).patch, []);
});

test('mutating a pod leaves the given object unchanged', (t) => {
  const pod = sharePod({ env: [{ name: 'LD_AUDIT', value: 'x' }] }, { volumes: [{ name: 'own', emptyDir: {} }] });
  const before = structuredClone(pod);
  const injection = mutatePod(pod, 'team-a', configured());
  t.deepEqual(pod, before);
  t.is(injection.kind, 'patched');
  if (injection.kind === 'patched') t.is(specOf(injection.pod).volumes[0], specOf(pod).volumes[0]);
});

test('a template becomes amounts, and the patched pod reads the same', (t) => {
  const configuration = configured({ rules: { templates: { small: { gpuMemory: '4Gi' } } } });
  const annotations = { 'cotenant.io/template': 'small' };
  const first = patched(sharePod({ resources: {} }, {}, { annotations }), configuration);
  t.deepEqual(mainOf(first.pod).resources?.requests, { 'cotenant.io/gpu': '1', 'cotenant.io/gpu-memory': '4Gi' });
  const spec = specOf(first.pod);
  const appended = { ...first.pod, spec: { ...spec, containers: [...spec.containers, sidecar] } };
  const second = patched(appended, configuration);
  t.deepEqual(
    second.patch.map(({ path }) => path),
    ['/spec/containers/1/env'],
  );
});

test('the record of a pod from before the order of init containers was recorded stays', (t) => {
  const init = { name: 'prep', resources: { limits: { 'cotenant.io/gpu-memory': '2Gi' } } };
  const side = { ...init, name: 'side', restartPolicy: 'Always' };
  const first = patched(sharePod({}, { initContainers: [init, side] }));
  const annotations = objectAt(objectAt(first.pod, 'metadata'), 'annotations') as Record<string, string>;
  const record = annotations['cotenant.io/request'] ?? '';
  const earlier = record.replaceAll(/"initIndex":\d,/g, '');
  t.not(earlier, record);
  const before = { ...first.pod, metadata: { annotations: { ...annotations, 'cotenant.io/request': earlier } } };
  t.deepEqual(patched(before).patch, []);
});

test('schedulers that the configuration lists are replaced, others are refused', (t) => {
  const configuration = configured({ replacedSchedulers: ['jhub-user-scheduler'] });
  const pod = sharePod({}, { schedulerName: 'jhub-user-scheduler' });
  t.is(specOf(patched(pod, configuration).pod).schedulerName, 'cotenant-scheduler');
  t.false(patched(pod).allowed);
});

// GKE, AKS and EKS taint GPU nodes with nvidia.com/gpu:NoSchedule; the admission plugin ExtendedResourceToleration of
// Kubernetes tolerates it with this form for pods that ask for that resource.
test('a pod with a share tolerates the configured taints, once', (t) => {
  const configuration = configured({ toleratedTaints: ['nvidia.com/gpu', 'sku'] });
  const tolerationsOf = (given?: object[]) => {
    const first = patched(sharePod({}, given ? { tolerations: given } : {}), configuration);
    t.deepEqual(patched(first.pod, configuration).patch, []);
    return (objectAt(first.pod, 'spec') as { tolerations?: object[] }).tolerations;
  };
  const ours = (key: string) => ({ key, operator: 'Exists', effect: 'NoSchedule' });
  const other = { key: 'a', operator: 'Equal', value: 'b', effect: 'NoSchedule' };
  t.deepEqual(tolerationsOf(), [ours('nvidia.com/gpu'), ours('sku')]);
  t.deepEqual(tolerationsOf([other, { key: 'sku', operator: 'Exists' }]), [
    other,
    { key: 'sku', operator: 'Exists' },
    ours('nvidia.com/gpu'),
  ]);
  t.deepEqual(tolerationsOf([{ operator: 'Exists' }]), [{ operator: 'Exists' }]);
  const equal = { key: 'sku', operator: 'Equal', value: 'gpu', effect: 'NoSchedule' };
  t.deepEqual(tolerationsOf([equal]), [equal, ours('nvidia.com/gpu'), ours('sku')]);
  const without = patched({ spec: { containers: [{ name: 'a' }] } }, configuration);
  t.deepEqual(without.patch, []);
});
