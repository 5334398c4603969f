// Random pods, reasonable and hostile: what holds for every one of them.
import test, { type ExecutionContext } from 'ava';
import fc from 'fast-check';
import { FOREIGN_DIALECT_NAMES } from '../../../src/api/request.ts';
import { isDeepEqual } from '../../../src/common/deep-equal.ts';
import type { JsonObject } from '../../../src/common/json.ts';
import { review } from '../../../webhook/admission-review.ts';
import { DEVICE_ROUTES } from '../../../webhook/config.ts';
import { diff, verifyPatch } from '../../../webhook/json-patch.ts';
import { mutatePod } from '../../../webhook/mutate.ts';
import { configured, creation } from './reviews.ts';

/** Of all properties together; `npm run test:long` has a million. */
const REVIEWS = Number(process.env.COTENANT_REVIEWS ?? 10_000);
const PART = 10_000;
/** Of the API server for one review, in the chart. */
const DEADLINE_MS = 2000;

const configuration = configured({
  rules: {
    dialects: FOREIGN_DIALECT_NAMES,
    nvidiaReplicas: 4,
    allowMemoryIsolationOff: true,
    allowMemoryOvercommit: true,
    allowGpuUuid: true,
    priorities: ['normal', 'high'],
    templates: { small: { gpuMemory: '1Gi' } },
  },
  runtimeClassName: 'nvidia',
});

const amounts = fc.constantFrom<unknown>(
  '1',
  2,
  '3',
  '4Gi',
  '1536Mi',
  '30',
  '150',
  '100',
  '0',
  '-1',
  '4G',
  '1e30',
  'x',
  null,
);
const resources = fc.dictionary(
  fc.constantFrom(
    'cotenant.io/gpu',
    'cotenant.io/gpu-memory',
    'cotenant.io/gpu-cores',
    'aliyun.com/gpu-mem',
    'aliyun.com/gpu-core.percentage',
    'cnvrg.io/metagpu',
    'nvidia.com/gpu',
    'nvidia.com/gpumem',
    'nvidia.com/gpu.shared',
    'nvidia.com/gpu-10gb',
    'nvidia.com/mig-1g.10gb',
    'koordinator.sh/gpu',
    'koordinator.sh/gpu-memory',
    'tencent.com/vcuda-core',
    'volcano.sh/vgpu-number',
    'cpu',
  ),
  amounts,
  { maxKeys: 3, noNullPrototype: true },
);
const variable = fc.record({
  name: fc.constantFrom(
    'A',
    'NVIDIA_VISIBLE_DEVICES',
    'NVIDIA_DRIVER_CAPABILITIES',
    'CGPU_DISABLE',
    'LD_AUDIT',
    'CUDA_MPS_X',
  ),
  value: fc.constantFrom('1', 'all', 'void', 'compute', 'true'),
});
const mount = fc.record({
  name: fc.constantFrom('own', 'cotenant'),
  mountPath: fc.constantFrom('/data', '/run', '/var/run', '/run/cotenant', '/etc/ld.so.preload'),
});
const rare = <T>(value: fc.Arbitrary<T>) => fc.option(value, { nil: undefined, freq: 1 });
const container = fc.record(
  {
    name: fc.constantFrom('main', 'helper', 'agent', 'init', 'Bad_Name'),
    env: fc.array(variable, { maxLength: 4 }),
    resources: fc.record({ limits: resources, requests: rare(resources) }, { requiredKeys: [] }),
    volumeMounts: fc.array(mount, { maxLength: 2 }),
    restartPolicy: rare(fc.constantFrom('Always')),
    securityContext: rare(fc.record({ privileged: fc.boolean() })),
  },
  { requiredKeys: ['name'], noNullPrototype: true },
);
const annotations = fc.dictionary(
  fc.constantFrom(
    'cotenant.io/placement',
    'cotenant.io/priority',
    'cotenant.io/template',
    'cotenant.io/request',
    'gpu-fraction',
    'gpu-memory',
    'gpu-fraction-container-name',
    'nvidia.com/container.main.gpu-memory.request',
    'hami.io/gpu-scheduler-policy',
    'note',
  ),
  fc.constantFrom('spread', 'high', 'small', 'main=small', '{}', 'x', '0.5', '2000', 'main', '8Gi'),
  { maxKeys: 2, noNullPrototype: true },
);
const pod = fc.record(
  {
    metadata: fc.record(
      { annotations, labels: fc.constantFrom({}, { 'aliyun.com/gpu-count': '2' }, { 'sharedgpu/gpu_request': '0.5' }) },
      { requiredKeys: [], noNullPrototype: true },
    ),
    spec: fc.record(
      {
        containers: fc.array(container, { minLength: 1, maxLength: 3 }),
        initContainers: fc.array(container, { maxLength: 2 }),
        volumes: fc.constantFrom<unknown[]>([], [{ name: 'own', emptyDir: {} }]),
        schedulerName: fc.constantFrom('default-scheduler', 'cotenant-scheduler', 'other'),
      },
      { requiredKeys: ['containers'], noNullPrototype: true },
    ),
  },
  { requiredKeys: ['spec'], noNullPrototype: true },
) as fc.Arbitrary<JsonObject>;

/** Whether the pod asks for a GPU in any name of the generators. */
function asks({ metadata, spec }: JsonObject): boolean {
  const { annotations, labels } = (metadata ?? {}) as { annotations?: object; labels?: object };
  const keys = Object.keys({ ...annotations, ...labels });
  if (keys.some((key) => /^(gpu-fraction|gpu-memory|sharedgpu\/gpu_request|nvidia\.com\/container\..*)$/.test(key)))
    return true;
  const { containers, initContainers = [] } = spec as { containers: JsonObject[]; initContainers?: JsonObject[] };
  return [...containers, ...initContainers].some(({ resources }) => {
    const { limits, requests } = (resources ?? {}) as { limits?: object; requests?: object };
    return [...Object.entries(limits ?? {}), ...Object.entries(requests ?? {})].some(
      ([name, amount]) => name !== 'cpu' && amount !== null && amount !== '0',
    );
  });
}

/** In parts, between which the process can report: AVA ends a file that says nothing for minutes. */
async function holds<T>(t: ExecutionContext, property: fc.IProperty<T>, runs: number): Promise<void> {
  t.timeout(7_200_000);
  for (let left = runs; left > 0; left -= PART) {
    await new Promise((resolve) => setImmediate(resolve));
    t.notThrows(() => fc.assert(property, { numRuns: Math.min(left, PART) }));
  }
}

/** One pod in three has one share only and nothing odd, so that most properties also see pods that are patched. */
const plainShare = fc
  .tuple(
    pod,
    fc.constantFrom({ 'cotenant.io/gpu-memory': '2Gi' }, { 'aliyun.com/gpu-mem': '4' }, { 'cnvrg.io/metagpu': '150' }),
  )
  .map(([{ metadata: _, spec, ...rest }, limits]): JsonObject => {
    const { initContainers: _more, ...kept } = spec as JsonObject;
    const containers = [{ name: 'main', resources: { limits } }, { name: 'side' }];
    return { ...rest, spec: { ...kept, containers, schedulerName: 'default-scheduler' } };
  });
const anyPod = fc.oneof({ weight: 2, arbitrary: pod }, { weight: 1, arbitrary: plainShare });

test('for any pod: no exception, unchanged input, a right patch, an empty second pass', async (t) => {
  const kinds = { untouched: 0, patched: 0, refused: 0 };
  const property = fc.property(anyPod, (given) => {
    const text = JSON.stringify(given);
    const injection = mutatePod(given, 'team-a', configuration);
    kinds[injection.kind] += 1;
    if (JSON.stringify(given) !== text) throw new Error('the pod was changed');
    if (injection.kind === 'untouched' && asks(given)) throw new Error('a pod that asks for a GPU was let through');
    if (injection.kind !== 'patched') return;
    const operations = diff(given, injection.pod);
    if (operations.length === 0) throw new Error('a pod of this shape cannot have been patched before');
    const proof = verifyPatch(given, operations, injection.pod);
    if (!proof.ok) throw new Error(proof.error);
    // The API server parses the patched pod again, so the second pass must not depend on identical objects.
    const reread = JSON.parse(JSON.stringify(injection.pod));
    const again = mutatePod(reread, 'team-a', configuration);
    if (again.kind !== 'patched' || diff(reread, again.pod).length > 0) throw new Error('a second pass changes it');
    if (again.record !== injection.record) throw new Error('a second pass reads another request');
  });
  await holds(t, property, 0.4 * REVIEWS);
  const least = REVIEWS / 100;
  const isEnough = () => kinds.untouched > least && kinds.patched > 10 * least && kinds.refused > 5 * least;
  // Some 137 of 4,000 are left untouched, now and then fewer than 100: they are drawn until there are enough.
  for (let more = 0; more < 20 && !isEnough(); more += 1) await holds(t, property, 0.04 * REVIEWS);
  t.true(isEnough(), JSON.stringify(kinds));
});

test('any patched pod has the volume, the device variable and our scheduler', async (t) => {
  await holds(
    t,
    fc.property(anyPod, fc.constantFrom(...DEVICE_ROUTES), (given, deviceRoute) => {
      const injection = mutatePod(given, 'team-a', { ...configuration, deviceRoute });
      if (injection.kind !== 'patched') return;
      const spec = injection.pod.spec as {
        volumes: unknown[];
        schedulerName: string;
        containers: {
          env: { name: string; value?: string }[];
          resources?: { limits?: object };
          volumeMounts?: unknown[];
        }[];
        initContainers?: (typeof spec)['containers'];
      };
      if (!spec.volumes.some((volume) => isDeepEqual({ name: 'cotenant', csi: { driver: 'cotenant.io' } }, volume))) {
        throw new Error('no volume');
      }
      if (spec.schedulerName !== 'cotenant-scheduler') throw new Error(spec.schedulerName);
      for (const each of [...spec.containers, ...(spec.initContainers ?? [])]) {
        const share = Object.hasOwn(each.resources?.limits ?? {}, 'cotenant.io/gpu');
        const visible = each.env.filter(({ name }) => name === 'NVIDIA_VISIBLE_DEVICES');
        const open = share && deviceRoute === 'environment';
        if (visible.length !== 1 || (visible[0]?.value === 'void') === open) throw new Error('devices are open');
        if (share && (each.volumeMounts?.length ?? 0) < 4) throw new Error('mounts are missing');
        const foreign = Object.keys(each.resources?.limits ?? {}).filter(
          (name) => !/^(cotenant\.io\/|cpu$)/.test(name),
        );
        if (foreign.length > 0) throw new Error(`left to count: ${foreign}`);
      }
    }),
    0.2 * REVIEWS,
  );
});

test('any JSON is answered or malformed, and never a fault of the webhook', async (t) => {
  const keys = fc.oneof(
    fc.constantFrom(
      'uid',
      'object',
      'oldObject',
      'operation',
      'resource',
      'subResource',
      'spec',
      'metadata',
      'containers',
    ),
    fc.constantFrom('name', 'env', 'volumes', 'volumeMounts', 'resources', 'limits', 'annotations', '__proto__', 'csi'),
    fc.constantFrom('cotenant.io/gpu', 'cotenant.io/request', 'ephemeralContainers', 'securityContext', 'mountPath'),
  );
  const { value } = fc.letrec((tie) => ({
    value: fc.oneof(
      { depthSize: 'medium', withCrossShrink: true },
      fc.constantFrom<unknown>(null, 1, true, '', 'x', 'cotenant', '2', 'UPDATE', 'CREATE', 'pods', '/run/cotenant'),
      fc.array(tie('value'), { maxLength: 3 }),
      fc.dictionary(keys, tie('value'), { maxKeys: 5, noNullPrototype: true }),
    ),
  }));
  const operations = fc.constantFrom(
    { operation: 'CREATE' },
    { operation: 'UPDATE', subResource: 'ephemeralcontainers' },
  );
  await holds(
    t,
    fc.property(value, value, operations, fc.constantFrom('mutate', 'validate'), (object, oldObject, more, route) => {
      const text = JSON.stringify([object, oldObject]);
      const started = performance.now();
      const reviewed = review(route, creation(object, { oldObject, ...more }), configuration);
      if (performance.now() - started > DEADLINE_MS) throw new Error('the answer came too late');
      if (reviewed.outcome === 'malformed' || reviewed.outcome === 'internal')
        throw new Error(JSON.stringify(reviewed));
      if (review(route, object, configuration).outcome !== 'malformed' && !Object.hasOwn(Object(object), 'request')) {
        throw new Error('an answer without a uid');
      }
      if (JSON.stringify([object, oldObject]) !== text) throw new Error('the review was changed');
    }),
    0.4 * REVIEWS,
  );
});
