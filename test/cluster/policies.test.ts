// The chart's ValidatingAdmissionPolicies on a real API server: their CEL as it is type-checked there, and each refusal with
// the webhook gone, on objects that are right in all but one respect.
import type { ExecutionContext } from 'ava';
import { testUnless } from '../support/gate.ts';
import { BUILD_MS, lookForHelm, readyHelm } from '../support/helm.ts';
import { eventually } from '../support/node.ts';
import { type Bed, BUSYBOX_IMAGE, bedGround, startBed } from './bed/bed.ts';
import { NODE_NAME } from './bed/node.ts';
import { addCotenantImage, installChart, NAMESPACE } from './bed/product.ts';

const ground = bedGround(console.log, false);
const helm = lookForHelm();
const reason = ground.ok ? (helm.kind === 'missing' ? helm.reason : undefined) : ground.reason;

const POLICIES = ['bindings', 'debug', 'grants', 'nodes', 'shares'];
const AGENT = `system:serviceaccount:${NAMESPACE}:cotenant-agent`;
const SCHEDULER = `system:serviceaccount:${NAMESPACE}:cotenant-scheduler`;
const REQUIRED = 'required-plugins.noderesource.dev';

type Env = { name: string; value?: string; valueFrom?: object };
type Mount = { name: string; mountPath: string; subPath?: string; readOnly?: boolean; recursiveReadOnly?: string };
type Container = {
  name: string;
  image?: string;
  env?: Env[];
  resources?: object;
  volumeMounts?: Mount[];
  volumeDevices?: object[];
  securityContext?: object;
  terminationMessagePath?: string;
};
type Volume = { name: string; csi?: object; emptyDir?: object };
type Pod = {
  apiVersion: 'v1';
  kind: 'Pod';
  metadata: { name: string; namespace?: string; annotations: Record<string, string>; uid?: string };
  spec: {
    containers: [Container, Container];
    initContainers: [Container];
    ephemeralContainers?: Container[];
    volumes: Volume[];
    schedulerName?: string;
    nodeName?: string;
    hostPID?: boolean;
  };
};
type Policy = {
  metadata: { name: string; generation: number };
  status?: {
    observedGeneration?: number;
    typeChecking?: { expressionWarnings?: { fieldRef: string; warning: string }[] };
  };
};
type Said = { readonly allowed: boolean; readonly said: string };

const limits = (memory: string) => ({ limits: { 'cotenant.io/gpu-memory': memory } });
const container = (name: string, more: object = {}): Container => ({ name, image: BUSYBOX_IMAGE, ...more });

/** Two containers of which one has a share, and an init container with one. */
const asked: Pod = {
  apiVersion: 'v1',
  kind: 'Pod',
  metadata: { name: 'slice', annotations: {} },
  spec: {
    containers: [container('main', { resources: limits('2Gi') }), container('side')],
    initContainers: [container('first', { resources: limits('1Gi') })],
    volumes: [{ name: 'data', emptyDir: {} }],
  },
};
Object.assign(asked.spec, { automountServiceAccountToken: false });

/** The pod with one thing changed. */
function but(pod: Pod, change: (copy: Pod) => void): Pod {
  const copy = structuredClone(pod);
  change(copy);
  return copy;
}

function send(bed: Bed, object: object, ...args: readonly string[]): Said & { out: string } {
  const { code, out, err } = bed.kubectlWith(JSON.stringify(object), ...args);
  return { allowed: code === 0, said: err.trim(), out };
}

const create = (bed: Bed, pod: object, ...as: readonly string[]) =>
  send(bed, pod, 'create', '--dry-run=server', '-o', 'json', '-f', '-', ...as);
const replace = (bed: Bed, pod: Pod, subresource: string, ...as: readonly string[]) =>
  send(
    bed,
    pod,
    'replace',
    '--raw',
    `/api/v1/namespaces/default/pods/slice${subresource}?dryRun=All`,
    '-f',
    '-',
    ...as,
  );

/** May everything that roles could forbid, so that a refusal is the policy's. */
const user = (name: string, ...more: readonly string[]) => [`--as=${name}`, '--as-group=system:masters', ...more];

function refused(t: ExecutionContext, { allowed, said }: Said, policy: string, wanted: RegExp, what: string): void {
  t.false(allowed, what);
  t.regex(said, new RegExp(`ValidatingAdmissionPolicy 'cotenant-${policy}' with binding`), what);
  t.regex(said, wanted, what);
}

function typeWarnings(bed: Bed, name: string): readonly string[] | undefined {
  const policy = bed.get<Policy>('validatingadmissionpolicy', name);
  if (policy?.status?.observedGeneration !== policy?.metadata.generation) return undefined;
  return (policy?.status?.typeChecking?.expressionWarnings ?? []).map(({ fieldRef, warning }) => fieldRef + warning);
}

const oursOf = ({ volumeMounts = [] }: Container) => volumeMounts.filter(({ name }) => name === 'cotenant');

type Case = readonly [what: string, wanted: RegExp, change: (pod: Pod) => void];

const SHARES: readonly Case[] = [
  [
    'the volume',
    /lacks the volume of Cotenant/,
    ({ spec }) => {
      spec.volumes = spec.volumes.filter(({ name }) => name !== 'cotenant');
      for (const each of [...spec.containers, ...spec.initContainers]) each.volumeMounts = [];
    },
  ],
  [
    'another driver',
    /the only volume of Cotenant/,
    ({ spec }) => {
      for (const volume of spec.volumes) if (volume.csi) volume.csi = { driver: 'other.example.com' };
    },
  ],
  [
    'attributes on the volume',
    /the only volume of Cotenant/,
    ({ spec }) => {
      for (const volume of spec.volumes)
        if (volume.csi) volume.csi = { driver: 'cotenant.io', volumeAttributes: { a: 'b' } };
    },
  ],
  [
    'a read-only volume',
    /the only volume of Cotenant/,
    ({ spec }) => {
      for (const volume of spec.volumes) if (volume.csi) volume.csi = { driver: 'cotenant.io', readOnly: true };
    },
  ],
  [
    'a second volume of the driver',
    /the only volume of Cotenant/,
    ({ spec }) => {
      spec.volumes.push({ name: 'again', csi: { driver: 'cotenant.io' } });
    },
  ],
  ...[0, 1, 2, 3].map(
    (index): Case => [
      `mount ${index}`,
      /main asks for a share of a GPU and lacks mounts/,
      ({ spec }) => {
        const [main] = spec.containers;
        const missing = oursOf(main)[index];
        main.volumeMounts = main.volumeMounts?.filter((mount) => mount !== missing) ?? [];
      },
    ],
  ),
  [
    'a mount of an init container',
    /first asks for a share of a GPU and lacks mounts/,
    ({ spec }) => {
      spec.initContainers[0].volumeMounts?.pop();
    },
  ],
  [
    "another container's limits",
    /main asks for a share of a GPU and lacks mounts/,
    ({ spec }) => {
      for (const mount of oursOf(spec.containers[0]))
        mount.subPath = mount.subPath?.replace('containers/main', 'containers/side') ?? '';
    },
  ],
  [
    'limits that may be written',
    /main asks for a share of a GPU and lacks mounts/,
    ({ spec }) => {
      for (const mount of oursOf(spec.containers[0])) if (mount.mountPath.endsWith('limits')) mount.readOnly = false;
    },
  ],
  [
    'a mount more',
    /main mounts the volume "cotenant"/,
    ({ spec }) => {
      spec.containers[0].volumeMounts?.push({ name: 'cotenant', mountPath: '/all' });
    },
  ],
  [
    'a mount in a container without a share',
    /side mounts the volume "cotenant"/,
    ({ spec }) => {
      spec.containers[1].volumeMounts = [{ name: 'cotenant', mountPath: '/all' }];
    },
  ],
  ...['/run/cotenant/limits/page', '/etc/./ld.so.preload', '//var/run/cotenant', '/tmp/../etc/ld.so.preload'].map(
    (mountPath): Case => [
      `a mount at ${mountPath}`,
      /main would cover|must not contain '..'|must be unique/,
      ({ spec }) => {
        spec.containers[0].volumeMounts?.push({ name: 'data', mountPath });
      },
    ],
  ),
  [
    'a termination message there',
    /main would cover/,
    ({ spec }) => {
      spec.containers[0].terminationMessagePath = '/run/cotenant/ledger';
    },
  ],
  [
    'a list of devices',
    /side mounts \/run\/nvidia-container-devices/,
    ({ spec }) => {
      spec.containers[1].volumeMounts = [{ name: 'data', mountPath: '/var/run/nvidia-container-devices/all' }];
    },
  ],
  [
    'a privileged container',
    /main is privileged or adds/,
    ({ spec }) => {
      spec.containers[0].securityContext = { privileged: true };
    },
  ],
  ...['SYS_ADMIN', 'CAP_BPF', 'sys_ptrace', 'ALL'].map(
    (name): Case => [
      `capability ${name}`,
      /first is privileged or adds/,
      ({ spec }) => {
        spec.initContainers[0].securityContext = { capabilities: { add: [name] } };
      },
    ],
  ),
  [
    'all devices',
    /main has another NVIDIA_VISIBLE_DEVICES/,
    ({ spec }) => {
      for (const entry of spec.containers[0].env ?? [])
        if (entry.name === 'NVIDIA_VISIBLE_DEVICES') entry.value = 'all';
    },
  ],
  [
    'all devices behind void',
    /main has another NVIDIA_VISIBLE_DEVICES/,
    ({ spec }) => {
      spec.containers[0].env?.push({ name: 'NVIDIA_VISIBLE_DEVICES', value: 'all' });
    },
  ],
  [
    'devices of the image',
    /side has another NVIDIA_VISIBLE_DEVICES/,
    ({ spec }) => {
      spec.containers[1].env = [];
    },
  ],
  [
    'the record of the request',
    /\["cotenant\.io\/request"\]: is missing/,
    ({ metadata }) => {
      delete metadata.annotations['cotenant.io/request'];
    },
  ],
  [
    'the required plugin',
    /required-plugins\.noderesource\.dev must name "cotenant"/,
    ({ metadata }) => {
      delete metadata.annotations[REQUIRED];
    },
  ],
  [
    'a stronger key without it',
    /noderesource\.dev\/container\.first must name "cotenant"/,
    ({ metadata }) => {
      metadata.annotations[`${REQUIRED}/container.first`] = '[]';
    },
  ],
  [
    'another scheduler',
    /spec\.schedulerName: does not grant shares of GPUs; write cotenant-scheduler or second/,
    ({ spec }) => {
      spec.schedulerName = 'default-scheduler';
    },
  ],
  [
    'a node',
    /spec\.nodeName: goes past the scheduler/,
    ({ spec }) => {
      spec.nodeName = NODE_NAME;
    },
  ],
  [
    "the host's processes",
    /spec\.hostPID: lets a container/,
    ({ spec }) => {
      spec.hostPID = true;
    },
  ],
];

testUnless(reason)('policies refuse for a real API server what the webhook would have, without it', async (t) => {
  t.timeout(BUILD_MS);
  if (!ground.ok || helm.kind === 'missing') throw new Error(reason);
  const path = await readyHelm(helm);
  const bed = await startBed(ground, (line) => t.log(line));
  t.teardown(() => bed.close());
  addCotenantImage(bed);
  installChart(bed, path, {
    webhook: {
      enabled: true,
      replicas: 1,
      configuration: { schedulerName: 'cotenant-scheduler', allowedSchedulers: ['second'] },
    },
  });

  // Types as the API server knows them; a policy that asks for what is not there shows that they are looked at.
  const policies = JSON.parse(bed.kubectl('get', 'validatingadmissionpolicy', '-o', 'json').out) as { items: Policy[] };
  t.deepEqual(
    policies.items.map(({ metadata }) => metadata.name).sort(),
    POLICIES.map((name) => `cotenant-${name}`),
  );
  const shares = policies.items.find(({ metadata }) => metadata.name === 'cotenant-shares');
  const misspelt = JSON.parse(JSON.stringify(shares).replaceAll('object.spec.hostPID', 'object.spec.hostPid'));
  bed.apply({ ...misspelt, metadata: { name: 'misspelt' }, status: undefined });
  const [warning = ''] = await eventually(
    () => typeWarnings(bed, 'misspelt')?.slice(),
    'the misspelt policy is checked',
  );
  t.regex(warning, /undefined field 'hostPid'/);
  for (const { metadata } of policies.items) {
    t.deepEqual(
      await eventually(() => typeWarnings(bed, metadata.name), `${metadata.name} is checked`),
      [],
      metadata.name,
    );
  }
  bed.kubectl('delete', 'validatingadmissionpolicy', 'misspelt');

  // What the webhook leaves of a pod is allowed; one such pod is stored, and waits for a scheduler that is not there.
  const stored = create(bed, asked);
  t.true(stored.allowed, stored.said);
  const { uid: _, ...metadata } = (JSON.parse(stored.out) as Pod).metadata;
  const patched: Pod = { ...JSON.parse(stored.out), metadata, status: undefined };
  t.is(patched.spec.schedulerName, 'cotenant-scheduler');
  bed.apply(asked);

  // Down: what the webhook would be asked about is refused for that; what it is not asked about is the policies' business.
  t.is(bed.kubectl('-n', NAMESPACE, 'scale', 'deployment', 'cotenant-webhook', '--replicas=0').code, 0);
  const down = () =>
    create(
      bed,
      but(asked, (pod) => {
        pod.metadata.name = 'late';
      }),
    );
  await eventually(() => (down().allowed ? undefined : true), 'slices are refused while nobody answers', 60_000);
  t.regex(down().said, /failed calling webhook "inject\.cotenant\.io"/);

  const target = { apiVersion: 'v1', kind: 'Node', name: NODE_NAME };
  const binding = (annotations: object) => ({
    apiVersion: 'v1',
    kind: 'Binding',
    metadata: { name: 'slice', namespace: 'default', annotations },
    target,
  });
  const routes = ['/api/v1/namespaces/default/pods/slice/binding', '/api/v1/namespaces/default/bindings'];
  for (const route of routes) {
    const bind = (annotations: object, who: string) =>
      send(bed, binding(annotations), 'create', '--raw', `${route}?dryRun=All`, '-f', '-', ...user(who));
    for (const key of ['cotenant.io/grant', 'gpu-uuids.cotenant.io/main', 'cotenant.io/request', `${REQUIRED}/pod`]) {
      const answer = bind({ [key]: '{}' }, 'system:kube-scheduler');
      refused(t, answer, 'bindings', /may not be sent with a Binding by "system:kube-scheduler"/, `${key} to ${route}`);
    }
    const granted = bind({ 'cotenant.io/grant': '{}', 'gpu-uuids.cotenant.io/main': 'x' }, SCHEDULER);
    t.true(granted.allowed, granted.said);
    t.true(bind({ note: 'x' }, 'system:kube-scheduler').allowed);
  }

  // An agent's token says on which node it is; nobody else's does.
  bed.apply({ apiVersion: 'v1', kind: 'Node', metadata: { name: 'node-2' } });
  const extra = (node: string) => `--as-user-extra=authentication.kubernetes.io/node-name=${node}`;
  const patchNode = (name: string, ...as: readonly string[]) => {
    const body = JSON.stringify({ status: { capacity: { 'cotenant.io/gpu-cores': '100' } } });
    const words = ['patch', 'node', name, '--subresource=status', '--dry-run=server', '--type=merge', '-p', body];
    return send(bed, {}, ...words, ...as);
  };
  const own = patchNode(NODE_NAME, ...user(AGENT, extra(NODE_NAME)));
  t.true(own.allowed, own.said);
  t.true(patchNode('node-2', ...user('alice')).allowed, 'others are not held to it');
  refused(t, patchNode('node-2', ...user(AGENT, extra(NODE_NAME))), 'nodes', /this token is of node-1/, 'another node');
  refused(t, patchNode(NODE_NAME, ...user(AGENT)), 'nodes', /this token is of no node/, 'a token of no pod');
  const agent = { apiVersion: 'v1', kind: 'Pod', metadata: { name: 'agent', namespace: NAMESPACE } };
  const spec = { serviceAccountName: 'cotenant-agent', nodeName: NODE_NAME, containers: [container('main')] };
  bed.apply({ ...agent, spec });
  const words = [
    '-n',
    NAMESPACE,
    'create',
    'token',
    'cotenant-agent',
    '--bound-object-kind=Pod',
    '--bound-object-name=agent',
  ];
  const token = bed.kubectl(...words).out.trim();
  const who = bed.kubectl(`--token=${token}`, 'auth', 'whoami', '-o', 'json').out;
  t.deepEqual(JSON.parse(who).status.userInfo.extra['authentication.kubernetes.io/node-name'], [NODE_NAME]);

  // Gone altogether, as if somebody had led a pod around it.
  for (const kind of ['mutating', 'validating']) {
    t.is(bed.kubectl('delete', `${kind}webhookconfiguration`, 'cotenant-webhook').code, 0);
  }
  const alone = but(patched, (pod) => {
    pod.metadata.name = 'alone';
  });
  await eventually(() => (create(bed, alone).allowed ? true : undefined), 'a pod that is patched by hand is allowed');
  refused(
    t,
    create(
      bed,
      but(asked, (pod) => {
        pod.metadata.name = 'bare';
      }),
    ),
    'shares',
    /did not pass its webhook/,
    'unpatched',
  );
  for (const [what, wanted, change] of SHARES) {
    const answer = create(bed, but(alone, change));
    t.false(answer.allowed, what);
    t.regex(answer.said, wanted, what);
    if (!/must not contain|must be unique/.test(answer.said))
      t.regex(answer.said, /ValidatingAdmissionPolicy 'cotenant-shares'/, what);
  }
  t.true(
    create(
      bed,
      but(alone, ({ spec: { containers } }) => {
        containers[0].volumeMounts?.push(
          { name: 'data', mountPath: '/run/cotenant-data' },
          { name: 'data', mountPath: '/etc/ld.so.preload.d' },
        );
      }),
    ).allowed,
    'paths that only look alike',
  );

  const plain = (more: object, annotations: object = {}) => ({
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { name: 'plain', annotations },
    spec: { containers: [container('main')], ...more },
  });
  t.true(create(bed, plain({ hostPID: true, nodeName: NODE_NAME })).allowed, 'other pods are none of ours');
  const volumes = [{ name: 'cotenant', csi: { driver: 'cotenant.io' } }];
  refused(t, create(bed, plain({ volumes })), 'shares', /in a pod that asks for no share/, 'our volume in a plain pod');
  const other = [{ name: 'x', csi: { driver: 'cotenant.io' } }];
  refused(t, create(bed, plain({ volumes: other })), 'shares', /the only volume of Cotenant/, 'under another name');
  const mirror = ['--as=system:node:node-1', '--as-group=system:nodes', '--as-group=system:masters'];
  const isStatic = { 'kubernetes.io/config.mirror': 'x', 'kubernetes.io/config.source': 'file' };
  const image = (annotations: object) => ({
    ...plain({ nodeName: NODE_NAME, containers: [container('main', { resources: limits('1Gi') })] }, annotations),
  });
  t.true(create(bed, image(isStatic), ...mirror).allowed, 'a static pod runs anyway, without a share');
  refused(
    t,
    create(bed, image(isStatic), ...user('alice')),
    'shares',
    /lacks the volume/,
    'an image of a static pod, by a tenant',
  );

  // Keys that say what a pod got.
  for (const key of ['cotenant.io/grant', 'gpu-uuids.cotenant.io/main']) {
    for (const as of [user('alice'), user(AGENT), user(SCHEDULER), mirror]) {
      refused(
        t,
        create(bed, plain({ nodeName: NODE_NAME }, { ...isStatic, [key]: '{}' }), ...as),
        'grants',
        /says what the scheduler granted/,
        `${key} by ${as}`,
      );
    }
  }
  t.true(create(bed, plain({}, { 'notcotenant.io/grant': '{}' })).allowed);
  const running = bed.get<Pod>('pod', 'slice') as Pod;
  const record = running.metadata.annotations['cotenant.io/request'] ?? '';
  const changes: readonly Record<string, string | undefined>[] = [
    { 'cotenant.io/grant': '{}' },
    { 'gpu-uuids.cotenant.io/main': 'all' },
    { 'cotenant.io/request': record.replace('2147483648', '4294967296') },
    { 'cotenant.io/request': undefined },
    { [REQUIRED]: '[]' },
    { [`${REQUIRED}/pod`]: '[]' },
  ];
  for (const change of changes) {
    const annotations = JSON.parse(JSON.stringify({ ...running.metadata.annotations, ...change }));
    const changed: Pod = { ...running, metadata: { ...running.metadata, annotations } };
    for (const subresource of ['', '/status', '/ephemeralcontainers', '/resize']) {
      const what = `${JSON.stringify(change)} by pods${subresource}`;
      const answer = replace(bed, changed, subresource, ...user('alice'));
      // Some subresources take over nothing but what they are for.
      if (!answer.allowed) refused(t, answer, 'grants', /may not be changed by "alice"/, what);
      else t.deepEqual((JSON.parse(answer.out) as Pod).metadata.annotations, running.metadata.annotations, what);
    }
    t.true(replace(bed, changed, '', ...user(AGENT)).allowed, `${JSON.stringify(change)} by a writer`);
  }
  const noted = but(running, (pod) => {
    pod.metadata.annotations.note = 'x';
  });
  t.true(replace(bed, noted, '', ...user('alice')).allowed, 'other annotations are not ours');

  // Debug containers.
  const closed = [{ name: 'NVIDIA_VISIBLE_DEVICES', value: 'void' }];
  const debug = (more: object) =>
    replace(
      bed,
      but(running, ({ spec: inside }) => {
        inside.ephemeralContainers = [
          container('debug', { imagePullPolicy: 'Never', terminationMessagePolicy: 'File', ...more }),
        ];
      }),
      '/ephemeralcontainers',
    );
  const good = debug({ env: closed, securityContext: { capabilities: { add: ['SYS_PTRACE'] } } });
  t.true(good.allowed, good.said);
  t.true(debug({ env: [{ name: 'NVIDIA_VISIBLE_DEVICES', value: 'none' }] }).allowed);
  const refusals: readonly (readonly [object, RegExp])[] = [
    [{}, /gets no device/],
    [{ env: [{ name: 'NVIDIA_VISIBLE_DEVICES', value: 'all' }] }, /gets no device/],
    [{ env: [...closed, { name: 'NVIDIA_VISIBLE_DEVICES', value: '0' }] }, /gets no device/],
    [{ env: closed, volumeMounts: [{ name: 'cotenant', mountPath: '/all' }] }, /may not mount the volume/],
    [
      { env: closed, volumeMounts: [{ name: 'data', mountPath: '/run/nvidia-container-devices/0' }] },
      /a list of devices/,
    ],
    [{ env: closed, securityContext: { privileged: true } }, /may not be privileged/],
    [{ env: closed, securityContext: { capabilities: { add: ['CAP_SYS_ADMIN'] } } }, /may not be privileged nor add/],
  ];
  for (const [more, wanted] of refusals) refused(t, debug(more), 'debug', wanted, JSON.stringify(more));
});
