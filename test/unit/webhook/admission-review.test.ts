// Reviews as no API server should send them, and as the largest pods make them: answered, or refused with words.
import test from 'ava';
import type { JsonObject } from '../../../src/common/json.ts';
import { review } from '../../../webhook/admission-review.ts';
import { answerOf, configured, creation, fixture, sharePod } from './reviews.ts';

const M = 'cotenant.io/gpu-memory';

test('a review without a uid gets a text that names the missing field', (t) => {
  const bodies: unknown[] = [
    null,
    undefined,
    7,
    'x',
    [],
    {},
    { request: null },
    { request: 'x' },
    { request: [] },
    { request: { uid: 7 } },
    { request: { uid: '' } },
    JSON.parse('{"__proto__": {"request": {"uid": "inherited"}}}'),
  ];
  for (const body of bodies) {
    t.deepEqual(
      review('mutate', body, configured()),
      { outcome: 'malformed', message: 'request.uid: is missing; send an AdmissionReview of admission.k8s.io/v1' },
      JSON.stringify(body),
    );
  }
});

test('another version, or another kind, is refused under its uid', (t) => {
  for (const [apiVersion, kind] of [
    ['admission.k8s.io/v1beta1', 'AdmissionReview'],
    ['admission.k8s.io/v1', 'ConversionReview'],
    [undefined, undefined],
    [{}, []],
  ]) {
    const { denial } = answerOf({ ...creation(sharePod()), apiVersion, kind });
    t.regex(
      denial ?? '',
      /^400 BadRequest: apiVersion: .* is not served; send AdmissionReview of admission\.k8s\.io\/v1$/,
    );
  }
});

test('reviews of other resources and operations are allowed as they are', (t) => {
  const others = [
    { resource: { group: 'apps', version: 'v1', resource: 'deployments' } },
    { resource: { group: 'example.com', version: 'v1', resource: 'pods' } },
    { resource: 'pods' },
    { resource: null },
    { operation: 'DELETE' },
    { operation: 'CONNECT' },
    { operation: 7 },
    { operation: 'CREATE', subResource: 'binding' },
    { operation: 'CREATE', subResource: 'eviction' },
  ];
  for (const other of others) t.like(answerOf(creation(sharePod(), other)), { outcome: 'allowed', patch: [] });
});

test('a creation without a pod is refused', (t) => {
  for (const object of [null, 'x', [], 7]) {
    t.is(answerOf(creation(object)).denial, '422 Invalid: request.object: is missing; send the pod');
  }
  t.is(answerOf(creation({})).denial, '422 Invalid: spec: is missing; write the pod with its spec');
});

const ODD: Record<string, [pod: object, expected: RegExp | 'allowed' | 'patched']> = {
  'no metadata': [{ spec: { containers: [{ name: 'a', resources: { limits: { [M]: '1Gi' } } }] } }, 'patched'],
  'null everywhere': [
    { metadata: null, spec: { containers: [{ name: 'a', env: null, resources: null }], volumes: null } },
    'allowed',
  ],
  'null beside a share': [
    sharePod({ env: null, volumeMounts: null }, { volumes: null, initContainers: null }, { annotations: null }),
    'patched',
  ],
  'no containers': [{ spec: {} }, 'allowed'],
  'containers in a map': [
    { spec: { containers: { a: {} } } },
    /^422 Invalid: spec\.containers: an object is not a list/,
  ],
  'metadata as text': [{ ...sharePod(), metadata: 'x' }, /^422 Invalid: metadata: "x" is not a map/],
  'annotations as a list': [sharePod({}, {}, { annotations: [] }), /metadata\.annotations: a list of 0 is not a map/],
  'a hostile name of a container': [
    sharePod({ name: "x']}}$(reboot)" }),
    /spec\.containers\[0\]\.name: "x'\]\}\}\$\(reboot\)" is not a container name/,
  ],
  'inherited names as keys': [
    sharePod({}, {}, { annotations: { constructor: 'x', toString: 'y', hasOwnProperty: 'z' } }),
    'patched',
  ],
  'a prototype beside the way': [
    JSON.parse('{"spec": {"containers": [{"name": "a", "__proto__": {"x": 1}}]}}'),
    'allowed',
  ],
  'a prototype on the way': [
    sharePod({}, {}, JSON.parse('{"annotations": {"__proto__": {"cotenant.io/grant": "x"}}}')),
    'patched',
  ],
  'a share in a prototype': [
    JSON.parse(`{"spec": {"containers": [{"name": "a", "resources": {"__proto__": {"limits": {"${M}": "1Gi"}}}}]}}`),
    'allowed',
  ],
};

for (const [name, [pod, expected]] of Object.entries(ODD)) {
  test(`an odd pod is answered: ${name}`, (t) => {
    const answer = answerOf(creation(pod));
    if (expected instanceof RegExp) t.regex(answer.denial ?? '', expected);
    else t.like(answer, { outcome: expected, denial: undefined });
    if (answer.outcome === 'patched') t.deepEqual(answerOf(creation(answer.pod)).patch, []);
  });
}

test('the last of two equal keys counts, in the answer and in the patch', (t) => {
  const pod = JSON.parse(
    `{"spec": {"containers": [{"name": "a", "resources": {"limits": {"${M}": "1Gi", "${M}": "2Gi"}}}]}}`,
  );
  const { pod: after } = answerOf(creation(pod));
  t.regex(JSON.stringify(after), /"cotenant\.io\/gpu-memory":"2Gi"/);
});

function nested(depth: number): unknown {
  return JSON.parse(`${'{"a":['.repeat(depth)}0${']}'.repeat(depth)}`);
}

test('a pod that is nested very deeply is answered, wherever the nest is', (t) => {
  const deep = nested(20_000);
  const expected: [JsonObject, RegExp | 'patched'][] = [
    [sharePod({}, { affinity: deep }), 'patched'],
    [sharePod({}, { volumes: [{ name: 'own', emptyDir: deep }] }), 'patched'],
    [sharePod({ env: [deep] }), 'patched'],
    [sharePod({}, { volumes: [{ name: 'cotenant', csi: deep }] }), /for another volume/],
    [sharePod({}, {}, { annotations: { 'cotenant.io/placement': deep } }), /an object is not text/],
    [sharePod({ resources: { limits: { [M]: deep } } }), /an object is not a quantity/],
    [sharePod({}, { runtimeClassName: deep, schedulerName: deep }), /spec\.schedulerName: an object does not grant/],
  ];
  for (const [pod, outcome] of expected) {
    const answer = answerOf(creation(pod));
    if (outcome === 'patched') t.is(answer.outcome, outcome, answer.denial);
    else t.regex(answer.denial ?? '', outcome);
  }
});

test('a pod of 1.3 MB with 999 variables gets a patch as small as a small pod’s', (t) => {
  const env = Array.from({ length: 998 }, (_, index) => ({ name: `V${index}`, value: 'x'.repeat(1260) }));
  env.splice(500, 0, { name: 'LD_AUDIT', value: '' });
  const pod = sharePod({ env });
  t.true(JSON.stringify(pod).length > 1_280_000);
  const { patch, pod: after } = answerOf(creation(pod));
  t.true(JSON.stringify(patch).length < 2_000);
  t.true(patch.some(({ op, path }) => op === 'remove' && path === '/spec/containers/0/env/500'));
  t.deepEqual(answerOf(creation(after)).patch, []);
});

test('a patch has few operations, however many variables go', (t) => {
  const { resources } = (sharePod().spec as { containers: { resources: object }[] }).containers[0] ?? {};
  const env = Array.from({ length: 1000 }, () => ({ name: 'LD_AUDIT' }));
  const containers = Array.from({ length: 100 }, (_, index) => ({ name: `c${index}`, env, resources }));
  const { allowed, patch, pod: after } = answerOf(creation({ metadata: {}, spec: { containers } }));
  t.true(allowed);
  t.true(patch.length < 300, String(patch.length));
  const left = (after.spec as { containers: { env: { name: string }[] }[] }).containers.flatMap((each) => each.env);
  t.is(left.length, 200);
  t.false(left.some(({ name }) => name === 'LD_AUDIT'));
});

test('a pod of very many containers is answered', (t) => {
  const containers = Array.from({ length: 1000 }, (_, index) => ({
    name: `c${index}`,
    resources: { limits: { [M]: index % 2 === 0 ? '1Mi' : '1.5Mi' } },
  }));
  const { denial = '' } = answerOf(creation({ spec: { containers } }));
  t.regex(denial, /^422 Invalid: spec\.containers\[1\]/);
  t.true(denial.endsWith('and 490 more'));
  t.true(denial.length < 4_000);
});

test('very many warnings are cut to a few', (t) => {
  const env = Array.from({ length: 100 }, (_, index) => ({ name: `CUDA_MPS_${index}`, value: '' }));
  const { warnings } = answerOf(creation(sharePod({ env })));
  t.is(warnings.length, 8);
  t.is(warnings[7], 'and 93 more warnings');
});

test('a node’s mirror pod is allowed with a warning, an imitation is not', (t) => {
  const mirror = sharePod({}, { nodeName: 'gpu-1' }, { annotations: { 'kubernetes.io/config.mirror': 'abc' } });
  const node = { username: 'system:node:gpu-1', groups: ['system:nodes', 'system:authenticated'] };
  t.like(answerOf(creation(mirror, { userInfo: node })), {
    outcome: 'allowed',
    warnings: ['static pods get no share of a GPU: the node refuses the volume'],
  });
  const impostors = [
    { username: 'alice', groups: ['system:nodes'] },
    { username: 'system:node:gpu-1', groups: ['system:authenticated'] },
    { username: 'system:node:gpu-1' },
    undefined,
  ];
  for (const userInfo of impostors) {
    t.regex(
      answerOf(creation(mirror, { userInfo })).denial ?? '',
      /^403 Forbidden: spec\.nodeName: "gpu-1" bypasses the scheduler/,
    );
  }
  const metadata = { annotations: { 'kubernetes.io/config.mirror': 'abc', 'cotenant.io/grant': '{}' } };
  const forged = creation({ ...mirror, metadata }, { userInfo: node });
  t.regex(answerOf(forged).denial ?? '', /is written only by the scheduler/, 'which would count on that node');
  const plain = creation({ ...mirror, spec: { containers: [] } }, { userInfo: node });
  t.deepEqual(answerOf(plain).warnings, [], 'static pods that ask for nothing are not ours');
});

test('a fault of the webhook refuses the pod; only the log has the stack trace', (t) => {
  const hostile = creation(sharePod());
  Object.defineProperty(hostile.request as object, 'object', {
    enumerable: true,
    get: () => {
      throw new Error('broken on purpose');
    },
  });
  const reviewed = review('mutate', hostile, configured());
  t.is(reviewed.outcome, 'internal');
  if (reviewed.outcome !== 'internal') return;
  t.regex(reviewed.fault ?? '', /broken on purpose[\s\S]*review\.ts/);
  t.deepEqual(reviewed.answer.response, {
    uid: 'u-1',
    allowed: false,
    status: {
      status: 'Failure',
      code: 500,
      reason: 'InternalError',
      message: 'internal: the webhook failed on this pod; its log has the reason',
    },
  });
});

test('the audit log has the injected changes', (t) => {
  const reviewed = review('mutate', fixture('1.26-create-ack-deployment'), configured());
  const answer = reviewed.outcome === 'patched' ? (reviewed.answer.response as JsonObject) : {};
  const { request } = answer.auditAnnotations as { request: string };
  t.like(JSON.parse(request), { version: 1, containers: [{ name: 'binpack', dialect: 'ack' }] });
});
