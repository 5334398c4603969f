// Random pods for what is held against the webhook itself: shares in several dialects, and names of ours where they may
// not be.
import fc from 'fast-check';
import type { JsonObject } from '../../../src/common/json.ts';

const name = fc.constantFrom(
  'cotenant.io/gpu-memory',
  'cotenant.io/new',
  'aliyun.com/gpu-mem',
  'cnvrg.io/metagpu',
  'koordinator.sh/gpu',
  'nvidia.com/gpu-10gb',
  'cpu',
);
const amounts = fc.dictionary(name, fc.constantFrom('1', '4Gi', '150'), { maxKeys: 2, noNullPrototype: true });
const container = fc.record(
  {
    name: fc.constantFrom('main', 'side'),
    resources: fc.record({ limits: amounts, requests: amounts }, { requiredKeys: [], noNullPrototype: true }),
    env: fc.constantFrom([], [{ name: 'NVIDIA_VISIBLE_DEVICES', value: 'all' }]),
    securityContext: fc.constantFrom({ privileged: true }, {}),
  },
  { requiredKeys: ['name'], noNullPrototype: true },
);
const volumes: readonly JsonObject[] = [
  { name: 'data', emptyDir: {} },
  { name: 'cotenant', emptyDir: {} },
  { name: 'cotenant', csi: { driver: 'cotenant.io' } },
  { name: 'mine', csi: { driver: 'cotenant.io', readOnly: true } },
  { name: 'other', csi: { driver: 'secrets.example.com' } },
];
const key = fc.constantFrom(
  'cotenant.io/template',
  'cotenant.io/grant',
  'gpu-uuids.cotenant.io/main',
  'cotenant.io/request',
  'gpu-fraction',
  'nvidia.com/container.main.gpu-memory.limit',
  'note',
);
const labels = fc.constantFrom({}, { app: 'x' }, { 'sharedgpu/gpu_request': '0.5' });
const annotations = fc.dictionary(key, fc.constantFrom('small', 'x'), { maxKeys: 2, noNullPrototype: true });
/** Pods as an API server would pass them on: with metadata, containers, and no mounts of volumes that are not there. */
export const pod = fc.record({
  metadata: fc.record(
    { name: fc.constant('p'), annotations, labels },
    { requiredKeys: ['name'], noNullPrototype: true },
  ),
  spec: fc.record(
    {
      containers: fc.array(container, { minLength: 1, maxLength: 2 }),
      initContainers: fc.array(container, { maxLength: 1 }),
      volumes: fc.subarray([...volumes], { maxLength: 1 }),
    },
    { requiredKeys: ['containers'], noNullPrototype: true },
  ),
}) as fc.Arbitrary<JsonObject>;

/** Pods that a webhook mostly has nothing to refuse in: sound amounts, distinct names, mounts beside and around
 * ours. */
const soundContainer = (own: string): fc.Arbitrary<JsonObject> =>
  fc.record({
    name: fc.constant(own),
    resources: fc.constantFrom(
      {},
      { limits: { cpu: '1' } },
      { limits: { 'cotenant.io/gpu-memory': '4Gi' } },
      { limits: { 'cotenant.io/gpu': '2' }, requests: { 'cotenant.io/gpu': '2' } },
      { limits: { 'cotenant.io/new': '1' } },
      { limits: { 'aliyun.com/gpu-mem': '3' } },
      { limits: { 'cnvrg.io/metagpu': '50' } },
    ),
    env: fc.constantFrom([], [{ name: 'NVIDIA_VISIBLE_DEVICES', value: 'all' }], [{ name: 'A', value: 'b' }]),
    volumeMounts: fc.subarray(
      ['/data', '/run', '/run/cotenant-data', '/etc'].map((mountPath) => ({ name: 'data', mountPath })),
    ),
    securityContext: fc.constantFrom({}, { privileged: false, capabilities: { add: ['NET_ADMIN'], drop: ['ALL'] } }),
  });

export const soundPod = fc.record({
  metadata: fc.record({
    name: fc.constant('p'),
    annotations: fc.dictionary(
      fc.constantFrom('required-plugins.noderesource.dev', 'required-plugins.noderesource.dev/pod', 'note'),
      fc.constantFrom('["numa"]', '["cotenant"]', '[]'),
      { maxKeys: 2, noNullPrototype: true },
    ),
  }),
  spec: fc.record({
    containers: fc.tuple(soundContainer('main'), soundContainer('side')),
    initContainers: fc.array(soundContainer('first'), { maxLength: 1 }),
    volumes: fc.constant([{ name: 'data', emptyDir: {} }]),
    schedulerName: fc.constant('default-scheduler'),
  }),
}) as fc.Arbitrary<JsonObject>;
