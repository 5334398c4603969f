import test from 'ava';
import fc from 'fast-check';
import { formatProblem } from '../../../src/request/problem.ts';
import { readPodRequest } from '../../../src/request/read.ts';
import type { PodRequest } from '../../../src/request/request.ts';
import { COMPUTE_POLICIES, type Rules } from '../../../src/request/rules.ts';
import { outcome, podWith, rules } from './pods.ts';

const M = 'cotenant.io/gpu-memory';
const share = (name: string, more: object = {}) => ({ name, resources: { limits: { [M]: '1Gi' } }, ...more });

function requestOf(pod: object, under: Rules = rules()): PodRequest {
  const reading = readPodRequest(pod, under);
  if (reading.kind === 'request') return reading.request;
  throw new Error(reading.kind === 'none' ? 'asks for nothing' : reading.problems.map(formatProblem).join('\n'));
}

function warningsOf(pod: object, under: Rules = rules()): readonly string[] {
  const reading = readPodRequest(pod, under);
  return reading.kind === 'request' ? reading.warnings : [reading.kind];
}

test('init containers, sidecars and containers all count, each with its kind and by name', (t) => {
  const pod = {
    spec: {
      initContainers: [share('warm-up'), share('agent', { restartPolicy: 'Always' }), { name: 'copy' }],
      containers: [share('main'), { name: 'web', resources: {} }],
    },
  };
  t.deepEqual(
    requestOf(pod).containers.map(({ name, kind }) => [name, kind]),
    [
      ['agent', 'sidecar'],
      ['main', 'app'],
      ['warm-up', 'init'],
    ],
  );
});

test('a pod that asks for nothing asks for nothing, whatever else it holds', (t) => {
  const pods = [
    { spec: { containers: [{ name: 'a' }] } },
    { spec: { containers: [] } },
    { spec: { containers: null, initContainers: null } },
    { metadata: { annotations: { 'cotenant.io/placement': 'nonsense' } }, spec: { containers: [{ name: 'a' }] } },
    podWith({ 'nvidia.com/gpu': '1', cpu: '2' }),
  ];
  for (const pod of pods) t.is(outcome(pod, rules()), 'none');
});

const REFUSED: Record<string, [pod: object, expected: string[]]> = {
  'no spec': [{ metadata: {} }, ['spec: is missing; write the pod with its spec']],
  'containers of another type': [
    { spec: { containers: 'x' } },
    ['spec.containers: "x" is not a list; write a list of containers'],
  ],
  'a container of another type': [
    { spec: { containers: [7] } },
    ['spec.containers[0]: 7 is not a container; write an object with a name and an image'],
  ],
  'annotations of another type': [
    { metadata: { annotations: ['x'] }, spec: { containers: [] } },
    ['metadata.annotations: a list of 1 is not a map; write keys with their values'],
  ],
  'requests that differ': [
    { spec: { containers: [{ name: 'a', resources: { limits: { [M]: '2Gi' }, requests: { [M]: '1Gi' } } }] } },
    [`spec.containers[0].resources.requests["${M}"]: "1Gi" is not the limit "2Gi"; write the same amount in both`],
  ],
  'requests without limits': [
    { spec: { containers: [{ name: 'a', resources: { requests: { [M]: '1Gi' } } }] } },
    [
      `spec.containers[0].resources.requests["${M}"]: "1Gi" has no limit beside it; write the same amount under resources.limits`,
    ],
  ],
  'a limit of another type': [
    podWith({ [M]: { amount: 1 } }),
    [`spec.containers[0].resources.limits["${M}"]: an object is not a quantity; write a number or a text`],
  ],
  'limits of another type': [
    { spec: { initContainers: [{ name: 'a', resources: { limits: 5 } }] } },
    ['spec.initContainers[0].resources.limits: 5 is not a map; write resource names with their amounts'],
  ],
  'two dialects in one container': [
    podWith({ [M]: '1Gi', 'aliyun.com/gpu-mem': '3' }),
    [
      `spec.containers[0].resources.limits: has names of two dialects (${M}: 1Gi; aliyun.com/gpu-mem: 3); write the amounts in one of them`,
    ],
  ],
  'a container without a name': [
    { spec: { containers: [share('')] } },
    ['spec.containers[0].name: "" is no name; write at most 63 of a-z, 0-9 and "-"'],
  ],
  'a name that would be a path': [
    { spec: { containers: [share('../../x')] } },
    ['spec.containers[0].name: "../../x" is no name; write at most 63 of a-z, 0-9 and "-"'],
  ],
  'one name twice': [
    { spec: { initContainers: [share('a')], containers: [share('a')] } },
    ['spec.containers: "a" names two containers; give each its own name'],
  ],
  'an unknown placement': [
    podWith({ [M]: '1Gi' }, { annotations: { 'cotenant.io/placement': 'best' } }),
    ['metadata.annotations["cotenant.io/placement"]: "best" is not known; write one of binpack, spread, fragmentation'],
  ],
  'isolation off': [
    podWith({ [M]: '1Gi' }, { annotations: { 'cotenant.io/memory-isolation': 'off' } }),
    ['metadata.annotations["cotenant.io/memory-isolation"]: "off" is not allowed in this namespace; write one of on'],
  ],
  'high priority': [
    podWith({ [M]: '1Gi' }, { annotations: { 'cotenant.io/priority': 'high' } }),
    ['metadata.annotations["cotenant.io/priority"]: "high" is not allowed in this namespace; write one of normal'],
  ],
  'native policy': [
    podWith({ [M]: '1Gi' }, { annotations: { 'cotenant.io/compute-policy': 'native' } }),
    [
      'metadata.annotations["cotenant.io/compute-policy"]: "native" is not allowed in this namespace; write one of average, preemptive, weighted, fixed, soft',
    ],
  ],
  'a fixed card': [
    podWith({ [M]: '1Gi' }, { annotations: { 'cotenant.io/gpu-uuid': 'GPU-1' } }),
    ['metadata.annotations["cotenant.io/gpu-uuid"]: "GPU-1" is not allowed in this namespace; leave it out'],
  ],
  'an annotation of another type': [
    podWith({ [M]: '1Gi' }, { annotations: { 'cotenant.io/priority': 5 } }),
    ['metadata.annotations["cotenant.io/priority"]: 5 is not text; write a text'],
  ],
  'a template where none are configured': [
    podWith({}, { annotations: { 'cotenant.io/template': 'small' } }),
    [
      'metadata.annotations["cotenant.io/template"]: "small" names a template, but no templates are configured; leave it out and write amounts under resources.limits',
    ],
  ],
};

for (const [name, [pod, expected]] of Object.entries(REFUSED)) {
  test(`refused with field, value and what would be right: ${name}`, (t) => {
    t.deepEqual(outcome(pod, rules()), expected);
  });
}

test('annotations choose for the whole pod where the rules allow it', (t) => {
  const allowed = rules({
    priorities: ['normal', 'high'],
    allowGpuUuid: true,
    allowMemoryIsolationOff: true,
    computePolicies: ['native'],
  });
  const annotations = {
    'cotenant.io/placement': 'spread',
    'cotenant.io/compute-policy': 'native',
    'cotenant.io/priority': 'high',
    'cotenant.io/memory-isolation': 'off',
    'cotenant.io/gpu-model': 'Tesla T4, NVIDIA H200,Tesla T4',
    'cotenant.io/gpu-uuid': 'GPU-2,GPU-1',
  };
  const { containers, ...chosen } = requestOf(
    podWith({ [M]: '2Gi', 'cotenant.io/gpu': '2' }, { annotations }),
    allowed,
  );
  t.deepEqual(chosen, {
    priority: 'high',
    placement: 'spread',
    computePolicy: 'native',
    gpuModels: ['NVIDIA H200', 'Tesla T4'],
    gpuUuids: ['GPU-1', 'GPU-2'],
  });
  t.is(containers[0]?.memoryIsolation, 'off');
  const three = podWith({ [M]: '3Gi', 'cotenant.io/gpu': '3' }, { annotations });
  t.deepEqual(outcome(three, allowed), [
    'metadata.annotations["cotenant.io/gpu-uuid"]: "GPU-1,GPU-2" names fewer cards than the 3 that "main" asks for; name 3 cards',
  ]);
});

test('where every share must count in a quota on memory, whole cards and percent are refused, however they are asked for', (t) => {
  const counted = rules({ allowUncountedMemory: false, templates: { whole: { gpu: 1 } } });
  const refusal = (amounts: string) =>
    `spec.containers[0].resources.limits: "${amounts}" is a share whose memory no quota counts, which is not allowed in this namespace; write ${M}, or have allowUncountedMemory switched on`;
  const G = 'cotenant.io/gpu';
  const C = 'cotenant.io/gpu-cores';
  t.deepEqual(outcome(podWith({ [G]: '1' }), counted), [refusal(`${G}: 1`)]);
  t.deepEqual(outcome(podWith({ [C]: '10' }), counted), [refusal(`${G}: 1, ${C}: 10`)]);
  t.deepEqual(outcome(podWith({ 'cnvrg.io/metagpu': '50' }), counted), [refusal('cnvrg.io/metagpu: 50')]);
  t.deepEqual(outcome(podWith({}, { annotations: { 'cotenant.io/template': 'whole' } }), counted), [
    refusal(`${G}: 1, cotenant.io/template: whole`),
  ]);
  for (const limits of [{ [M]: '1Gi' }, { [G]: '2', [M]: '2Gi' }, { 'aliyun.com/gpu-mem': '3' }]) {
    t.is(requestOf(podWith(limits), counted).containers.length, 1);
  }
});

test('an isolation that is on and off at once is refused', (t) => {
  const pod = podWith(
    { 'aliyun.com/gpu-mem': '3' },
    { annotations: { 'cotenant.io/memory-isolation': 'on' }, env: [{ name: 'CGPU_DISABLE', value: '1' }] },
  );
  t.deepEqual(outcome(pod, rules({ allowMemoryIsolationOff: true })), [
    'spec.containers[0].env: "CGPU_DISABLE=1" contradicts cotenant.io/memory-isolation: on; leave one of the two out',
  ]);
});

test('what a user must know but need not change is a warning', (t) => {
  t.deepEqual(warningsOf(podWith({ [M]: '1Gi' })), []);
  t.deepEqual(warningsOf(podWith({ [M]: '1Gi', 'cotenant.io/gpu-cores': '10' })), []);
  t.deepEqual(warningsOf(podWith({ 'aliyun.com/gpu-mem': '1', 'aliyun.com/gpu-core.percentage': '7' })), [
    'aliyun.com/gpu-core.percentage: 7 is taken as it is; ACK itself takes steps of 5',
  ]);
  t.deepEqual(warningsOf(podWith({ 'cotenant.io/gpu-cores': '10' })), [
    'cotenant.io/gpu-memory is not given, so all memory of the card is reserved and nobody else fits on it',
  ]);
});

const sizes = rules({
  templates: { small: { gpuMemory: '4Gi' }, large: { gpu: 2, gpuMemory: '64Gi', gpuCores: 100 } },
});
const templated = (template: string, ...containers: object[]) => ({
  metadata: { annotations: { 'cotenant.io/template': template } },
  spec: { containers },
});

test('a template stands for amounts, for the only container or for those that are named', (t) => {
  const [only] = requestOf(templated('small', { name: 'main' }), sizes).containers;
  t.deepEqual(only?.asked, {
    'cotenant.io/gpu': '1',
    'cotenant.io/gpu-memory': '4Gi',
    'cotenant.io/template': 'small',
  });
  const named = requestOf(templated('b=small, a=large', { name: 'a' }, { name: 'b' }, { name: 'c' }), sizes);
  t.deepEqual(
    named.containers.map(({ name, cards }) => [name, cards.length]),
    [
      ['a', 2],
      ['b', 1],
    ],
  );
});

test('blanks around names of templates do not count, however many there are', (t) => {
  const blanks = ' '.repeat(4000);
  const spaced = requestOf(templated(`${blanks}b =${blanks}small , a= large`, { name: 'a' }, { name: 'b' }), sizes);
  t.deepEqual(
    spaced.containers.map(({ name, asked }) => [name, asked['cotenant.io/template']]),
    [
      ['a', 'large'],
      ['b', 'small'],
    ],
  );
  // Whoever tries all ways to split these blanks never comes to an end.
  const hostile = outcome(templated(`${' '.repeat(8000)}x\ny`, { name: 'a' }), sizes) as string[];
  t.regex(hostile[0] ?? '', /is no configured template/);
});

test('an annotation that is absurdly long is refused unread', (t) => {
  t.deepEqual(outcome(templated(`small${' '.repeat(8188)}`, { name: 'a' }), sizes), [
    `metadata.annotations["cotenant.io/template"]: "small${' '.repeat(75)}..." is longer than 8192 characters; write a shorter text`,
  ]);
});

test('a template that is unclear, unknown or contradicted is refused', (t) => {
  const path = 'metadata.annotations["cotenant.io/template"]';
  const two = [{ name: 'a' }, { name: 'b' }];
  t.deepEqual(outcome(templated('small', ...two), sizes), [
    `${path}: "small" does not say which container it is for; write container=small for each of the 2 containers that is meant`,
  ]);
  t.deepEqual(outcome(templated('huge', { name: 'a' }), sizes), [
    `${path}: "huge" is no configured template; write one of small, large, or container=template with commas`,
  ]);
  t.deepEqual(outcome(templated('z=small', ...two), sizes), [
    `${path}: "z=small" names a container that is not in the pod; write one of a, b`,
  ]);
  t.deepEqual(outcome(templated('a=small,a=large', ...two), sizes), [
    `${path}: "a=large" names no container, or one twice; write one of small, large, or container=template with commas`,
  ]);
  t.deepEqual(outcome(templated('small', share('a')), sizes), [
    `spec.containers[0].resources.limits: "${M}: 1Gi" stands beside template "small", which is cotenant.io/gpu: 1, ${M}: 4Gi; leave out the amounts or annotation cotenant.io/template`,
  ]);
});

test('a request of any JSON-like value is read or refused, never thrown over', (t) => {
  const names = fc.constantFrom(
    'spec',
    'metadata',
    'containers',
    'initContainers',
    'resources',
    'limits',
    'requests',
    'annotations',
    'labels',
    'env',
    'name',
    'valueFrom',
    '__proto__',
    'constructor',
    'aliyun.com/gpu-mem',
    'cnvrg.io/metagpu',
    'cotenant.io/gpu',
    'cotenant.io/request',
    'cotenant.io/template',
    M,
  );
  const { pod } = fc.letrec((tie) => ({
    pod: fc.oneof(
      { depthSize: 'large', withCrossShrink: true },
      fc.constantFrom<unknown>(null, 0, 1, -1, 1e30, true, '', '1', '4Gi', '1e30', 'small', 'CGPU_DISABLE'),
      fc.array(tie('pod'), { maxLength: 4 }),
      fc.dictionary(names, tie('pod'), { maxKeys: 6, noNullPrototype: false }),
    ),
  }));
  t.notThrows(() => {
    fc.assert(
      fc.property(pod, (value) => {
        const before = JSON.stringify(value);
        readPodRequest(value, sizes);
        if (JSON.stringify(value) !== before) throw new Error('the pod was changed');
      }),
      { numRuns: 3000 },
    );
  });
});

test('a problem about hostile text stays one short line', (t) => {
  const problems = outcome(podWith({ [M]: `\n${'9'.repeat(100_000)}` }), rules()) as string[];
  t.is(problems.length, 1);
  t.true((problems[0]?.length ?? 0) < 400);
  t.false(problems[0]?.includes('\n'));
});

test('a policy is chosen by its word or by the number that cGPU has for it', (t) => {
  const annotated = (annotations: object) => podWith({ [M]: '1Gi', 'cotenant.io/gpu-cores': '10' }, { annotations });
  for (const [number, name] of COMPUTE_POLICIES.entries()) {
    const allowed = rules({ computePolicies: COMPUTE_POLICIES });
    t.is(requestOf(annotated({ 'cotenant.io/compute-policy': String(number) }), allowed).computePolicy, name);
    t.is(requestOf(annotated({ 'cotenant.io/compute-policy': name }), allowed).computePolicy, name);
  }
  t.deepEqual(outcome(annotated({ 'cotenant.io/compute-policy': '5' }), rules()), [
    'metadata.annotations["cotenant.io/compute-policy"]: "5" is not allowed in this namespace; write one of average, preemptive, weighted, fixed, soft',
  ]);
  t.deepEqual(outcome(annotated({ 'cotenant.io/compute-policy': '6' }), rules()), [
    'metadata.annotations["cotenant.io/compute-policy"]: "6" is not known; write one of average, preemptive, weighted, fixed, soft',
  ]);
});

const LIMIT = 'cotenant.io/gpu-cores-limit';
const WEIGHT = 'cotenant.io/compute-weight';
const refusalOf = (key: string, rest: string) => [`metadata.annotations["${key}"]: ${rest}`];

test('a weight is chosen up to the largest that the rules allow', (t) => {
  const weighing = (weight: string) => podWith({ [M]: '1Gi' }, { annotations: { [WEIGHT]: weight } });
  t.is(requestOf(weighing('7'), rules({ mostComputeWeight: 10 })).computeWeight, 7);
  t.deepEqual(
    outcome(weighing('11'), rules({ mostComputeWeight: 10 })),
    refusalOf(WEIGHT, '"11" is more than 10; write a whole number from 1 to 10'),
  );
  t.deepEqual(
    outcome(weighing('1'), rules()),
    refusalOf(WEIGHT, '"1" is not allowed in this namespace; leave it out, or have mostComputeWeight raised'),
  );
});

test('a limit above the share is a total over the cards, of the only container with a share or of those that are named', (t) => {
  const cores = (limits: Readonly<Record<string, string>>, limit: string) =>
    podWith({ [M]: '2Gi', ...limits }, { annotations: { [LIMIT]: limit } });
  const limitsOf = (pod: object) => requestOf(pod, rules()).containers[0]?.cards.map((card) => card.coresLimitPercent);
  t.deepEqual(limitsOf(cores({ 'cotenant.io/gpu-cores': '20' }, '80')), [80]);
  t.deepEqual(limitsOf(cores({ 'cotenant.io/gpu-cores': '20', 'cotenant.io/gpu': '2' }, 'main=80')), [40, 40]);
  const refused: readonly [Readonly<Record<string, string>>, string, string][] = [
    [
      { 'cotenant.io/gpu-cores': '20' },
      '10',
      '"10" is no limit for "main"; write 20 to 100, whole percent of each card',
    ],
    [
      { 'cotenant.io/gpu-cores': '20', 'cotenant.io/gpu': '2' },
      '41',
      '"41" is no limit for "main"; write 20 to 200, whole percent of each card',
    ],
    [{}, '80', '"80" stands beside no cotenant.io/gpu-cores of "main"; write both'],
    [{ 'cotenant.io/gpu-cores': '20' }, 'other=80', '"other" names no container with a share; write one of main'],
    [
      { 'cotenant.io/gpu-cores': '20' },
      'main=80,main=90',
      '"main=90" names no container, or one twice; write percent over all its cards, such as "80", or container=percent with commas',
    ],
    [
      { 'cotenant.io/gpu-cores': '20' },
      'much',
      '"much" is no percentage; write percent over all its cards, such as "80", or container=percent with commas',
    ],
  ];
  for (const [limits, limit, text] of refused)
    t.deepEqual(outcome(cores(limits, limit), rules()), refusalOf(LIMIT, text));
  t.deepEqual(
    outcome(cores({ 'cotenant.io/gpu-cores': '20' }, '80'), rules({ computePolicies: ['fixed'] })),
    refusalOf(LIMIT, '"80" is not allowed in this namespace; leave it out, or have the policy soft allowed'),
  );
});

test('a pod chooses a mode of enforcement that is as strict as its namespace’s, or stricter', (t) => {
  const KEY = 'cotenant.io/enforcement';
  const choosing = (mode?: string) =>
    podWith({ [M]: '1Gi' }, mode === undefined ? {} : { annotations: { [KEY]: mode } });
  t.is(requestOf(choosing(), rules()).enforcement, undefined);
  t.is(requestOf(choosing('enforce'), rules()).enforcement, undefined);
  // The namespace's is what is recorded; the pod's own is in its annotation.
  for (const mode of [undefined, 'report', 'enforce'])
    t.is(requestOf(choosing(mode), rules({ enforcement: 'report' })).enforcement, 'report');
  t.deepEqual(
    outcome(choosing('off'), rules({ enforcement: 'report' })),
    refusalOf(KEY, '"off" is not allowed in this namespace; write one of report, enforce'),
  );
  t.deepEqual(outcome(choosing('kill'), rules()), refusalOf(KEY, '"kill" is not known; write one of enforce'));
});
