import test from 'ava';
import type { JsonObject } from '../../../src/common/json.ts';
import { answerOf, configured, creation, fixture, sharePod } from './reviews.ts';

const share = answerOf(creation(sharePod())).pod;
const running: JsonObject = {
  ...share,
  metadata: { ...(share.metadata as object), annotations: { ...annotationsOf(share), 'cotenant.io/grant': '{}' } },
};

function annotationsOf(pod: JsonObject): Record<string, string> {
  return ((pod.metadata as JsonObject).annotations ?? {}) as Record<string, string>;
}

function annotated(annotations: object): JsonObject {
  return { ...running, metadata: { ...(running.metadata as object), annotations } };
}

function update(after: unknown, more: object = {}, route: 'mutate' | 'validate' = 'validate') {
  const request = { operation: 'UPDATE', oldObject: running, userInfo: { username: 'alice' }, ...more };
  const configuration = configured({ annotationWriters: ['system:serviceaccount:cotenant:agent'] });
  return answerOf(creation(after, request), configuration, route);
}

test('only the configured writers may change annotations in our domain', (t) => {
  const now = annotationsOf(running);
  const { 'cotenant.io/request': _, ...without } = now;
  const cases: [object, string][] = [
    [
      { ...now, 'cotenant.io/grant': '{"main":[]}' },
      'metadata.annotations["cotenant.io/grant"]: "{\\"main\\":[]}" may not be changed by "alice"',
    ],
    [
      { ...now, 'gpu-uuids.cotenant.io/main': 'all' },
      'metadata.annotations["gpu-uuids.cotenant.io/main"]: "all" may not be added by "alice"',
    ],
    [
      { ...now, 'later.cotenant.io/x': '1' },
      'metadata.annotations["later.cotenant.io/x"]: "1" may not be added by "alice"',
    ],
    [without, 'metadata.annotations["cotenant.io/request"]: may not be changed by "alice"'],
  ];
  for (const [annotations, message] of cases) {
    const { denial } = update(annotated(annotations));
    t.is(denial, `403 Forbidden: ${message}; leave it as it is; to ask for something else, recreate the pod`);
    t.true(update(annotated(annotations), { userInfo: { username: 'system:serviceaccount:cotenant:agent' } }).allowed);
    t.false(update(annotated(annotations), { userInfo: {} }).allowed, 'no user is not a writer');
    t.false(update(annotated(annotations), { subResource: 'status' }).allowed, 'status updates carry annotations too');
  }
});

test('other annotations are not ours, not even those that look alike', (t) => {
  const now = annotationsOf(running);
  t.true(
    update(annotated({ ...now, note: 'x', 'cotenant.io.example.com/grant': 'x', 'notcotenant.io/grant': 'x' })).allowed,
  );
  t.true(update(running).allowed);
});

test('a pod with a share keeps requiring our plugin, other pods may change theirs', (t) => {
  const required = { 'required-plugins.noderesource.dev/pod': '[]' };
  t.regex(
    update(annotated({ ...annotationsOf(running), ...required })).denial ?? '',
    /\["required-plugins\.noderesource\.dev\/pod"\]: "\[\]" may not be added by "alice"/,
  );
  const plain = { metadata: {}, spec: { containers: [{ name: 'a' }] } };
  t.true(update({ ...plain, metadata: { annotations: required } }, { oldObject: plain }).allowed);
});

test('amounts that were granted stay, while CPU may be resized', (t) => {
  const resized = (limits: object) => {
    const spec = running.spec as { containers: { resources: { limits: object } }[] };
    const [main] = spec.containers;
    const resources = { ...main?.resources, limits: { ...main?.resources.limits, ...limits } };
    return { ...running, spec: { ...spec, containers: [{ ...main, resources }] } };
  };
  t.true(update(resized({ cpu: '2' }), { subResource: 'resize' }).allowed);
  t.true(update(resized({ 'cotenant.io/gpu-memory': '1024Mi' }), { subResource: 'resize' }).allowed);
  t.regex(
    update(resized({ 'cotenant.io/gpu-memory': '2Gi' }), { subResource: 'resize' }).denial ?? '',
    /limits\["cotenant\.io\/gpu-memory"\]: "2Gi" is not the amount that the pod was granted; leave it as it is$/,
  );
});

const debug = (...ephemeralContainers: object[]) => ({
  ...running,
  spec: { ...(running.spec as object), ephemeralContainers },
});
const ephemeral = { subResource: 'ephemeralcontainers' };

test('a debug container in a pod with a share gets no device', (t) => {
  const { patch } = update(debug({ name: 'debug', env: [{ name: 'A', value: 'b' }] }), ephemeral, 'mutate');
  t.deepEqual(patch, [
    { op: 'add', path: '/spec/ephemeralContainers/0/env/-', value: { name: 'NVIDIA_VISIBLE_DEVICES', value: 'void' } },
  ]);
  t.regex(update(debug({ name: 'debug' }), ephemeral).denial ?? '', /spec\.ephemeralContainers\[0\]\.env: is not what/);
  const closed = { name: 'debug', env: [{ name: 'NVIDIA_VISIBLE_DEVICES', value: 'void' }] };
  t.true(update(debug(closed), ephemeral).allowed);
  t.deepEqual(update(debug(closed), ephemeral, 'mutate').patch, []);
});

test('a debug container that reaches for the share is refused', (t) => {
  const at = 'spec.ephemeralContainers[0]';
  const cases: [object, string][] = [
    [
      { name: 'd', volumeMounts: [{ name: 'cotenant', mountPath: '/c' }] },
      `${at}.volumeMounts[0]: "/c" mounts the volume`,
    ],
    [
      { name: 'd', env: [{ name: 'NVIDIA_VISIBLE_DEVICES', value: 'all' }] },
      `${at}.env: "all" sets NVIDIA_VISIBLE_DEVICES`,
    ],
    [{ name: 'd', securityContext: { privileged: true } }, `${at}.securityContext.privileged: true would let`],
    [
      { name: 'd', securityContext: { capabilities: { add: ['SYS_ADMIN'] } } },
      `${at}.securityContext.capabilities.add[0]: "SYS_ADMIN" would let`,
    ],
    [{ name: 'd', env: [{ name: 'NVIDIA_VISIBLE_DEVICES', valueFrom: {} }] }, `${at}.env: sets NVIDIA_VISIBLE_DEVICES`],
  ];
  for (const [container, message] of cases) {
    for (const route of ['mutate', 'validate'] as const) {
      const { denial = '' } = update(debug(container), ephemeral, route);
      t.true(denial.startsWith(`403 Forbidden: ${message}`), denial);
    }
  }
  t.regex(update(debug(7 as unknown as object), ephemeral, 'mutate').denial ?? '', /is not a container/);
});

test('a debug container may trace, as kubectl debug asks for', (t) => {
  const tracing = { name: 'd', securityContext: { capabilities: { add: ['SYS_PTRACE'] } } };
  t.true(update(debug(tracing), ephemeral, 'mutate').allowed);
});

test('existing debug containers, and those of other pods, are left as they are', (t) => {
  const old = { name: 'old', env: [{ name: 'NVIDIA_VISIBLE_DEVICES', value: 'all' }] };
  t.true(update(debug(old), { ...ephemeral, oldObject: debug(old) }).allowed);
  const plain = { spec: { containers: [{ name: 'a' }], ephemeralContainers: [old] } };
  t.like(update(plain, { ...ephemeral, oldObject: { spec: {} } }, 'mutate'), { outcome: 'allowed', patch: [] });
});

test('an update without its old or new pod is refused, other operations are allowed', (t) => {
  t.regex(update(null).denial ?? '', /request\.object: is missing/);
  t.regex(update(running, { oldObject: null }).denial ?? '', /request\.oldObject: is missing/);
  t.true(update(null, { operation: 'DELETE' }).allowed);
  t.true(update(null, { operation: 'CONNECT', subResource: 'exec' }).allowed);
  const deployments = { resource: { group: 'apps', version: 'v1', resource: 'deployments' } };
  t.true(update({}, deployments).allowed);
});

test('kubectl debug of a real cluster comes out closed', (t) => {
  const body = fixture('1.29-update-ephemeral-debug');
  const mutated = answerOf(body);
  t.is(mutated.patch.length, 1);
  const after = { ...body, request: { ...(body.request as object), object: mutated.pod } };
  t.true(answerOf(after, configured(), 'validate').allowed);
});

test('a tenant may make the enforcement mode stricter, only writers may weaken it', (t) => {
  const KEY = 'cotenant.io/enforcement';
  const OVERRIDE = `${KEY}-override`;
  const [REPORTED, ENFORCED] = ['report', 'enforce'].map((enforcement) =>
    annotationsOf(answerOf(creation(sharePod()), configured({ rules: { enforcement } })).pod),
  );
  const changed = (from: object | undefined, to: object | undefined, more: object = {}) =>
    update(annotated(to ?? {}), { oldObject: annotated(from ?? {}), ...more });
  t.true(changed(REPORTED, { ...REPORTED, [KEY]: 'enforce' }).allowed);
  t.true(changed(REPORTED, { ...REPORTED, [KEY]: 'report' }).allowed);
  const path = `metadata.annotations["${KEY}"]`;
  const only = 'only administrators make it weaker';
  const cases: [object | undefined, object | undefined, string][] = [
    [
      REPORTED,
      { ...REPORTED, [KEY]: 'off' },
      `403 Forbidden: ${path}: "off" is weaker than the pod's mode, report; write one of report, enforce; ${only}`,
    ],
    [
      ENFORCED,
      { ...ENFORCED, [KEY]: 'report' },
      `403 Forbidden: ${path}: "report" is weaker than the pod's mode, enforce; write one of enforce; ${only}`,
    ],
    [
      { ...REPORTED, [KEY]: 'enforce' },
      { ...REPORTED, [KEY]: 'report' },
      `403 Forbidden: ${path}: "report" is weaker than the pod's mode, enforce; write one of enforce; ${only}`,
    ],
    [
      { ...REPORTED, [KEY]: 'enforce' },
      REPORTED,
      `403 Forbidden: ${path}: may not be removed while it is enforce; write one of enforce; ${only}`,
    ],
    [
      REPORTED,
      { ...REPORTED, [KEY]: 'kill' },
      `422 Invalid: ${path}: "kill" is not known; write one of report, enforce; ${only}`,
    ],
    [
      ENFORCED,
      { ...ENFORCED, [OVERRIDE]: 'off' },
      `403 Forbidden: metadata.annotations["${OVERRIDE}"]: "off" may not be added by "alice"; leave it as it is; to ask for something else, recreate the pod`,
    ],
  ];
  for (const [from, to, message] of cases) t.is(changed(from, to).denial, message);

  const writer = { userInfo: { username: 'system:serviceaccount:cotenant:agent' } };
  t.true(changed(ENFORCED, { ...ENFORCED, [OVERRIDE]: 'off' }, writer).allowed);
  t.is(
    changed(ENFORCED, { ...ENFORCED, [OVERRIDE]: 'none' }, writer).denial,
    `422 Invalid: metadata.annotations["${OVERRIDE}"]: "none" is not known; write one of off, report, enforce`,
  );
  t.true(changed({ ...ENFORCED, [OVERRIDE]: 'off' }, ENFORCED, writer).allowed);
});

test('a change of memory is checked whoever writes it: container, amount, share', (t) => {
  const user = { userInfo: { username: 'system:serviceaccount:cotenant:agent' } };
  const now = annotationsOf(running);
  const memory = (text: string) => update(annotated({ ...now, 'cotenant.io/memory': text }), user);
  t.true(memory('{"main":"6Gi"}').allowed);
  const right = 'write amounts in whole MiB for containers of main, such as {"main":"6Gi"}';
  for (const [text, wrong] of [
    ['{"main":"6"}', 'is not valid: main: "6" is not an amount in whole MiB, such as "6Gi"'],
    ['6Gi', 'is not valid: it is not JSON'],
    ['{"side":"6Gi"}', 'names side, which has no share'],
  ] as const) {
    const shown = JSON.stringify(text);
    t.is(memory(text).denial, `422 Invalid: metadata.annotations["cotenant.io/memory"]: ${shown} ${wrong}; ${right}`);
  }
  const { 'cotenant.io/request': _, ...without } = now;
  t.regex(
    update(annotated({ ...without, 'cotenant.io/memory': '{"main":"6Gi"}' }), user).denial ?? '',
    /is on a pod without a share of a GPU; leave it out$/,
  );
  t.false(update(annotated({ ...now, 'cotenant.io/memory': '{"main":"6Gi"}' })).allowed, 'a tenant');
});
