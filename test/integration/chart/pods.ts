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
const container = (own: string) =>
  fc.record(
    {
      name: fc.constant(own),
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
const containers = fc.tuple(container('main'), container('side'));
const initContainers = fc.tuple(container('first'));
const metadata = fc.record(
  { name: fc.constant('p'), annotations, labels },
  { requiredKeys: ['name'], noNullPrototype: true },
);
const mounted = fc.option(fc.subarray([...volumes], { maxLength: 1 }), { nil: undefined });
const shape = fc.record({ apps: fc.integer({ min: 1, max: 2 }), inits: fc.integer({ min: 0, max: 1 }) });
const parts = fc.record({ metadata, containers, initContainers, volumes: mounted });

type Drawn<T> = T extends fc.Arbitrary<infer Value> ? Value : never;

function podOf({ apps, inits }: Drawn<typeof shape>, given: Drawn<typeof parts>): JsonObject {
  const spec = {
    containers: given.containers.slice(0, apps),
    ...(inits === 0 ? {} : { initContainers: given.initContainers }),
    ...(given.volumes === undefined ? {} : { volumes: given.volumes }),
  };
  return { metadata: given.metadata, spec } as unknown as JsonObject;
}

/** Pods as an API server would pass them on: with metadata, containers of distinct names, and no mounts of volumes
 * that are not there. */
export const pod = fc.tuple(shape, parts).map(([size, given]) => podOf(size, given));

/** A pod before and after a change, with the same containers in the same lists: an API server refuses to add, remove
 * or move any before it calls a validating webhook ("pod updates may not add or remove containers",
 * pkg/apis/core/validation of Kubernetes). */
export const changedPod = fc
  .tuple(shape, parts, parts)
  .map(([size, before, after]) => [podOf(size, before), podOf(size, after)] as const);

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
