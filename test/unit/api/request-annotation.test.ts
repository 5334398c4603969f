import test from 'ava';
import fc from 'fast-check';
import {
  type ContainerRequest,
  DIALECTS,
  type GpuShare,
  type MemoryAmount,
  type PodRequest,
} from '../../../src/api/request.ts';
import { formatPodRequest, parsePodRequest } from '../../../src/api/request-annotation.ts';
import { GIB, MIB } from '../../../src/common/quantity.ts';
import { outcome, podWith, requestOf, rules } from '../request/pods.ts';

const amount: fc.Arbitrary<MemoryAmount> = fc.oneof(
  fc.integer({ min: 1, max: 2 ** 30 }).map((count): MemoryAmount => ({ kind: 'bytes', bytes: count * MIB })),
  fc.integer({ min: 1, max: 9999 }).map((part): MemoryAmount => ({ kind: 'percent', percent: part / 100 })),
  fc.constant<MemoryAmount>({ kind: 'whole' }),
  fc
    .tuple(fc.integer({ min: 1, max: 1000 }), fc.constantFrom(MIB, GIB))
    .map(([units, unitBytes]): MemoryAmount => ({ kind: 'units', units, unitBytes, rounding: 'cgpu' })),
);
const gpuWithout: fc.Arbitrary<GpuShare> = fc.record(
  { memory: amount, memoryLimit: amount, coresPercent: fc.integer({ min: 1, max: 100 }) },
  { requiredKeys: ['memory'], noNullPrototype: true },
);
const gpu: fc.Arbitrary<GpuShare> = fc
  .tuple(gpuWithout, fc.option(fc.integer({ min: 0, max: 99 })))
  .map(([share, above]) => {
    const { coresPercent } = share;
    if (coresPercent === undefined || above === null) return share;
    return { ...share, coresLimitPercent: Math.min(100, coresPercent + above) };
  });
/* No backslash: V8 14.6 (Node 26) reads a key `"` as `\` where an earlier object had that in its place:
 * `JSON.parse('{"a":1,"\\\\":2}')`, a few times, then the keys of `JSON.parse('{"a":1,"\\"":2}')`. Names in Kubernetes
 * have neither. */
const asked = fc.string().filter((name) => !name.includes('\\'));
const container: fc.Arbitrary<ContainerRequest> = fc.record({
  name: fc.stringMatching(/^[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?$/),
  kind: fc.constantFrom('init', 'sidecar', 'app'),
  dialect: fc.constantFrom(...DIALECTS),
  asked: fc.dictionary(asked, fc.string(), { noNullPrototype: true }),
  memoryIsolation: fc.constantFrom('on', 'off'),
  gpus: fc.array(gpu, { minLength: 1, maxLength: 5 }),
});
const request: fc.Arbitrary<PodRequest> = fc.record(
  {
    priority: fc.constantFrom('normal', 'high'),
    placement: fc.constantFrom('binpack', 'spread', 'fragmentation'),
    computePolicy: fc.constantFrom('average', 'soft', 'native'),
    computeWeight: fc.integer({ min: 1, max: 1000 }),
    enforcement: fc.constantFrom('off', 'report'),
    gpuModels: fc.array(fc.string({ minLength: 1 })),
    gpuUuids: fc.array(fc.string({ minLength: 1 })),
    containers: fc
      .uniqueArray(container, { selector: ({ name }) => name, minLength: 1, maxLength: 4 })
      .map((list) => list.sort((a, b) => (a.name < b.name ? -1 : 1))),
  },
  { requiredKeys: ['priority', 'gpuModels', 'gpuUuids', 'containers'], noNullPrototype: true },
);

test('a request annotation reads back to the same request', (t) => {
  t.notThrows(() => {
    fc.assert(
      fc.property(request, (value) => {
        const text = formatPodRequest(value);
        const read = parsePodRequest(text);
        if (!read.ok || formatPodRequest(read.value) !== text) throw new Error(text);
        if (JSON.stringify(sorted(read.value)) !== JSON.stringify(sorted(value))) throw new Error(text);
      }),
    );
  });

  function sorted(value: unknown): unknown {
    if (Array.isArray(value)) return value.map(sorted);
    if (typeof value !== 'object' || value === null) return value;
    return Object.entries(value)
      .sort(([a], [b]) => (a < b ? -1 : 1))
      .map(([key, entry]) => [key, sorted(entry)]);
  }
});

const pod = podWith({ 'aliyun.com/gpu-mem': '3' });
const requested = requestOf(pod);
const written = formatPodRequest(requested);

test('the text of a request annotation is canonical', (t) => {
  t.is(
    written,
    '{"version":1,"priority":"normal","containers":[{"name":"main","kind":"app","dialect":"ack","asked":{"aliyun.com/gpu-mem":"3"},"memoryIsolation":"on","gpus":[{"memory":{"kind":"units","units":3,"unitBytes":1073741824,"rounding":"cgpu"}}]}]}',
  );
});

test('a request annotation that the webhook would not write is refused', (t) => {
  const forged: unknown[] = [
    '',
    'null',
    '[]',
    '{',
    7,
    null,
    ` ${written}`,
    written.replace('"version":1', '"version":2'),
    written.replace('"priority":"normal",', ''),
    written.replace('"priority":"normal"', '"priority":"urgent"'),
    written.replace('{"version":1', '{"extra":1,"version":1'),
    written.replace('"kind":"app"', '"kind":"ephemeral"'),
    written.replace('"dialect":"ack"', '"dialect":"gaia"'),
    written.replace('"name":"main"', '"name":"../main"'),
    written.replace('"units":3', '"units":-3'),
    written.replace('"units":3', '"units":1e300'),
    written.replace('"units":3', '"units":3.5'),
    written.replace('"units":3', '"units":"3"'),
    written.replace('1073741824', '1000'),
    written.replace('"rounding":"cgpu"', '"rounding":"up"'),
    written.replace('"memoryIsolation":"on"', '"memoryIsolation":"maybe"'),
    written.replace('"asked":{', '"asked":{"__proto__":{},'),
    written.replace(/"gpus":.*/, '"gpus":[{"memory":{"kind":"percent","percent":0.001}}]}]}'),
    written.replace(/"gpus":.*/, '"gpus":[{"memory":{"kind":"percent","percent":100}}]}]}'),
    written.replace(/"gpus":.*/, '"gpus":[{"memory":{"kind":"percent","percent":33.333}}]}]}'),
    written.replace(/"gpus":.*/, '"gpus":[]}]}'),
    written.replace(/"containers":.*/, '"containers":[]}'),
    written.replace(/"containers":\[(.*)\]/, '"containers":[$1,$1]'),
    written.replace('"rounding":"cgpu"}', '"rounding":"cgpu"},"coresPercent":101'),
  ];
  for (const text of forged) {
    t.not(text, written);
    const read = parsePodRequest(text);
    t.false(read.ok, String(text));
    if (!read.ok) t.regex(read.error[0]?.path ?? '', /cotenant\.io\/request/);
  }
});

const normalized = (record: string, amounts: object) =>
  podWith(amounts, { annotations: { 'cotenant.io/request': record } });
const counted = { 'cotenant.io/gpu': '1', 'cotenant.io/gpu-memory': '3Gi' };

test('a patched pod reads to the request of its dialect again', (t) => {
  t.deepEqual(requestOf(normalized(written, counted)), requested);
});

test('a recorded request counts only if the resources agree and the rules allow it', (t) => {
  const path = 'metadata.annotations["cotenant.io/request"]';
  t.deepEqual(outcome(normalized(written, { ...counted, 'cotenant.io/gpu-memory': '2Gi' }), rules()), [
    `${path}: records cotenant.io/gpu: 1, cotenant.io/gpu-memory: 3Gi for "main", but its resources are cotenant.io/gpu: 1, cotenant.io/gpu-memory: 2Gi; leave this annotation out: only the webhook writes it`,
  ]);
  t.deepEqual(outcome(normalized(written, counted), rules({ dialects: ['metagpu'] })), [
    `${path}: records a request of "main" in the dialect ack, which is not read here; leave this annotation out`,
  ]);
  const unfenced = written.replace('"aliyun.com/gpu-mem":"3"', '"CGPU_DISABLE":"1","aliyun.com/gpu-mem":"3"');
  t.deepEqual(outcome(normalized(unfenced, counted), rules()), [
    'spec.containers[0].env: "CGPU_DISABLE=1" switches isolation off, which is not allowed here; leave it out, or have allowMemoryIsolationOff switched on',
  ]);
  const foreignKey = written.replace('"aliyun.com/gpu-mem":"3"', '"aliyun.com/gpu-mem":"3","other":"1"');
  t.deepEqual(outcome(normalized(foreignKey, counted), rules()), [
    `${path}: records a request of "main" in the dialect ack, which is not read here; leave this annotation out`,
  ]);
});

test('only the recorded amounts count, everything else is read again', (t) => {
  const larger = written.replace('"units":3', '"units":300').replace('"on"', '"off"');
  t.deepEqual(requestOf(normalized(larger, counted)), requested);
});
