import test from 'ava';
import { uuidsAnnotation } from '../../../src/api/names.ts';
import { objectAt } from '../../../src/common/json.ts';
import { mutatePod } from '../../../webhook/mutate.ts';
import { answerOf, configured, creation, sharePod } from './reviews.ts';

type Variable = { name: string; value?: string; valueFrom?: object };
type Container = {
  name: string;
  env?: Variable[];
  volumeMounts?: { mountPath: string; name: string }[];
  resources?: { limits?: object; requests?: object };
};
type Spec = { containers: Container[]; initContainers?: Container[]; volumes: object[]; schedulerName: string };

const specOf = (pod: object) => objectAt(pod, 'spec') as unknown as Spec;
const mainOf = (pod: object) => specOf(pod).containers.find(({ name }) => name === 'main') as Container;
const patched = (pod: object, configuration = configured()) => answerOf(creation(pod), configuration);
const granted = (container: string): Variable => ({
  name: 'NVIDIA_VISIBLE_DEVICES',
  valueFrom: { fieldRef: { apiVersion: 'v1', fieldPath: `metadata.annotations['${uuidsAnnotation(container)}']` } },
});
const capabilities: Variable = { name: 'NVIDIA_DRIVER_CAPABILITIES', value: 'compute,utility' };

test('a pod without GPUs is allowed without a patch or a warning', (t) => {
  const answer = patched({
    metadata: {},
    spec: { containers: [{ name: 'web', resources: { limits: { cpu: '1' } } }] },
  });
  t.like(answer, { outcome: 'allowed', allowed: true, patch: [], warnings: [] });
});

test('a pod that sees devices without a share is left alone, with a warning', (t) => {
  const env = (value: string) => ({
    spec: { containers: [{ name: 'a', env: [{ name: 'NVIDIA_VISIBLE_DEVICES', value }] }] },
  });
  t.like(patched(env('all')), {
    outcome: 'allowed',
    patch: [],
    warnings: ['a: NVIDIA_VISIBLE_DEVICES without a share: GPU use is reported as foreign on shared nodes'],
  });
  t.like(patched(env('void')), { outcome: 'allowed', patch: [], warnings: [] });
});

test('choices without a share are left alone, with a warning', (t) => {
  const pod = {
    metadata: { annotations: { 'cotenant.io/placement': 'spread' } },
    spec: { containers: [{ name: 'a' }] },
  };
  t.like(patched(pod), {
    patch: [],
    warnings: ['cotenant.io/placement: no effect, because no container asks for a share of a GPU'],
  });
});

test('a misspelled annotation of ours gets a warning', (t) => {
  const annotations = { 'cotenant.io/placment': 'spread', 'x.cotenant.io/y': '', 'cotenant.io.example.com/z': '' };
  t.deepEqual(patched(sharePod({}, {}, { annotations })).warnings, [
    'annotation cotenant.io/placment is not known to Cotenant and has no effect',
    'annotation x.cotenant.io/y is not known to Cotenant and has no effect',
  ]);
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

test("devices of a share come from its grant; a tenant's own value is replaced", (t) => {
  const env = [
    { name: 'NVIDIA_VISIBLE_DEVICES', value: 'all' },
    { name: 'A', value: '1' },
    { name: 'NVIDIA_VISIBLE_DEVICES', value: '0' },
    { name: 'NVIDIA_DRIVER_CAPABILITIES', value: 'all' },
  ];
  const devices = [
    ['nri', { name: 'NVIDIA_VISIBLE_DEVICES', value: 'void' }],
    ['environment', granted('main')],
  ] as const;
  for (const [deviceRoute, visible] of devices) {
    const answer = patched(sharePod({ env }), configured({ deviceRoute }));
    t.deepEqual(mainOf(answer.pod).env, [visible, { name: 'A', value: '1' }, capabilities]);
    t.deepEqual(answer.warnings, [
      'main: NVIDIA_VISIBLE_DEVICES is replaced',
      'main: NVIDIA_DRIVER_CAPABILITIES is replaced; allowed are compute, utility',
    ]);
  }
});

const REQUIRED = 'required-plugins.noderesource.dev';
const requiredOf = (annotations: Record<string, string>, settings: object = {}) => {
  const spec = { containers: [mainOf(sharePod()), { name: 'side' }] };
  const answer = patched(sharePod({}, spec, { annotations }), configured(settings));
  const given = Object.entries(objectAt(objectAt(answer.pod, 'metadata'), 'annotations'));
  return { answer, required: Object.fromEntries(given.filter(([key]) => key.startsWith(REQUIRED))) };
};

test('with deviceRoute nri, the runtime must require our plugin', (t) => {
  const cases: [given: Record<string, string>, wanted: Record<string, string>][] = [
    [{}, { [REQUIRED]: '["cotenant"]' }],
    [{ [REQUIRED]: '["numa"]' }, { [REQUIRED]: '["numa","cotenant"]' }],
    [{ [REQUIRED]: '[ "cotenant", "numa" ]' }, { [REQUIRED]: '[ "cotenant", "numa" ]' }],
    // What is more special wins with the runtime, so it must name us too; other containers are not ours.
    [
      { [`${REQUIRED}/pod`]: '[]', [`${REQUIRED}/container.main`]: '["a"]', [`${REQUIRED}/container.side`]: '[]' },
      {
        [REQUIRED]: '["cotenant"]',
        [`${REQUIRED}/pod`]: '["cotenant"]',
        [`${REQUIRED}/container.main`]: '["a","cotenant"]',
        [`${REQUIRED}/container.side`]: '[]',
      },
    ],
  ];
  for (const [given, wanted] of cases) {
    const { answer, required } = requiredOf(given);
    t.deepEqual(required, wanted);
    t.deepEqual(patched(answer.pod).patch, [], 'a second pass changes nothing');
    t.deepEqual(requiredOf(given, { deviceRoute: 'environment' }).required, given);
  }
  for (const text of ['numa', '{}', '[1]']) {
    t.is(
      requiredOf({ [`${REQUIRED}/pod`]: text }).answer.denial,
      `422 Invalid: metadata.annotations["${REQUIRED}/pod"]: ${JSON.stringify(text)} is not a list of names; write them as JSON, such as ["cotenant"]`,
    );
  }
});

test('driver capabilities within the allowed ones stay', (t) => {
  const chosen = (value: string, settings: object = {}) => {
    const env = [{ name: 'NVIDIA_DRIVER_CAPABILITIES', value }];
    return mainOf(patched(sharePod({ env }), configured(settings)).pod).env?.[0]?.value;
  };
  t.is(chosen('utility'), 'utility');
  t.is(chosen('utility,compute'), 'utility,compute');
  t.is(chosen('compute,graphics'), 'compute');
  t.is(chosen(' utility ,,compute, utility'), 'utility,compute');
  t.is(chosen('graphics'), 'compute,utility');
  t.is(chosen(''), 'compute,utility');
  t.is(chosen('all'), 'compute,utility');
  const drawing = { namespaces: { 'team-a': { driverCapabilities: ['compute', 'utility', 'graphics', 'video'] } } };
  t.is(chosen('compute,graphics', drawing), 'compute,graphics');
  t.is(chosen('all', drawing), 'compute,utility,graphics,video');
  t.is(chosen('compute, all', drawing), 'compute,utility,graphics,video');
  t.is(chosen('graphics, display', drawing), 'graphics');
  t.is(
    chosen('graphics', { namespaces: { other: drawing.namespaces['team-a'] } }),
    'compute,utility',
    'not its namespace',
  );
  t.is(chosen('compute', { rules: { driverCapabilities: ['utility'] } }), 'utility');
});

test('a container whose driver capabilities differ from its request gets a warning', (t) => {
  const drawing = configured({ rules: { driverCapabilities: ['compute', 'utility', 'graphics', 'video'] } });
  const warned = (value: string | undefined, configuration = drawing) => {
    const env = value === undefined ? [] : [{ name: 'NVIDIA_DRIVER_CAPABILITIES', value }];
    const answer = patched(sharePod({ env }), configuration);
    t.deepEqual(patched(answer.pod, configuration).warnings, [], 'a second pass says nothing');
    return answer.warnings.map((text) => text.replace(/^main: NVIDIA_DRIVER_CAPABILITIES /, ''));
  };
  const allowed = 'allowed are compute, utility, graphics, video';
  t.deepEqual(warned(undefined), ['is set to compute,utility; the pod may set more: graphics, video']);
  t.deepEqual(warned('video, compute'), []);
  t.deepEqual(warned('compute,display,graphics,ngx'), [`loses display, ngx; ${allowed}`]);
  t.deepEqual(warned('compute,display,Graphics'), [`loses display, unknown names; ${allowed}`]);
  t.deepEqual(warned('compute,\r\nx'), [`loses unknown names; ${allowed}`]);
  for (const value of ['all', 'display', '', ' , ']) t.deepEqual(warned(value), [`is replaced; ${allowed}`], value);
  t.deepEqual(warned(undefined, configured()), [], 'nothing else is allowed, as anybody expects');
  t.deepEqual(warned(undefined, configured({ rules: { driverCapabilities: ['video'] } })), []);
});

test('variables that would bypass a limit are removed, only where there is a share', (t) => {
  const names = [
    'CUDA_MPS_PIPE_DIRECTORY',
    'CUDA_MPS_ACTIVE_THREAD_PERCENTAGE',
    'CUDA_DISABLE_CONTROL',
    'CGPU_DISABLE',
    'LD_AUDIT',
    'NVIDIA_GPU_MEMORY_LIMIT',
    'NVIDIA_MIG_CONFIG_DEVICES',
    'COTENANT_OFF',
    'LD_PRELOAD',
    'LD_LIBRARY_PATH',
    'CUDA_VISIBLE_DEVICES',
    'NVIDIA_REQUIRE_CUDA',
  ];
  const env = names.map((name) => ({ name, value: '1' }));
  const { pod, warnings } = patched(sharePod({ env }, { initContainers: [{ name: 'init', env }] }));
  const kept = mainOf(pod).env?.map(({ name }) => name);
  t.deepEqual(kept, [
    'LD_PRELOAD',
    'LD_LIBRARY_PATH',
    'CUDA_VISIBLE_DEVICES',
    'NVIDIA_REQUIRE_CUDA',
    'NVIDIA_VISIBLE_DEVICES',
    'NVIDIA_DRIVER_CAPABILITIES',
  ]);
  t.deepEqual(specOf(pod).initContainers?.[0]?.env, [...env, { name: 'NVIDIA_VISIBLE_DEVICES', value: 'void' }]);
  t.is(warnings.filter((warning) => warning.includes('is removed')).length, 7, 'CGPU_DISABLE had its effect');
});

test('every warning fits the 120 characters that kubectl shows', (t) => {
  const name = 'a'.repeat(63);
  const env = ['CUDA_MPS_PINNED_DEVICE_MEM_LIMIT', 'NVIDIA_VISIBLE_DEVICES', 'LD_AUDIT'].map((key) => ({
    name: key,
    value: '',
  }));
  const annotations = { 'cotenant.io/later': 'fixed' };
  const limits = { 'cotenant.io/gpu-cores': '7' };
  const { warnings } = patched(sharePod({ name, env, resources: { limits } }, {}, { annotations }));
  t.is(warnings.length, 5);
  for (const warning of warnings) t.true(warning.length <= 120, warning);
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

test('a share that may not hold a CUDA context is admitted with a warning', (t) => {
  const warningsOf = (amount: string) =>
    patched(sharePod({ resources: { limits: { 'cotenant.io/gpu-memory': amount } } })).warnings;
  t.regex(warningsOf('100Mi').join(), /^main: 100 MiB of a GPU may not hold a CUDA context/);
  t.deepEqual(warningsOf('512Mi'), []);
});
