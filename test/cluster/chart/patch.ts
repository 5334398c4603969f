// admission.mode policy on a real API server, held against the webhook: random pods become exactly what the webhook
// makes of them, and none passes that the webhook refuses. What the API server's policy refuses beyond it is listed.
import type { ExecutionContext } from 'ava';
import fc from 'fast-check';
import { isDeepEqual } from '../../../src/common/deep-equal.ts';
import type { JsonObject } from '../../../src/common/json.ts';
import { formatProblem } from '../../../src/common/problem.ts';
import { parseConfiguration } from '../../../webhook/config.ts';
import { mutatePod } from '../../../webhook/mutate.ts';

/** The webhook's configuration that the chart is installed with. */
export const PATCHED_BY = {
  schedulerName: 'cotenant-scheduler',
  replacedSchedulers: ['jhub-user-scheduler'],
  toleratedTaints: ['nvidia.com/gpu'],
  rules: { driverCapabilities: ['compute', 'utility', 'video'], enforcement: 'report', placements: ['binpack'] },
};

/** What the webhook does with a warning, and the policy refuses: it cannot remove or warn. */
const BEYOND = /NVIDIA_GPU_MEMORY_|chooses cotenant.io\/placement and|lacks mounts of the volume|has another NVIDIA_V/;

const some = <T>(...values: readonly T[]) => fc.constantFrom(...values);
const mostly = <T>(arbitrary: fc.Arbitrary<T>, seldom: fc.Arbitrary<T>) =>
  fc.oneof({ weight: 16, arbitrary }, { weight: 1, arbitrary: seldom });
/** In the text of the API server, so that both read the same. */
const amounts = fc.record(
  {
    'cotenant.io/gpu': some('1', '2', '3', '65', '0'),
    'cotenant.io/gpu-memory': some('1Gi', '6Gi', '1536Mi', '2Ti', '4096', '1G', '3Mi', '2048Pi'),
    'cotenant.io/gpu-cores': some('10', '50', '100', '300', '7'),
    'cotenant.io/gpu-mem': some('1Gi'),
    'nvidia.com/gpu': some('1'),
    cpu: some('1'),
  },
  { requiredKeys: [], noNullPrototype: true },
);
const usual = fc.record(
  {
    'cotenant.io/gpu': some('1', '2'),
    'cotenant.io/gpu-memory': some('2Gi', '1536Mi', '2Ti'),
    'cotenant.io/gpu-cores': some('10', '100'),
  },
  { requiredKeys: [], noNullPrototype: true },
);
const env = fc.subarray([
  { name: 'A', value: 'b' },
  { name: 'NVIDIA_VISIBLE_DEVICES', value: 'all' },
  { name: 'NVIDIA_DRIVER_CAPABILITIES', value: 'video, graphics' },
  { name: 'B', value: '$(A)' },
]);
const container = (name: string, more: object = {}) =>
  fc.record(
    {
      name: fc.constant(name),
      image: fc.constant('x'),
      resources: fc.record({
        limits: mostly(usual, amounts),
      }),
      env: mostly(env, some([{ name: 'NVIDIA_GPU_MEMORY_LIMIT', value: '1' }])),
      volumeMounts: mostly(
        fc.subarray(['/data', '/run'].map((mountPath) => ({ name: 'data', mountPath }))),
        some([{ name: 'data', mountPath: '/etc/ld.so.preload' }]),
      ),
      securityContext: mostly(some({}), some({ privileged: true }, { capabilities: { add: ['sys_ptrace'] } })),
      ...more,
    },
    { requiredKeys: ['name', 'image'], noNullPrototype: true },
  );
const pods = fc.record({
  apiVersion: fc.constant('v1'),
  kind: fc.constant('Pod'),
  metadata: fc.record(
    {
      name: fc.constant('p'),
      annotations: fc.dictionary(
        some('note', 'cotenant.io/placement', 'cotenant.io/compute-policy', 'required-plugins.noderesource.dev'),
        some('binpack', 'fixed', '["cotenant"]'),
        { maxKeys: 1, noNullPrototype: true },
      ),
    },
    { requiredKeys: ['name'], noNullPrototype: true },
  ),
  spec: fc.record(
    {
      containers: fc.tuple(container('main'), container('b')),
      initContainers: fc.tuple(container('first'), container('side', { restartPolicy: fc.constant('Always') })),
      // Its volume has a name that is drawn for each creation.
      automountServiceAccountToken: fc.constant(false),
      volumes: fc.constant([{ name: 'data', emptyDir: {} }]),
      schedulerName: mostly(some('default-scheduler', 'jhub-user-scheduler', 'cotenant-scheduler'), some('volcano')),
      tolerations: some([], [{ operator: 'Exists' }], [{ key: 'nvidia.com/gpu', operator: 'Exists' }]),
      hostPID: mostly(some(false), some(true)),
      os: mostly(some({ name: 'linux' }), some({ name: 'windows' })),
    },
    { requiredKeys: ['containers', 'volumes', 'automountServiceAccountToken'], noNullPrototype: true },
  ),
}) as unknown as fc.Arbitrary<JsonObject>;

export type Answer = { readonly allowed: boolean; readonly said: string; readonly stored: unknown };
export type Create = (namespace: string, pod: JsonObject) => Promise<Answer>;
export type Draw = { readonly numRuns: number; readonly seed: number };
export type Seen = Record<'patched' | 'untouched' | 'refused' | 'beyond', number>;

/** How many drawn pods both make the same of; rejects with the first on which they differ. */
export async function comparePatches(create: Create, configuration: object, draw: Draw): Promise<Seen> {
  const read = parseConfiguration(configuration);
  if (!read.ok) throw new Error(read.error.map(formatProblem).join('\n'));
  const seen = { patched: 0, untouched: 0, refused: 0, beyond: 0 };
  for (const pod of fc.sample(pods, draw)) {
    // With the API server's own defaults: the policies skip this namespace.
    const plain = await create('kube-system', pod);
    if (!plain.allowed) continue;
    const mutation = mutatePod(plain.stored as JsonObject, 'default', read.value);
    const answer = await create('default', pod);
    const what = () => `${JSON.stringify(pod)}\n${answer.said}\n`;
    if (mutation.kind === 'refused') {
      if (answer.allowed) throw new Error(`${what()}the webhook refuses: ${mutation.problems.map(formatProblem)}`);
      seen.refused += 1;
    } else if (!answer.allowed) {
      if (!BEYOND.test(answer.said)) throw new Error(`${what()}the webhook does not refuse it`);
      seen.beyond += 1;
    } else {
      const expected = comparable(mutation.kind === 'patched' ? mutation.pod : (plain.stored as JsonObject));
      const got = comparable(answer.stored as JsonObject);
      if (!isDeepEqual(expected, got)) throw new Error(`${what()}${JSON.stringify(got)}\n${JSON.stringify(expected)}`);
      seen[mutation.kind] += 1;
    }
  }
  return seen;
}

/** Without what is another for each creation. */
function comparable(pod: JsonObject): JsonObject {
  const copy = structuredClone(pod) as { metadata: Record<string, unknown>; spec: object };
  for (const key of ['namespace', 'uid', 'creationTimestamp', 'managedFields', 'generation']) delete copy.metadata[key];
  return copy;
}

/** Each wrong in one respect, with what the policy says. */
const REFUSED: readonly (readonly [pod: JsonObject, said: RegExp])[] = [
  [
    asking({ 'cotenant.io/gpu-memory': '4096' }),
    /main asks for amounts that make no share; write cotenant.io\/gpu: 1 to/,
  ],
  [asking({ 'cotenant.io/gpu': '2', 'cotenant.io/gpu-cores': '25' }), /main asks for amounts that make no share/],
  [asking({ 'cotenant.io/gpu-mem': '1Gi' }), /there are cotenant.io\/gpu, cotenant.io\/gpu-memory and/],
  [asking({ 'cotenant.io/gpu-cores': '5', 'nvidia.com/gpu': '1' }), /NVIDIA's device plugin does not run on nodes/],
  [asking({ 'cotenant.io/gpu': '1' }, { 'cotenant.io/gpu-model': 'A100' }), /chooses cotenant.io\/placement and/],
  [asking({ 'cotenant.io/gpu': '1' }, { 'cotenant.io/placement': 'spread' }), /of the values that are allowed/],
  [asking({ cpu: '1' }, { 'cotenant.io/request': '{}' }), /records a request, but no container asks for a share/],
  [
    asking({ 'cotenant.io/gpu': '1' }, {}, [{ name: 'CUDA_MPS_PIPE_DIRECTORY', value: '/x' }]),
    /would bypass the limits/,
  ],
  ...[
    { os: { name: 'windows' } },
    { securityContext: { windowsOptions: { runAsUserName: 'ContainerUser' } } },
    main({ 'cotenant.io/gpu': '1' }, { securityContext: { windowsOptions: { runAsUserName: 'ContainerUser' } } }),
    { nodeSelector: { 'beta.kubernetes.io/os': 'windows' } },
    requiring(['windows']),
  ].map((spec): [JsonObject, RegExp] => [
    asking({ 'cotenant.io/gpu': '1' }, {}, [], spec),
    /spec: .* make it a pod of Windows, and Cotenant shares no GPUs with those/,
  ]),
];
/** Alike, and no pods of Windows, or without another GPU. */
const TAKEN: readonly JsonObject[] = [
  main({ 'cotenant.io/gpu': '1', 'nvidia.com/gpu': '0' }),
  { securityContext: { windowsOptions: {} } },
  { nodeSelector: { 'beta.kubernetes.io/os': 'linux' } },
  requiring(['windows'], ['linux']),
  requiring(['windows', 'linux']),
];

function main(limits: JsonObject, more: JsonObject = {}): JsonObject {
  return { containers: [{ name: 'main', image: 'x', resources: { limits }, ...more }] };
}

function asking(
  limits: JsonObject,
  annotations: JsonObject = {},
  env: readonly JsonObject[] = [],
  spec: JsonObject = {},
): JsonObject {
  return {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { name: 'p', annotations },
    spec: { ...main(limits, { env }), ...spec },
  };
}

/** Operating systems of its nodes, of each term of its required affinity. */
function requiring(...terms: readonly string[][]): JsonObject {
  const nodeSelectorTerms = terms.map((values) => ({
    matchExpressions: [{ key: 'kubernetes.io/os', operator: 'In', values }],
  }));
  return { affinity: { nodeAffinity: { requiredDuringSchedulingIgnoredDuringExecution: { nodeSelectorTerms } } } };
}

/** With the chart in this mode, whose policies are in force. */
export async function checkPatch(t: ExecutionContext, create: Create, configuration: object): Promise<void> {
  const seen = await comparePatches(create, configuration, { numRuns: 80, seed: 1 });
  t.true(seen.patched > 20 && seen.refused > 20 && seen.beyond > 0, JSON.stringify(seen));
  for (const [pod, said] of REFUSED) {
    const answer = await create('default', pod);
    t.false(answer.allowed, JSON.stringify(pod));
    t.regex(answer.said, said);
  }
  for (const spec of TAKEN) {
    const answer = await create('default', asking({ 'cotenant.io/gpu': '1' }, {}, [], spec));
    t.true(answer.allowed, `${JSON.stringify(spec)} ${answer.said}`);
  }
}
