// Pods that try to get more than they ask for, or past their limits: each is refused, or what it tries is gone from the
// patched pod. The judge below knows the patched pod's rules by itself, from docs/operate/webhook.md.
import test from 'ava';
import { FOREIGN_DIALECT_NAMES } from '../../../src/api/request.ts';
import type { JsonObject } from '../../../src/common/json.ts';
import { answerOf, configured, creation, sharePod } from './reviews.ts';

const configuration = configured({
  rules: { dialects: FOREIGN_DIALECT_NAMES, nvidiaReplicas: 4, most: { gpuMemory: '64Gi' } },
});

type Mount = { name?: string; mountPath?: string; subPath?: string; readOnly?: boolean };
type Container = {
  name?: string;
  env?: { name?: string; value?: string; valueFrom?: object }[];
  resources?: { limits?: Record<string, unknown>; requests?: Record<string, unknown> };
  volumeMounts?: Mount[];
  securityContext?: { privileged?: boolean; capabilities?: { add?: string[] } };
};
type Spec = {
  containers: Container[];
  initContainers?: Container[];
  volumes?: { name?: string; csi?: { driver?: string } }[];
  schedulerName?: string;
  nodeName?: string;
  hostPID?: boolean;
};

const ESCAPES = /^(CAP_)?(ALL|SYS_ADMIN|SYS_PTRACE|SYS_MODULE|SYS_RAWIO|BPF|MKNOD)$/i;
const SWITCHES =
  /^(CUDA_MPS_|NVIDIA_GPU_MEMORY_|LD_AUDIT$|CUDA_DISABLE_CONTROL$|DISABLE_GPU_LIMITER$|CGPU_DISABLE$|COTENANT_)/;
const COVERED = /^\/*(var\/+)?(run\/+cotenant|etc\/+ld\.so\.preload)(\/|$)/;
const OURS = ['/etc/ld.so.preload', '/run/cotenant', '/run/cotenant/ledger', '/run/cotenant/limits'];

/** What a pod that was let through could do with its GPUs beyond what it asked for. */
function dangersIn(pod: JsonObject): string[] {
  const spec = pod.spec as Spec;
  const all = [...spec.containers, ...(spec.initContainers ?? [])];
  const amounts = ({ resources }: Container) => Object.keys({ ...resources?.limits, ...resources?.requests });
  const isShare = (container: Container) => amounts(container).some((name) => name.startsWith('cotenant.io/'));
  const dangers: string[] = [];
  const note = (is: boolean | undefined, what: string) => is && dangers.push(what);
  const hasShare = all.some(isShare);
  const ours = (spec.volumes ?? []).filter(({ name, csi }) => name === 'cotenant' || csi?.driver === 'cotenant.io');
  note(ours.length !== (hasShare ? 1 : 0), 'volumes of Cotenant');
  for (const container of all) {
    const mounts = container.volumeMounts ?? [];
    const own = mounts.filter(({ name }) => name === 'cotenant');
    const places = isShare(container) ? OURS : [];
    note(
      own
        .map(({ mountPath }) => mountPath)
        .sort()
        .join() !== places.join(),
      `mounts of ${container.name}`,
    );
    note(
      own.some(({ mountPath, readOnly }) => mountPath !== '/run/cotenant/ledger' && !readOnly),
      'a writable mount',
    );
    note(
      own.some(
        ({ subPath = '' }) => /^(containers|ledgers)\//.test(subPath) && subPath.split('/')[1] !== container.name,
      ),
      'the files of another container',
    );
    if (!hasShare) continue;
    const visible = (container.env ?? []).filter(({ name }) => name === 'NVIDIA_VISIBLE_DEVICES');
    note(visible.length !== 1 || visible[0]?.value !== 'void', `devices of ${container.name}`);
    note(
      amounts(container).some((name) => /^(nvidia|aliyun|cnvrg|volcano|tencent|koordinator)\b/.test(name)),
      'a resource of another system',
    );
    if (!isShare(container)) continue;
    note(container.securityContext?.privileged, 'a privileged container');
    note(
      container.securityContext?.capabilities?.add?.some((name) => ESCAPES.test(name)),
      'a capability',
    );
    note(
      container.env?.some(({ name = '' }) => SWITCHES.test(name)),
      'a variable that switches limits off',
    );
    note(
      mounts.some(({ name, mountPath = '' }) => name !== 'cotenant' && COVERED.test(mountPath)),
      'a covered path',
    );
    const bytes = container.resources?.limits?.['cotenant.io/gpu-memory'];
    note(bytes === undefined, 'no size, where the namespace has a largest one');
  }
  if (hasShare) {
    note(spec.hostPID, 'processes of the host');
    note(spec.nodeName !== undefined, 'a node of its choice');
    note(spec.schedulerName !== 'cotenant-scheduler', `scheduler ${spec.schedulerName}`);
  }
  const { annotations = {} } = (pod.metadata ?? {}) as { annotations?: Record<string, string> };
  const forged = ['cotenant.io/grant', 'cotenant.io/compute', 'cotenant.io/enforcement-override'];
  note(
    Object.keys(annotations).some((key) => forged.includes(key) || key.startsWith('gpu-uuids.')),
    'a forged grant',
  );
  note(!hasShare && annotations['cotenant.io/request'] !== undefined, 'a record without a share');
  return dangers;
}

const env = (name: string, value = '1') => sharePod({ env: [{ name, value }] });
const asking = (limits: object, metadata: object = {}) => sharePod({ resources: { limits } }, {}, metadata);
const annotated = (annotations: object) => sharePod({}, {}, { annotations });
const beside = (more: object) =>
  sharePod({}, { containers: [(sharePod().spec as unknown as Spec).containers[0], { name: 'side', ...more }] });
const RECORD = (dialect: string, asked: object, memory: object) =>
  JSON.stringify({
    version: 1,
    priority: 'normal',
    containers: [{ name: 'main', kind: 'app', dialect, asked, memoryIsolation: 'on', gpus: [{ memory }] }],
  });
const recorded = (record: string, limits: object, more: object = {}) =>
  sharePod({ resources: { limits } }, {}, { annotations: { 'cotenant.io/request': record, ...more } });
const GIB = 2 ** 30;

const HOSTILE: Record<string, JsonObject> = {
  // Variables.
  ...Object.fromEntries(
    [
      'CUDA_MPS_PIPE_DIRECTORY',
      'CUDA_MPS_ACTIVE_THREAD_PERCENTAGE',
      'CUDA_MPS_PINNED_DEVICE_MEM_LIMIT',
      'NVIDIA_GPU_MEMORY_LIMIT',
      'NVIDIA_GPU_MEMORY_REQUEST',
      'LD_AUDIT',
      'CUDA_DISABLE_CONTROL',
      'DISABLE_GPU_LIMITER',
      'CGPU_DISABLE',
      'COTENANT_LIMITS',
    ].map((name) => [`variable ${name}`, env(name)]),
  ),
  ...Object.fromEntries(
    ['all', '0,1', 'GPU-1', '', 'none', '0:0'].map((value) => [
      `devices "${value}"`,
      env('NVIDIA_VISIBLE_DEVICES', value),
    ]),
  ),
  'devices named twice': sharePod({
    env: [
      { name: 'NVIDIA_VISIBLE_DEVICES', value: 'void' },
      { name: 'NVIDIA_VISIBLE_DEVICES', value: 'all' },
    ],
  }),
  'devices from elsewhere': sharePod({
    env: [{ name: 'NVIDIA_VISIBLE_DEVICES', valueFrom: { configMapKeyRef: { name: 'x', key: 'y' } } }],
  }),
  'devices of a neighbor': beside({ env: [{ name: 'NVIDIA_VISIBLE_DEVICES', value: 'all' }] }),
  'devices of an init container': sharePod(
    {},
    {
      initContainers: [{ name: 'first', env: [{ name: 'NVIDIA_VISIBLE_DEVICES', value: 'all' }] }],
    },
  ),
  // Rights.
  privileged: sharePod({ securityContext: { privileged: true } }),
  ...Object.fromEntries(
    ['ALL', 'SYS_ADMIN', 'cap_sys_admin', 'SYS_PTRACE', 'SYS_MODULE', 'SYS_RAWIO', 'BPF', 'MKNOD'].map((name) => [
      `capability ${name}`,
      sharePod({ securityContext: { capabilities: { add: [name] } } }),
    ]),
  ),
  'processes of the host': sharePod({}, { hostPID: true }),
  'a node of its choice': sharePod({}, { nodeName: 'gpu-1' }),
  'another scheduler': sharePod({}, { schedulerName: 'mine' }),
  // Mounts.
  ...Object.fromEntries(
    [
      '/etc/ld.so.preload',
      '//etc/ld.so.preload',
      '/run/cotenant',
      '/var/run/cotenant/limits',
      '/run/../run/cotenant',
      '/run/cotenant/ledger',
    ].map((mountPath) => [
      `a mount at ${mountPath}`,
      sharePod({ volumeMounts: [{ name: 'own', mountPath }] }, { volumes: [{ name: 'own', emptyDir: {} }] }),
    ]),
  ),
  'our volume, writable': sharePod({ volumeMounts: [{ name: 'cotenant', mountPath: '/x' }] }),
  "a neighbor's files": sharePod({
    volumeMounts: [
      { name: 'cotenant', mountPath: '/run/cotenant/limits', subPath: 'containers/side/limits', readOnly: true },
    ],
  }),
  'our driver under another name': sharePod({}, { volumes: [{ name: 'x', csi: { driver: 'cotenant.io' } }] }),
  'our volume in a neighbor': beside({ volumeMounts: [{ name: 'cotenant', mountPath: '/x' }] }),
  'our volume without a share': {
    metadata: {},
    spec: { containers: [{ name: 'a' }], volumes: [{ name: 'cotenant', csi: { driver: 'cotenant.io' } }] },
  },
  // Forged annotations.
  'a grant': annotated({ 'cotenant.io/grant': '{"version":1}' }),
  'GPUs of a container': annotated({ 'gpu-uuids.cotenant.io/main': 'GPU-1' }),
  'compute of an operator': annotated({ 'cotenant.io/compute': '{"main":{"weight":1000}}' }),
  'a weaker enforcement': annotated({ 'cotenant.io/enforcement-override': 'off' }),
  'no enforcement': annotated({ 'cotenant.io/enforcement': 'off' }),
  'no isolation': annotated({ 'cotenant.io/memory-isolation': 'off' }),
  'high priority': annotated({ 'cotenant.io/priority': 'high' }),
  'a GPU of its choice': annotated({ 'cotenant.io/gpu-uuid': 'GPU-1' }),
  'a record that is none': annotated({ 'cotenant.io/request': '{}' }),
  'a record without a share': {
    metadata: {
      annotations: {
        'cotenant.io/request': RECORD('kai', { 'gpu-fraction': '0.5' }, { kind: 'percent', percent: 50 }),
      },
    },
    spec: { containers: [{ name: 'main' }] },
  },
  'a record of more than the resources': recorded(RECORD('hami', { 'nvidia.com/gpumem': '1024' }, { kind: 'whole' }), {
    'cotenant.io/gpu': '1',
  }),
  'a record of a whole GPU as a fraction': recorded(RECORD('kai', { 'gpu-fraction': '1' }, { kind: 'whole' }), {
    'cotenant.io/gpu': '1',
  }),
  'a record of a dialect for the amounts of none': recorded(
    RECORD('cotenant', {}, { kind: 'bytes', bytes: 80 * GIB }),
    { 'cotenant.io/gpu-memory': '1Gi' },
  ),
  'a record with a limit above what is counted': recorded(
    RECORD('kai', { 'gpu-memory': '1024', 'gpu-memory-limit': '65536' }, { kind: 'bytes', bytes: GIB }),
    { 'cotenant.io/gpu': '1', 'cotenant.io/gpu-memory': '1Gi' },
  ),
  'a record with isolation off': recorded(
    RECORD('hami', { 'nvidia.com/gpumem': '1024', CUDA_DISABLE_CONTROL: 'true' }, { kind: 'bytes', bytes: GIB }),
    { 'cotenant.io/gpu': '1', 'cotenant.io/gpu-memory': '1Gi' },
  ),
  'a fraction beside amounts of ours': recorded('x', { 'cotenant.io/gpu-memory': '1Gi' }, { 'gpu-fraction': '0.9' }),
  // Amounts.
  ...Object.fromEntries(
    ['-1', '1e30', '9E', '999999999999999999999', '0.5', 'NaN', '1Gi;', '00x1', ' 1Gi', '1Gi\u0000', '65Gi'].map(
      (text) => [`memory "${text}"`, asking({ 'cotenant.io/gpu-memory': text })],
    ),
  ),
  'memory that is a list': asking({ 'cotenant.io/gpu-memory': ['1Gi'] }),
  'different requests': sharePod({
    resources: { limits: { 'cotenant.io/gpu-memory': '64Gi' }, requests: { 'cotenant.io/gpu-memory': '1Gi' } },
  }),
  'a request without a limit': sharePod({ resources: { requests: { 'cotenant.io/gpu-memory': '1Gi' } } }),
  'a whole GPU where sizes have a limit': asking({ 'nvidia.com/gpu': '1' }),
  'a fraction where sizes have a limit': asking({}, { annotations: { 'gpu-fraction': '0.99' } }),
  'a fraction below nothing': asking({}, { annotations: { 'gpu-fraction': '-0.5' } }),
  'MIG of no GPU': asking({ 'nvidia.com/mig-7g.999gb': '64' }),
  "NVIDIA's request for a container by a hostile name": asking(
    {},
    {
      annotations: { 'nvidia.com/container.__proto__.gpu-memory.request': '1Gi' },
    },
  ),
  'two dialects': asking({ 'nvidia.com/gpumem': '1024', 'koordinator.sh/gpu': '50' }),
  'a resource of a name like ours': asking({ 'cotenant.io/gpu-memory': '1Gi', 'nvidia.com/gpu-80gb': '1' }),
  'isolation off by HAMi': sharePod({
    env: [{ name: 'CUDA_DISABLE_CONTROL', value: 'true' }],
    resources: { limits: { 'nvidia.com/gpumem': '1024' } },
  }),
  'isolation off by ACK': sharePod({
    env: [{ name: 'CGPU_DISABLE', value: '1' }],
    resources: { limits: { 'aliyun.com/gpu-mem': '1' } },
  }),
  'isolation off from elsewhere': sharePod({
    env: [{ name: 'CGPU_DISABLE', valueFrom: { fieldRef: { fieldPath: 'metadata.name' } } }],
    resources: { limits: { 'aliyun.com/gpu-mem': '1' } },
  }),
};

const outcomes = { refused: 0, defused: 0 };
for (const [name, pod] of Object.entries(HOSTILE)) {
  test(`a hostile pod is refused or defused: ${name}`, (t) => {
    const mutated = answerOf(creation(pod), configuration);
    if (!mutated.allowed) {
      t.regex(mutated.denial ?? '', /^(403 Forbidden|422 Invalid): /);
      outcomes.refused += 1;
      return;
    }
    t.deepEqual(dangersIn(mutated.pod), []);
    t.true(answerOf(creation(mutated.pod), configuration, 'validate').allowed);
    outcomes.defused += 1;
  });
}

test('enough are refused and defused, and unpatched pods are dangerous to the judge', (t) => {
  t.true(outcomes.refused >= 60 && outcomes.defused >= 20, JSON.stringify(outcomes));
  const unseen = Object.entries(HOSTILE).filter(([, pod]) => dangersIn(pod).length === 0);
  // Amounts, and annotations without a share, are no danger by themselves.
  t.true(unseen.length < 10, unseen.map(([name]) => name).join());
});

// What a tenant can write in one pod of some MiB. Of processor time, so that no busy machine decides; the first took 11 s
// when each number was looked up among all containers.
test('a pod with as many entries as fit is answered in a time that grows with its size', (t) => {
  const entries = (count: number, of: (index: number) => object) => Array.from({ length: count }, (_, at) => of(at));
  const numbers = {
    metadata: { annotations: { 'vke.volcengine.com/container-multiple-gpu': '2,'.repeat(130_000) } },
    spec: { containers: entries(20_000, (at) => ({ name: `c${at}` })) },
  };
  const named = {
    metadata: {
      annotations: Object.fromEntries(
        Array.from({ length: 5000 }, (_, at) => [`nvidia.com/container.x${at}.gpu-memory.request`, '1Gi']),
      ),
    },
    spec: numbers.spec,
  };
  const volumeMounts = entries(1000, () => ({ name: 'v999', mountPath: '/etc', readOnly: true }));
  const resources = { limits: { 'cotenant.io/gpu-memory': '1Gi' } };
  const mounts = sharePod(
    { volumeMounts },
    {
      volumes: entries(1000, (at) => ({ name: `v${at}`, emptyDir: {} })),
      initContainers: entries(400, (at) => ({ name: `i${at}`, resources, volumeMounts })),
    },
  );
  for (const [what, pod] of Object.entries({ numbers, named, mounts })) {
    const before = process.cpuUsage();
    const { allowed, denial = '' } = answerOf(creation(pod), configuration);
    const { user, system } = process.cpuUsage(before);
    t.log(what, (user + system) / 1e6, 's');
    t.false(allowed);
    t.true(denial.length < 10_000, what);
    t.true(user + system < 5e6, `${what}: ${(user + system) / 1e6} s of processor`);
  }
});
