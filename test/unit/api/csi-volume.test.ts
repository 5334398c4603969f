// The volume of a pod with a share as the agent checks it: the webhook's form is accepted, every other one is reported.
import test from 'ava';
import { mountsOf, VOLUME, wrongMounts } from '../../../src/api/csi-volume.ts';
import { DEFAULT_CONFIGURATION } from '../../../webhook/config.ts';
import { mutatePod } from '../../../webhook/mutate.ts';

type Mount = Record<string, unknown>;
type Pod = {
  metadata: object;
  spec: { volumes: Mount[]; containers: { name: string; volumeMounts?: Mount[] }[]; ephemeralContainers?: object[] };
};
const SHARES = new Set(['main']);
const made = (): Pod => ({
  metadata: {},
  spec: {
    volumes: [{ name: 'data', emptyDir: {} }, { ...VOLUME }],
    containers: [
      {
        name: 'main',
        volumeMounts: [{ name: 'data', mountPath: '/data' }, ...mountsOf('main').map((one) => ({ ...one }))],
      },
      { name: 'side', volumeMounts: [{ name: 'data', mountPath: '/data' }] },
    ],
  },
});
const mountsIn = (pod: Pod): Mount[] => pod.spec.containers[0]?.volumeMounts ?? [];

test("the webhook's volume is valid, also as the API server returns it", (t) => {
  const asked = {
    metadata: {},
    spec: {
      containers: [{ name: 'main', resources: { limits: { 'cotenant.io/gpu-memory': '1Gi' } } }, { name: 'side' }],
    },
  };
  const injected = mutatePod(asked, 'team', DEFAULT_CONFIGURATION);
  t.is(injected.kind, 'patched');
  if (injected.kind === 'patched') t.is(wrongMounts(injected.pod, SHARES), undefined);
  const read = made();
  for (const mount of mountsIn(read)) Object.assign(mount, { subPathExpr: undefined, mountPropagation: undefined });
  t.is(wrongMounts(read, SHARES), undefined);
});

for (const [what, change] of [
  ['a page that may be written', (pod) => Object.assign(mountsIn(pod)[3] ?? {}, { readOnly: false })],
  ['a mount that is missing', (pod) => mountsIn(pod).splice(1, 1)],
  ['the whole volume beside it', (pod) => mountsIn(pod).push({ name: 'cotenant', mountPath: '/all' })],
  [
    'the page of another container',
    (pod) => Object.assign(mountsIn(pod)[3] ?? {}, { subPath: 'containers/side/limits' }),
  ],
  [
    'a container without a share',
    (pod) => (pod.spec.containers[1]?.volumeMounts ?? []).push({ name: 'cotenant', mountPath: '/x' }),
  ],
  [
    'a debug container',
    (pod) =>
      Object.assign(pod.spec, {
        ephemeralContainers: [{ name: 'debug', volumeMounts: [{ name: 'cotenant', mountPath: '/x' }] }],
      }),
  ],
  ['mount propagation', (pod) => Object.assign(mountsIn(pod)[1] ?? {}, { mountPropagation: 'Bidirectional' })],
  [
    'attributes for the driver',
    (pod) => Object.assign(pod.spec.volumes[1] ?? {}, { csi: { driver: 'cotenant.io', volumeAttributes: { a: 'b' } } }),
  ],
  ['the driver under a second name', (pod) => pod.spec.volumes.push({ name: 'more', csi: { driver: 'cotenant.io' } })],
  [
    'another volume under its name',
    (pod) => Object.assign(pod.spec.volumes[1] ?? {}, { csi: undefined, emptyDir: {} }),
  ],
  ['no volume', (pod) => pod.spec.volumes.pop()],
] satisfies (readonly [string, (pod: Pod) => unknown])[]) {
  test(`reported: ${what}`, (t) => {
    const pod = made();
    t.is(wrongMounts(pod, SHARES), undefined);
    change(pod);
    t.regex(wrongMounts(pod, SHARES) ?? '', /as the webhook writes it$/);
  });
}
