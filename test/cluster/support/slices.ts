// A pod with GPU requests, and pods that are wrong in exactly one respect. Defines the pods and the expected refusal of
// each; the tests decide which component must refuse it.
import { BUSYBOX_IMAGE } from '../bed/bed.ts';
import { NODE_NAME } from '../bed/node.ts';

export const REQUIRED = 'required-plugins.noderesource.dev';
const VISIBLE = 'NVIDIA_VISIBLE_DEVICES';

type Mount = { name: string; mountPath: string; subPath?: string; readOnly?: boolean };
export type Container = {
  name: string;
  image?: string;
  env?: { name: string; value?: string }[];
  resources?: object;
  volumeMounts?: Mount[];
  securityContext?: object;
  terminationMessagePath?: string;
};
export type Slice = {
  apiVersion: 'v1';
  kind: 'Pod';
  metadata: { name: string; uid?: string; annotations: Record<string, string> };
  spec: {
    automountServiceAccountToken: boolean;
    containers: [Container, Container];
    initContainers: [Container];
    ephemeralContainers?: Container[];
    volumes: { name: string; csi?: object; emptyDir?: object }[];
    schedulerName?: string;
    nodeName?: string;
    hostPID?: boolean;
  };
};

export const limits = (memory: string) => ({ limits: { 'cotenant.io/gpu-memory': memory } });
export const container = (name: string, more: object = {}): Container => ({ name, image: BUSYBOX_IMAGE, ...more });

/** Two containers, one of them with a grant, and an init container with one. */
export const ASKED: Slice = {
  apiVersion: 'v1',
  kind: 'Pod',
  metadata: { name: 'slice', annotations: {} },
  spec: {
    automountServiceAccountToken: false,
    containers: [container('main', { resources: limits('2Gi') }), container('side')],
    initContainers: [container('first', { resources: limits('1Gi') })],
    volumes: [{ name: 'data', emptyDir: {} }],
  },
};

/** The pod with a change. */
export function but(pod: Slice, change: (copy: Slice) => void): Slice {
  const copy = structuredClone(pod);
  change(copy);
  return copy;
}

export const named = (pod: Slice, name: string): Slice => but(pod, ({ metadata }) => Object.assign(metadata, { name }));

export type Wrong = readonly [what: string, said: RegExp, change: (pod: Slice) => void];

const unmounted = (name: string) => new RegExp(`${name} asks for a share of a GPU and lacks mounts`);
const volume = (csi: object) => (pod: Slice) => {
  for (const each of pod.spec.volumes) if (each.csi) each.csi = csi;
};
const mount = (more: Mount) => (pod: Slice) => pod.spec.containers[0].volumeMounts?.push(more);
const ours = ({ volumeMounts = [] }: Container) => volumeMounts.filter(({ name }) => name === 'cotenant');
const capability = (name: string): Wrong => [
  `capability ${name}`,
  /first is privileged or adds/,
  ({ spec }) => Object.assign(spec.initContainers[0], { securityContext: { capabilities: { add: [name] } } }),
];
const cover = (mountPath: string): Wrong => [
  `a mount at ${mountPath}`,
  /main would cover/,
  mount({ name: 'data', mountPath }),
];

/** For a pod that is patched and has these containers: `main`, `side` without a grant, and the init container
 * `first`. */
export const WRONG: readonly Wrong[] = [
  [
    'no volume',
    /lacks the volume of Cotenant/,
    ({ spec }) => {
      spec.volumes = spec.volumes.filter(({ name }) => name !== 'cotenant');
      for (const each of [...spec.containers, ...spec.initContainers]) each.volumeMounts = [];
    },
  ],
  ['another driver', /the only volume of Cotenant/, volume({ driver: 'other.example.com' })],
  [
    'attributes on the volume',
    /the only volume of Cotenant/,
    volume({ driver: 'cotenant.io', volumeAttributes: { a: 'b' } }),
  ],
  ['a read-only volume', /the only volume of Cotenant/, volume({ driver: 'cotenant.io', readOnly: true })],
  [
    'a second volume of the driver',
    /the only volume of Cotenant/,
    ({ spec }) => spec.volumes.push({ name: 'again', csi: { driver: 'cotenant.io' } }),
  ],
  ...[0, 1, 2, 3].map(
    (index): Wrong => [
      `no mount ${index}`,
      unmounted('main'),
      ({ spec }) => {
        const [main] = spec.containers;
        const missing = ours(main)[index];
        main.volumeMounts = main.volumeMounts?.filter((each) => each !== missing) ?? [];
      },
    ],
  ),
  ['no mount of an init container', unmounted('first'), ({ spec }) => spec.initContainers[0].volumeMounts?.pop()],
  [
    "another container's limits",
    unmounted('main'),
    ({ spec }) => {
      for (const each of ours(spec.containers[0]))
        if (each.subPath) each.subPath = each.subPath.replace('/main/', '/first/');
    },
  ],
  [
    'limits that may be written',
    unmounted('main'),
    ({ spec }) => {
      for (const each of ours(spec.containers[0])) if (each.mountPath.endsWith('limits')) each.readOnly = false;
    },
  ],
  ['a mount more', /main mounts the volume "cotenant"/, mount({ name: 'cotenant', mountPath: '/all' })],
  [
    'a mount in a container without a share',
    /side mounts the volume "cotenant"/,
    ({ spec }) => Object.assign(spec.containers[1], { volumeMounts: [{ name: 'cotenant', mountPath: '/all' }] }),
  ],
  ...['/run/cotenant/limits/page', '/etc/./ld.so.preload', '//var/run/cotenant'].map(cover),
  [
    'a termination message there',
    /main would cover/,
    ({ spec }) => Object.assign(spec.containers[0], { terminationMessagePath: '/run/cotenant/ledger' }),
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
    ({ spec }) => Object.assign(spec.containers[0], { securityContext: { privileged: true } }),
  ],
  ...['SYS_ADMIN', 'CAP_BPF', 'sys_ptrace', 'mknod', 'ALL'].map(capability),
  [
    'all devices',
    /main has another NVIDIA_VISIBLE_DEVICES/,
    ({ spec }) => {
      for (const entry of spec.containers[0].env ?? []) if (entry.name === VISIBLE) entry.value = 'all';
    },
  ],
  [
    'all devices behind void',
    /main has another NVIDIA_VISIBLE_DEVICES/,
    ({ spec }) => spec.containers[0].env?.push({ name: VISIBLE, value: 'all' }),
  ],
  [
    'devices of the image',
    /side has another NVIDIA_VISIBLE_DEVICES/,
    ({ spec }) => Object.assign(spec.containers[1], { env: [] }),
  ],
  [
    'no record of the request',
    /\["cotenant\.io\/request"\]: is missing/,
    ({ metadata }) => {
      delete metadata.annotations['cotenant.io/request'];
    },
  ],
  [
    'no required plugin',
    /required-plugins\.noderesource\.dev must name "cotenant"/,
    ({ metadata }) => {
      delete metadata.annotations[REQUIRED];
    },
  ],
  [
    'a stronger key without it',
    /noderesource\.dev\/container\.first must name "cotenant"/,
    ({ metadata }) => Object.assign(metadata.annotations, { [`${REQUIRED}/container.first`]: '[]' }),
  ],
  [
    'another scheduler',
    /spec\.schedulerName: does not grant shares of GPUs; write cotenant-scheduler or second/,
    ({ spec }) => Object.assign(spec, { schedulerName: 'default-scheduler' }),
  ],
  ['a node', /spec\.nodeName: bypasses the scheduler/, ({ spec }) => Object.assign(spec, { nodeName: NODE_NAME })],
  ["the host's processes", /spec\.hostPID: lets a container/, ({ spec }) => Object.assign(spec, { hostPID: true })],
];
