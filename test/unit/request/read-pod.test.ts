// What a pod asks for, and what is said of one that asks wrongly. Annotations that choose are in choices.test.ts, sizes
// by name in templates.test.ts.
import test from 'ava';
import fc from 'fast-check';
import { readPodRequest } from '../../../src/request/read-pod.ts';
import type { Rules } from '../../../src/request/rules/namespace-rules.ts';
import { outcome, podWith, requestOf, rules, share } from './pods.ts';

const M = 'cotenant.io/gpu-memory';

function warningsOf(pod: object, under: Rules = rules()): readonly string[] {
  const reading = readPodRequest(pod, under);
  return reading.kind === 'request' ? reading.warnings : [reading.kind];
}

test('init containers, sidecars and containers all count, by kind and name', (t) => {
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

test('the order of init containers and sidecars with shares is recorded', (t) => {
  const sidecar = share('agent', { restartPolicy: 'Always' });
  const orderOf = (...initContainers: object[]) =>
    requestOf({ spec: { initContainers, containers: [share('main')] } }).containers.map(
      ({ name, initIndex }) => `${name} ${initIndex}`,
    );
  t.deepEqual(orderOf(share('warm-up'), sidecar, { name: 'copy' }), ['agent 1', 'main undefined', 'warm-up 0']);
  // Another injector's container without a share changes nothing.
  t.deepEqual(orderOf({ name: 'copy' }, sidecar, share('warm-up')), ['agent 0', 'main undefined', 'warm-up 1']);
  t.deepEqual(orderOf(sidecar), ['agent undefined', 'main undefined']);
  t.deepEqual(orderOf(share('warm-up')), ['main undefined', 'warm-up undefined']);
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
      `spec.containers[0].resources.requests["${M}"]: "1Gi" has no limit for the same resource; write the same amount under resources.limits`,
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
    ['spec.containers[0].name: "" is not a container name; write at most 63 of a-z, 0-9 and "-"'],
  ],
  'a name that would be a path': [
    { spec: { containers: [share('../../x')] } },
    ['spec.containers[0].name: "../../x" is not a container name; write at most 63 of a-z, 0-9 and "-"'],
  ],
  'one name twice': [
    { spec: { initContainers: [share('a')], containers: [share('a')] } },
    ['spec.containers: "a" names two containers; give each its own name'],
  ],
  'an unknown placement': [
    podWith({ [M]: '1Gi' }, { annotations: { 'cotenant.io/placement': 'best' } }),
    [
      'metadata.annotations["cotenant.io/placement"]: "best" is not known; write one of binpack, spread, fragmentation, topology',
    ],
  ],
  'isolation off': [
    podWith({ [M]: '1Gi' }, { annotations: { 'cotenant.io/memory-isolation': 'off' } }),
    ['metadata.annotations["cotenant.io/memory-isolation"]: "off" is not allowed in this namespace; write on'],
  ],
  'high priority': [
    podWith({ [M]: '1Gi' }, { annotations: { 'cotenant.io/priority': 'high' } }),
    ['metadata.annotations["cotenant.io/priority"]: "high" is not allowed in this namespace; write normal'],
  ],
  'native policy': [
    podWith({ [M]: '1Gi' }, { annotations: { 'cotenant.io/compute-policy': 'native' } }),
    [
      'metadata.annotations["cotenant.io/compute-policy"]: "native" is not allowed in this namespace; write one of average, preemptive, weighted, fixed, soft',
    ],
  ],
  'a fixed GPU': [
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
  test(`refused with field, value and correction: ${name}`, (t) => {
    t.deepEqual(outcome(pod, rules()), expected);
  });
}

test('without allowUncountedMemory, whole GPUs and percent are refused in any dialect', (t) => {
  const counted = rules({ allowUncountedMemory: false, templates: { whole: { gpu: 1 } } });
  const refusal = (amounts: string) =>
    `spec.containers[0].resources.limits: "${amounts}" has no fixed amount of memory that a quota can count, which is not allowed in this namespace; write ${M}, or have allowUncountedMemory switched on`;
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

test('information that needs no change is a warning', (t) => {
  t.deepEqual(warningsOf(podWith({ [M]: '1Gi' })), []);
  t.deepEqual(warningsOf(podWith({ [M]: '1Gi', 'cotenant.io/gpu-cores': '10' })), []);
  t.deepEqual(warningsOf(podWith({ 'aliyun.com/gpu-mem': '1', 'aliyun.com/gpu-core.percentage': '7' })), [
    'aliyun.com/gpu-core.percentage: 7 is taken as it is; ACK itself takes steps of 5',
  ]);
  t.deepEqual(warningsOf(podWith({ 'cotenant.io/gpu-cores': '10' })), [
    'cotenant.io/gpu-memory is not set, so all memory of the GPU is reserved and no other container fits on it',
  ]);
});

test('any JSON value is read or refused as a pod, and nothing throws', (t) => {
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
  const sizes = rules({
    templates: { small: { gpuMemory: '4Gi' }, large: { gpu: 2, gpuMemory: '64Gi', gpuCores: 100 } },
  });
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

// Charts write an amount for every container, 0 where it is none: KAI's fraction is an annotation beside it. Kubernetes counts
// nothing for 0 of an extended resource (kubernetes.io, "Extended resources").
test('an amount of 0 in one dialect says nothing beside amounts in another', (t) => {
  const all = rules({ dialects: ['ack', 'hami', 'kai', 'kubeshare', 'nvidia'] });
  const none = { 'nvidia.com/gpu': '0' };
  const labels = { 'sharedgpu/gpu_request': '0', 'sharedgpu/gpu_limit': '0' };
  for (const [limits, more] of [
    [{ [M]: '1Gi', ...none }, {}],
    [{ 'aliyun.com/gpu-mem': '3', ...none, 'nvidia.com/gpumem': '0' }, {}],
    [{ 'nvidia.com/gpu': '1', 'aliyun.com/gpu-mem': '0' }, {}],
    [none, { annotations: { 'gpu-fraction': '0.5' } }],
    [{ 'nvidia.com/gpu': '1' }, { labels }],
  ] as const)
    t.is(requestOf(podWith(limits, more), all).containers.length, 1, JSON.stringify(limits));
  const small = { templates: { small: { gpuMemory: '4Gi' } }, dialects: ['hami'] };
  const template = { annotations: { 'cotenant.io/template': 'small' } };
  t.is(requestOf(podWith(none, template), rules(small)).containers[0]?.dialect, 'cotenant');
});
