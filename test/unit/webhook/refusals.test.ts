// What a pod with a share may not have: one row per way around the limits, with the message that is returned.
import test from 'ava';
import { answerOf, configured, creation, sharePod } from './reviews.ts';

const COVERS =
  "would cover /etc/ld.so.preload or /run/cotenant, through which the container's limits reach it; write another path";
const LEAVES = 'would let the container escape its limits; leave';
const ONLY =
  'the only one allowed is {"name":"cotenant","csi":{"driver":"cotenant.io"}}, which the webhook adds itself';
const ours = { name: 'cotenant', csi: { driver: 'cotenant.io' } };
const mounting = (mountPath: string, name = 'own') =>
  sharePod({ volumeMounts: [{ name, mountPath }] }, { volumes: [{ name: 'own', emptyDir: {} }] });
const capable = (add: string[]) => sharePod({ securityContext: { capabilities: { add } } });
const mountRow = (path: string): [object, string] => [
  mounting(path),
  `spec.containers[0].volumeMounts[0].mountPath: ${JSON.stringify(path)} ${COVERS}`,
];
const capabilityRow = (name: string): [object, string] => [
  capable(['NET_ADMIN', name]),
  `spec.containers[0].securityContext.capabilities.add[1]: "${name}" ${LEAVES} out ALL, SYS_ADMIN, SYS_MODULE, SYS_RAWIO, BPF, MKNOD, SYS_PTRACE in a pod with a share of a GPU`,
];

const PLUGIN =
  "is given by NVIDIA's device plugin, which does not run on nodes with shares; leave it out, or write cotenant.io/gpu: 1 without cotenant.io/gpu-memory for a whole GPU";
const LONG = 'is too long; write at most 1000 entries in a pod with a share of a GPU';
const named = (count: number, more: object = {}) =>
  Array.from({ length: count }, (_, index) => ({ name: `n${index}`, ...more }));
const longRow = (path: string, pod: object): [object, string] => [pod, `${path}: a list of 1001 ${LONG}`];

const REFUSED: Record<string, [pod: object, message: string]> = {
  'a privileged container': [
    sharePod({ securityContext: { privileged: true } }),
    `spec.containers[0].securityContext.privileged: true ${LEAVES} it out in a pod with a share of a GPU`,
  ],
  'too many variables': longRow('spec.containers[0].env', sharePod({ env: named(1001, { value: '1' }) })),
  'too many mounts': longRow(
    'spec.containers[0].volumeMounts',
    sharePod({ volumeMounts: named(1001, { mountPath: '/data' }) }),
  ),
  'too many block devices': longRow(
    'spec.containers[0].volumeDevices',
    sharePod({ volumeDevices: named(1001, { devicePath: '/dev/x' }) }),
  ),
  'too many volumes': longRow('spec.volumes', sharePod({}, { volumes: named(1001, { emptyDir: {} }) })),
  'too many init containers': longRow('spec.initContainers', sharePod({}, { initContainers: named(1001) })),
  'too many variables in a container without a share': longRow(
    'spec.initContainers[0].env',
    sharePod({}, { initContainers: [{ name: 'copy', env: named(1001) }] }),
  ),
  CAP_SYS_ADMIN: capabilityRow('SYS_ADMIN'),
  'CAP_SYS_ADMIN by its kernel name': capabilityRow('CAP_SYS_ADMIN'),
  'CAP_SYS_ADMIN in small letters': capabilityRow('sys_admin'),
  CAP_MKNOD: capabilityRow('MKNOD'),
  CAP_SYS_PTRACE: capabilityRow('SYS_PTRACE'),
  'all capabilities': capabilityRow('ALL'),
  "the host's processes": [
    sharePod({}, { hostPID: true }),
    'spec.hostPID: true lets the container reach the processes of other tenants; leave it out in a pod with a share of a GPU',
  ],
  'a preset node': [
    sharePod({}, { nodeName: 'gpu-1' }),
    'spec.nodeName: "gpu-1" bypasses the scheduler, which grants GPUs; leave it out; to choose a node use spec.nodeSelector or spec.affinity',
  ],
  'another scheduler': [
    sharePod({}, { schedulerName: 'volcano' }),
    'spec.schedulerName: "volcano" does not grant shares of GPUs; leave it out or write cotenant-scheduler',
  ],
  "NVIDIA's resource beside a share": [
    sharePod({ resources: { limits: { 'cotenant.io/gpu-memory': '1Gi', 'nvidia.com/gpu': '1' } } }),
    `spec.containers[0].resources.limits["nvidia.com/gpu"]: "1" ${PLUGIN}`,
  ],
  'a whole GPU of the device plugin in another container': [
    sharePod({}, { initContainers: [{ name: 'whole', resources: { limits: { 'nvidia.com/gpu': 1 } } }] }),
    `spec.initContainers[0].resources.limits["nvidia.com/gpu"]: 1 ${PLUGIN}`,
  ],
  'a MIG instance beside a share': [
    sharePod({}, { initContainers: [{ name: 'mig', resources: { limits: { 'nvidia.com/mig-1g.10gb': '1' } } }] }),
    `spec.initContainers[0].resources.limits["nvidia.com/mig-1g.10gb"]: "1" ${PLUGIN}`,
  ],
  'a pod for Windows': [
    sharePod({}, { os: { name: 'windows' } }),
    'spec.os.name: "windows" has no shares of GPUs; ask for a share in a pod of a Linux node',
  ],
  'a pod for nodes with Windows by affinity': [
    sharePod(
      {},
      {
        affinity: {
          nodeAffinity: {
            requiredDuringSchedulingIgnoredDuringExecution: {
              nodeSelectorTerms: [
                { matchExpressions: [{ key: 'kubernetes.io/os', operator: 'In', values: ['windows'] }] },
              ],
            },
          },
        },
      },
    ),
    'spec.affinity.nodeAffinity: "windows" has no shares of GPUs; ask for a share in a pod of a Linux node',
  ],
  'a pod for nodes with Windows': [
    sharePod({}, { nodeSelector: { 'kubernetes.io/os': 'windows' } }),
    'spec.nodeSelector["kubernetes.io/os"]: "windows" has no shares of GPUs; ask for a share in a pod of a Linux node',
  ],
  'a forged grant': [
    sharePod({}, {}, { annotations: { 'cotenant.io/grant': '{"main":[]}' } }),
    'metadata.annotations["cotenant.io/grant"]: "{\\"main\\":[]}" is written only by the scheduler or an operator; leave this annotation out',
  ],
  'compute that only operators change': [
    sharePod({}, {}, { annotations: { 'cotenant.io/compute': '{"main":{"priority":"high"}}' } }),
    'metadata.annotations["cotenant.io/compute"]: "{\\"main\\":{\\"priority\\":\\"high\\"}}" is written only by the scheduler or an operator; leave this annotation out',
  ],
  'enforcement that only administrators weaken': [
    sharePod({}, {}, { annotations: { 'cotenant.io/enforcement-override': 'off' } }),
    'metadata.annotations["cotenant.io/enforcement-override"]: "off" is written only by the scheduler or an operator; leave this annotation out',
  ],
  "enforcement weaker than the namespace's": [
    sharePod({}, {}, { annotations: { 'cotenant.io/enforcement': 'report' } }),
    'metadata.annotations["cotenant.io/enforcement"]: "report" is not allowed in this namespace; write enforce',
  ],
  'forged devices': [
    sharePod({}, {}, { annotations: { 'gpu-uuids.cotenant.io/main': 'all' } }),
    'metadata.annotations["gpu-uuids.cotenant.io/main"]: "all" is written only by the scheduler or an operator; leave this annotation out',
  ],
  'a forged record': [
    sharePod({}, {}, { annotations: { 'cotenant.io/request': '{"version":1}' } }),
    'metadata.annotations["cotenant.io/request"]: "{\\"version\\":1}" is not what the webhook writes; leave this annotation out',
  ],
  'our volume with more in it': [
    sharePod({}, { volumes: [{ name: 'cotenant', csi: { driver: 'cotenant.io', readOnly: true } }] }),
    `spec.volumes[0]: "csi.driver cotenant.io" uses a name of Cotenant for another volume; ${ONLY}`,
  ],
  'our volume with attributes': [
    sharePod({}, { volumes: [{ name: 'cotenant', csi: { driver: 'cotenant.io', volumeAttributes: { pod: 'x' } } }] }),
    `spec.volumes[0]: "csi.driver cotenant.io" uses a name of Cotenant for another volume; ${ONLY}`,
  ],
  'our driver under another name': [
    sharePod({}, { volumes: [{ name: 'mine', csi: { driver: 'cotenant.io' } }] }),
    `spec.volumes[0]: "csi.driver cotenant.io" uses a name of Cotenant for another volume; ${ONLY}`,
  ],
  'our name on another volume': [
    sharePod({}, { volumes: [{ name: 'cotenant', emptyDir: {} }] }),
    `spec.volumes[0]: "cotenant" uses a name of Cotenant for another volume; ${ONLY}`,
  ],
  'our volume twice': [
    sharePod({}, { volumes: [ours, { ...ours }] }),
    `spec.volumes[1]: "cotenant" is there twice; ${ONLY}`,
  ],
  'a writable mount of our volume': [
    mounting('/mnt/all', 'cotenant'),
    'spec.containers[0].volumeMounts[0]: "/mnt/all" mounts the volume "cotenant", which only the webhook mounts; leave it out: the webhook adds the mounts that are needed',
  ],
  "another container's ledger": [
    sharePod({ volumeMounts: [{ name: 'cotenant', mountPath: '/run/cotenant/ledger', subPath: 'ledgers/x/ledger' }] }),
    'spec.containers[0].volumeMounts[0]: "/run/cotenant/ledger" mounts the volume "cotenant", which only the webhook mounts; leave it out: the webhook adds the mounts that are needed',
  ],
  'a mount over the preload list': mountRow('/etc/ld.so.preload'),
  'a mount below our folder': mountRow('/run/cotenant/limits'),
  'a mount over our folder': mountRow('/run/cotenant/'),
  'a mount over our folder through the usual link': mountRow('/var/run/cotenant'),
  'a mount that is written with doubled slashes': mountRow('//run//./cotenant'),
  'a relative mount that becomes absolute': mountRow('etc/ld.so.preload'),
  'a mount that climbs': mountRow('/var/run/../etc/ld.so.preload'),
  'a termination message over the limits': [
    sharePod({ terminationMessagePath: '/run/cotenant/limits' }),
    `spec.containers[0].terminationMessagePath: "/run/cotenant/limits" ${COVERS}`,
  ],
  'a block device over the limits': [
    sharePod({ volumeDevices: [{ name: 'disk', devicePath: '/run/cotenant/limits' }] }),
    `spec.containers[0].volumeDevices[0].devicePath: "/run/cotenant/limits" ${COVERS}`,
  ],
  'a list of devices as a mount, in a neighbor': [
    sharePod(
      {},
      {
        initContainers: [
          { name: 'n', volumeMounts: [{ name: 'own', mountPath: '/var/run/nvidia-container-devices/all' }] },
        ],
      },
    ),
    'spec.initContainers[0].volumeMounts[0].mountPath: "/var/run/nvidia-container-devices/all" is read as a list of devices by the NVIDIA runtime, past what was granted; write another path',
  ],
  'a second container of the same name': [
    sharePod({}, { initContainers: [{ name: 'main' }] }),
    'spec.containers[0].name: "main" names a second container; give each container its own name',
  ],
  'a neighbor without a usable name': [
    sharePod({}, { initContainers: [{ name: 'A/B' }] }),
    'spec.initContainers[0].name: "A/B" is not a container name; write at most 63 of a-z, 0-9 and "-"',
  ],
  'variables of another type': [
    sharePod({ env: { A: 'b' } }),
    'spec.containers[0].env: an object is not a list of objects; write it as the API describes',
  ],
  'volumes of another type': [
    sharePod({}, { volumes: ['x'] }),
    'spec.volumes: a list of 1 is not a list of objects; write it as the API describes',
  ],
};

for (const [name, [pod, message]] of Object.entries(REFUSED)) {
  test(`a pod with a share is refused: ${name}`, (t) => {
    const answer = answerOf(creation(pod));
    t.false(answer.allowed);
    t.is(answer.denial?.replace(/^(403 Forbidden|422 Invalid): /, ''), message);
    t.deepEqual(answer.patch, []);
  });
}

test('an amount that cannot be read does not hide what else is wrong', (t) => {
  const limits = { 'cotenant.io/gpu-memory': '4gb', 'cotenant.io/gpu_cores': '30' };
  const pod = sharePod(
    { name: 'A', resources: { limits }, securityContext: { privileged: true } },
    { hostPID: true, nodeName: 'n1' },
  );
  const denial = answerOf(creation(pod)).denial ?? '';
  const paths = denial.split(' | ').map((one) => one.replace(/^.*?(?=spec)/, '').split(': ')[0]);
  t.deepEqual(paths.toSorted(), [
    'spec.containers[0].name',
    'spec.containers[0].resources.limits["cotenant.io/gpu_cores"]',
    'spec.containers[0].securityContext.privileged',
    'spec.hostPID',
    'spec.nodeName',
  ]);
  const other = answerOf(creation(sharePod({ resources: { limits }, terminationMessagePath: '/run/cotenant/x' })));
  t.regex(other.denial ?? '', /"4gb" is not a quantity .* write cotenant.io\/gpu-cores .* would cover/s);
});

test('a name of ours that does not exist is answered with the one that was meant', (t) => {
  const meant = {
    'cotenant.io/gpu': ['gpus', 'gpu-count'],
    'cotenant.io/gpu-memory': ['gpu_memory', 'gpumem', 'memory', 'gpu-mem', 'vram'],
    'cotenant.io/gpu-cores': ['gpu-core', 'gpucores', 'cores', 'gpu-percent', 'compute'],
  };
  for (const [right, names] of Object.entries(meant))
    for (const name of names) {
      const { denial } = answerOf(creation(sharePod({ resources: { limits: { [`cotenant.io/${name}`]: 1 } } })));
      t.true(denial?.includes(`is not known to Cotenant; write ${right} (`), `${name}: ${denial}`);
    }
});

test('a neighbor may not mount our volume either', (t) => {
  const pod = sharePod(
    {},
    { initContainers: [{ name: 'spy', volumeMounts: [{ name: 'cotenant', mountPath: '/x' }] }] },
  );
  t.regex(answerOf(creation(pod)).denial ?? '', /^403 .*spec\.initContainers\[0\]\.volumeMounts\[0\]: "\/x" mounts/);
});

test('a container without a share may be privileged, trace, and mount anywhere', (t) => {
  const free = {
    name: 'init',
    securityContext: { privileged: true, capabilities: { add: ['SYS_PTRACE'] } },
    volumeMounts: [{ name: 'own', mountPath: '/etc/ld.so.preload' }],
  };
  t.true(
    answerOf(creation(sharePod({}, { initContainers: [free], volumes: [{ name: 'own', emptyDir: {} }] }))).allowed,
  );
});

test('SYS_PTRACE is allowed where the rules of the namespace allow it', (t) => {
  const configuration = configured({ namespaces: { research: { allowPtrace: true } } });
  const pod = capable(['SYS_PTRACE', 'IPC_LOCK']);
  t.true(answerOf(creation(pod, { namespace: 'research' }), configuration).allowed);
  t.false(answerOf(creation(pod, { namespace: 'elsewhere' }), configuration).allowed);
  t.false(answerOf(creation(capable(['SYS_ADMIN']), { namespace: 'research' }), configuration).allowed);
});

test('an amount of 0 of another resource, and pods without a share, are left alone', (t) => {
  const zero = { name: 'zero', resources: { limits: { 'nvidia.com/gpu': '0' } } };
  t.true(answerOf(creation(sharePod({}, { initContainers: [zero] }))).allowed);
  const whole = { spec: { containers: [{ name: 'a', resources: { limits: { 'nvidia.com/gpu': '1' } } }] } };
  t.like(answerOf(creation(whole)), { allowed: true, patch: [] });
});

test('mounts beside our paths, and above them, are fine', (t) => {
  const paths = ['/run', '/var/run', '/etc', '/etc/ld.so.preload.d', '/run/cotenants', '/data', '/'];
  const volumeMounts = paths.map((mountPath) => ({ name: 'own', mountPath }));
  t.is(answerOf(creation(sharePod({ volumeMounts }, { volumes: [{ name: 'own', emptyDir: {} }] }))).denial, undefined);
});

// runc 1.1: "open .../etc/ld.so.preload: read-only file system". Which volumes are read-only: kubernetes.io, "Volumes".
test('a read-only mount around our paths, which would stop a start, is refused', (t) => {
  const mounting = (mount: object, volume: object, more: object = {}) =>
    answerOf(
      creation(
        sharePod({ volumeMounts: [{ name: 'own', ...mount }] }, { volumes: [{ name: 'own', ...volume }], ...more }),
      ),
    ).denial;
  const refused = (path: string, of: string, at: string) =>
    `422 Invalid: spec.containers[0].volumeMounts[0].mountPath: "${path}" is read-only${of}, so that the container's limits cannot be mounted in it; mount single files with subPath, or a folder below ${at}`;
  t.is(mounting({ mountPath: '/etc' }, { configMap: { name: 'c' } }), refused('/etc', ' (configMap)', '/etc'));
  t.is(
    mounting({ mountPath: '/var/run/' }, { secret: { secretName: 's' } }),
    refused('/var/run/', ' (secret)', '/run'),
  );
  t.is(mounting({ mountPath: '/run', readOnly: true }, { emptyDir: {} }), refused('/run', '', '/run'));
  // Kubernetes, kubelet_pods.go, makeMounts: such volumes are read-only in any mount.
  const claim = { persistentVolumeClaim: { claimName: 'c', readOnly: true } };
  t.is(mounting({ mountPath: '/etc' }, claim), refused('/etc', ' (persistentVolumeClaim)', '/etc'));
  t.is(mounting({ mountPath: '/run' }, { csi: { driver: 'x', readOnly: true } }), refused('/run', ' (csi)', '/run'));
  t.is(mounting({ mountPath: '/run' }, { csi: { driver: 'x' } }), undefined);
  t.is(mounting({ mountPath: '/etc/app' }, { configMap: { name: 'c' } }), undefined);
  t.is(mounting({ mountPath: '/etc/app.conf', subPath: 'app.conf' }, { configMap: { name: 'c' } }), undefined);
  t.is(mounting({ mountPath: '/run', readOnly: true }, { hostPath: { path: '/run' } }), undefined);
  const sidecar = { name: 'log', volumeMounts: [{ name: 'own', mountPath: '/etc' }] };
  const beside = creation(sharePod({}, { initContainers: [sidecar], volumes: [{ name: 'own', configMap: {} }] }));
  t.is(answerOf(beside).denial, undefined);
});

test('dropping capabilities, and adding harmless ones, is fine', (t) => {
  t.true(answerOf(creation(capable(['NET_BIND_SERVICE', 'IPC_LOCK']))).allowed);
  t.true(answerOf(creation(sharePod({ securityContext: { capabilities: { drop: ['ALL'] } } }))).allowed);
});

test('allowed schedulers and runtime classes stay, others are refused', (t) => {
  const configuration = configured({
    schedulerName: 'gpu-scheduler',
    allowedSchedulers: ['volcano'],
    runtimeClassName: 'nvidia',
    allowedRuntimeClasses: ['nvidia-cdi'],
  });
  const specOf = (spec: object) => {
    const { allowed, denial, pod } = answerOf(creation(sharePod({}, spec)), configuration);
    const { schedulerName, runtimeClassName } = pod.spec as Record<string, unknown>;
    return allowed ? [schedulerName, runtimeClassName] : denial;
  };
  t.deepEqual(specOf({}), ['gpu-scheduler', 'nvidia']);
  t.deepEqual(specOf({ schedulerName: undefined }), ['gpu-scheduler', 'nvidia']);
  t.deepEqual(specOf({ schedulerName: 'volcano', runtimeClassName: 'nvidia-cdi' }), ['volcano', 'nvidia-cdi']);
  t.deepEqual(specOf({ schedulerName: 'ack-co-scheduler' }), ['gpu-scheduler', 'nvidia']);
  t.is(
    specOf({ runtimeClassName: 'kata' }),
    '403 Forbidden: spec.runtimeClassName: "kata" is not one that gives containers their GPU; leave it out or write nvidia or nvidia-cdi',
  );
});

test('of many problems the first ten are listed, with the number of others', (t) => {
  const volumeMounts = Array.from({ length: 200 }, () => ({ name: 'own', mountPath: '/run/cotenant' }));
  const { denial = '' } = answerOf(creation(sharePod({ volumeMounts })));
  t.is(denial.split(' | ').length, 11);
  t.true(denial.endsWith(' | and 190 more'));
});
