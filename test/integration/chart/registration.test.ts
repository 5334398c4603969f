// The webhook's registrations: closed when it is down, narrow enough that no other request notices, and wide enough
// that no pod which the webhook would change or refuse gets past it. The last is held against the webhook itself, on
// random pods.
import { X509Certificate } from 'node:crypto';
import { readdirSync } from 'node:fs';
import type { ExecutionContext } from 'ava';
import fc from 'fast-check';
import { FOREIGN_DIALECT_NAMES } from '../../../src/api/request.ts';
import type { JsonObject } from '../../../src/common/json.ts';
import { type Route, review } from '../../../webhook/admission-review.ts';
import { configured, creation, FIXTURES, fixture, sharePod } from '../../unit/webhook/reviews.ts';
import { find, type Json, list, NAMESPACE, objectsOf, render, testWithHelm } from './chart.ts';
import { type Hook, hooksOf } from './conditions.ts';
import { changedPod, pod } from './pods.ts';

const HOST = `cotenant-webhook.${NAMESPACE}.svc`;
const rules = { dialects: FOREIGN_DIALECT_NAMES };
const withDialects = { webhook: { enabled: true, configuration: { rules } } };

function registrations(t: ExecutionContext, values: object = withDialects): readonly Json[] {
  const objects = objectsOf(t, { ...values });
  return ['Mutating', 'Validating'].map((kind) => find(objects, `${kind}WebhookConfiguration`, 'cotenant-webhook'));
}

function hooks(t: ExecutionContext, values: object = withDialects): readonly Hook[] {
  return registrations(t, values).flatMap(hooksOf);
}

/** Names of the webhooks that an API server would call for a review. */
function called(all: readonly Hook[], body: JsonObject): readonly string[] {
  return all.filter((hook) => hook.calls(body)).map(({ name }) => name);
}

const update = (before: JsonObject, after: JsonObject, subResource = ''): JsonObject =>
  creation(after, { operation: 'UPDATE', subResource, oldObject: before });
const plain = (container: object = {}, metadata: object = {}, more: object = {}): JsonObject => ({
  metadata: { name: 'web', ...metadata },
  spec: { containers: [{ name: 'main', ...container }] },
  ...more,
});

testWithHelm('each registration is v1, side-effect free and conditional, and fails closed', (t) => {
  const all = registrations(t).flatMap(({ webhooks }) => list(webhooks));
  t.deepEqual(
    all.map(({ name, failurePolicy }) => `${name} ${failurePolicy}`),
    ['inject.cotenant.io Fail', 'notice.cotenant.io Ignore', 'validate.cotenant.io Fail', 'rules.cotenant.io Fail'],
  );
  for (const webhook of all.filter(({ name }) => String(name) !== 'rules.cotenant.io')) {
    t.like(webhook, { admissionReviewVersions: ['v1'], sideEffects: 'None', matchPolicy: 'Equivalent' });
    t.true(list(webhook.matchConditions).length > 0);
    t.true(Number(webhook.timeoutSeconds) <= 5);
    const [selector] = list(webhook.namespaceSelector?.matchExpressions);
    t.like(selector, { key: 'kubernetes.io/metadata.name', operator: 'NotIn', values: [NAMESPACE, 'kube-system'] });
    t.true(['/mutate', '/validate'].includes(String(webhook.clientConfig?.service?.path)));
    t.like(webhook.clientConfig?.service, { name: 'cotenant-webhook', namespace: NAMESPACE, port: 443 });
    for (const { apiGroups, resources } of list(webhook.rules)) {
      t.deepEqual(list(apiGroups).map(String), ['']);
      for (const resource of list(resources))
        t.regex(String(resource), /^pods(\/(ephemeralcontainers|resize|status))?$/);
    }
  }
  t.is(String(all[0]?.reinvocationPolicy), 'IfNeeded');
});

testWithHelm('of ConfigMaps only the one of live rules is reviewed, in our namespace', (t) => {
  const of = (values: object) => registrations(t, values).flatMap(({ webhooks }) => list(webhooks));
  const [, , , rules] = of(withDialects);
  t.like(rules, { admissionReviewVersions: ['v1'], sideEffects: 'None' });
  t.deepEqual(rules?.namespaceSelector as unknown, { matchLabels: { 'kubernetes.io/metadata.name': NAMESPACE } });
  t.deepEqual(rules?.rules as unknown, [
    {
      apiGroups: [''],
      apiVersions: ['v1'],
      operations: ['CREATE', 'UPDATE'],
      resources: ['configmaps'],
      scope: 'Namespaced',
    },
  ]);
  t.deepEqual(rules?.matchConditions as unknown, [
    { name: 'is-the-live-rules', expression: "object.metadata.name == 'cotenant-webhook-rules'" },
  ]);
  t.is(of({ webhook: { enabled: true, liveRules: false } }).length, 3);
});

testWithHelm("names of Baidu's with any model call the webhook, its other devices do not", (t) => {
  const all = hooks(t, {
    webhook: { enabled: true, warnForeignUse: false, configuration: { rules: { dialects: ['baidu'] } } },
  });
  const of = (limits: object) => called(all, creation(plain({ resources: { limits } })));
  for (const name of ['baidu.com/t4_16g_cgpu', 'baidu.com/l20_cgpu_core', 'baidu.com/a100_80g_cgpu_memory_percent'])
    t.true(of({ [name]: '1' }).includes('inject.cotenant.io'), name);
  for (const name of ['baidu.com/xpu', 'baidu.com/t4_16g_cgpu_video', 'example.com/t4_cgpu'])
    t.deepEqual(of({ [name]: '1' }), [], name);
});

testWithHelm('pods without GPUs call no webhook, pods with whole GPUs only the warning one', (t) => {
  const all = hooks(t, { webhook: { enabled: true, configuration: { rules: { dialects: ['ack', 'metagpu'] } } } });
  t.deepEqual(called(all, fixture('1.36-create-plain-dry-run')), []);
  t.deepEqual(called(all, creation(plain({ resources: { limits: { cpu: '1', 'nvidia.com/gpu': '1' } } }))), []);
  t.deepEqual(called(all, creation(plain({ env: [{ name: 'NVIDIA_VISIBLE_DEVICES', value: 'all' }] }))), [
    'notice.cotenant.io',
  ]);
  const none = hooks(t, { webhook: { enabled: true, warnForeignUse: false } });
  t.deepEqual(called(none, creation(plain({ env: [{ name: 'NVIDIA_VISIBLE_DEVICES', value: 'all' }] }))), []);
});

testWithHelm('resources of a dialect call the webhook when it is enabled, also per namespace', (t) => {
  const pod = creation(plain({ resources: { limits: { 'aliyun.com/gpu-mem': '3' } } }));
  const fails = ['inject.cotenant.io', 'validate.cotenant.io'];
  t.deepEqual(called(hooks(t), pod), fails);
  t.deepEqual(called(hooks(t, { webhook: { enabled: true } }), pod), []);
  const one = { namespaces: { research: { dialects: ['ack'] } } };
  t.deepEqual(called(hooks(t, { webhook: { enabled: true, configuration: one } }), pod), fails);
  const other = { rules: { dialects: ['metagpu'] } };
  t.deepEqual(called(hooks(t, { webhook: { enabled: true, configuration: other } }), pod), []);
});

testWithHelm('annotations, labels and beginnings of names of a dialect call the webhook', (t) => {
  const fails = ['inject.cotenant.io', 'validate.cotenant.io'];
  const asking: Record<string, JsonObject> = {
    fraction: plain({}, { annotations: { 'gpu-fraction': '0.5' } }),
    'by container': plain({}, { annotations: { 'nvidia.com/container.main.gpu-memory.request': '8Gi' } }),
    label: plain({}, { labels: { 'sharedgpu/gpu_request': '0.5' } }),
    slice: plain({ resources: { limits: { 'nvidia.com/gpu-10gb': '1' } } }),
    instance: plain({ resources: { limits: { 'nvidia.com/mig-1g.10gb': '1' } } }),
  };
  for (const [name, pod] of Object.entries(asking)) {
    t.deepEqual(called(hooks(t), creation(pod)), fails, name);
    t.deepEqual(called(hooks(t, { webhook: { enabled: true } }), creation(pod)), [], name);
  }
  t.deepEqual(called(hooks(t), creation(plain({}, { labels: { app: 'x' }, annotations: { note: 'x' } }))), []);
});

const LIMITS = { 'cotenant.io/gpu-memory': '1Gi' };

testWithHelm('status updates and unrelated changes of a pod do not depend on the webhook', (t) => {
  const all = hooks(t);
  const pod = sharePod();
  t.deepEqual(called(all, update(pod, { ...pod, status: { phase: 'Running' } }, 'status')), []);
  t.deepEqual(called(all, update(pod, { ...pod, metadata: { name: 'p', labels: { a: 'b' } } })), []);
  t.deepEqual(called(all, update(pod, { ...pod, metadata: { name: 'p', annotations: { a: 'b' } } })), []);
  t.deepEqual(called(all, update(pod, sharePod({ image: 'other' }))), []);
  t.deepEqual(called(all, update(pod, sharePod({ resources: { limits: { ...LIMITS, cpu: '2' } } }), 'resize')), []);
  const annotated = (annotations: object) => ({ ...pod, metadata: { name: 'p', annotations } });
  for (const key of ['cotenant.io/grant', 'gpu-uuids.cotenant.io/main', 'required-plugins.noderesource.dev/pod']) {
    const [before, after] = [annotated({ a: 'b' }), annotated({ a: 'b', [key]: 'x' })];
    for (const [from, to] of [
      [before, after],
      [after, before],
      [after, annotated({ a: 'b', [key]: 'y' })],
    ] as const)
      t.deepEqual(called(all, update(from, to, 'status')), ['validate.cotenant.io'], key);
  }
  t.deepEqual(
    called(all, update(pod, sharePod({ resources: { limits: { 'cotenant.io/gpu-memory': '2Gi' } } }), 'resize')),
    ['validate.cotenant.io'],
  );
  t.deepEqual(called(all, update(pod, pod, 'ephemeralcontainers')), ['inject.cotenant.io', 'validate.cotenant.io']);
  // What was ours is looked at when it is taken away, too.
  const marked = plain({}, { annotations: { 'cotenant.io/grant': 'x' } });
  t.deepEqual(called(all, update(marked, plain())), ['validate.cotenant.io']);
});

/** True when the webhook would do something about a review, so that not calling it would lose that. */
function acts(route: Route, body: JsonObject): boolean {
  const { outcome } = review(
    route,
    body,
    configured({ rules: { ...rules, templates: { small: { gpuMemory: '1Gi' } } } }),
  );
  return outcome !== 'allowed';
}

function notCalled(all: readonly Hook[], body: JsonObject): readonly string[] {
  return (['mutate', 'validate'] as const).filter(
    (route) =>
      acts(route, body) &&
      !all.some((hook) => hook.failurePolicy === 'Fail' && hook.route === `/${route}` && hook.calls(body)),
  );
}

testWithHelm('each recorded review about which the webhook does something reaches it', (t) => {
  const all = hooks(t);
  const names = readdirSync(FIXTURES).map((name) => name.replace('.json', ''));
  const acting = names.filter((name) => acts('mutate', fixture(name)) || acts('validate', fixture(name)));
  t.true(acting.length >= 6, acting.join());
  for (const name of names) t.deepEqual(notCalled(all, fixture(name)), [], name);
});

testWithHelm('no random pod that the webhook would patch or refuse bypasses it', (t) => {
  const all = hooks(t);
  let acting = 0;
  fc.assert(
    fc.property(pod, (given) => {
      const body = creation(given);
      if (acts('mutate', body)) acting += 1;
      return notCalled(all, body).length === 0;
    }),
    { numRuns: 400 },
  );
  t.true(acting > 100, `${acting} of 400 pods were worth a call`);
  acting = 0;
  fc.assert(
    fc.property(
      changedPod,
      fc.constantFrom('', 'status', 'resize', 'ephemeralcontainers'),
      ([before, after], subresource) => {
        const body = update(before, after, subresource);
        if (acts('validate', body)) acting += 1;
        return notCalled(all, body).length === 0;
      },
    ),
    { numRuns: 400 },
  );
  t.true(acting > 100, `${acting} of 400 changes were worth a call`);
});

const bytes = (text: Json | undefined) => Buffer.from(String(text), 'base64');

testWithHelm("Helm's certificate names the Service and is signed by the registrations' CA", (t) => {
  const objects = objectsOf(t, { webhook: { enabled: true, certificate: { source: 'generated' } } });
  const secret = find(objects, 'Secret', 'cotenant-webhook-certificate');
  t.is(String(secret.type), 'kubernetes.io/tls');
  const [leaf, authority] = ['tls.crt', 'ca.crt'].map((file) => new X509Certificate(bytes(secret.data?.[file])));
  if (leaf === undefined || authority === undefined) return t.fail('no certificates');
  t.is(leaf.checkHost(HOST), HOST);
  t.true(leaf.verify(authority.publicKey) && authority.ca && !leaf.ca);
  t.is(leaf.publicKey.asymmetricKeyDetails?.namedCurve, 'prime256v1');
  const registered = objects
    .flatMap(({ webhooks }) => list(webhooks))
    .map(({ clientConfig }) => String(clientConfig?.caBundle));
  t.is(registered.length, 4);
  t.deepEqual([...new Set(registered)], [String(secret.data?.['ca.crt'])]);
});

testWithHelm('by default the webhook makes its certificate and fills both registrations', (t) => {
  const objects = objectsOf(t, withDialects);
  t.false(objects.some(({ kind }) => String(kind) === 'Secret'));
  for (const { clientConfig } of objects.flatMap(({ webhooks }) => list(webhooks)))
    t.is(clientConfig?.caBundle, undefined);
  const pod = find(objects, 'Deployment', 'cotenant-webhook').spec?.template?.spec;
  t.deepEqual(
    list(pod?.volumes).map(({ name }) => String(name)),
    ['configuration'],
  );
  const args = list(pod?.containers?.[0]?.args).map(String);
  for (const arg of [
    `--secret=${NAMESPACE}/cotenant-webhook-keys`,
    '--service=cotenant-webhook',
    '--registration=cotenant-webhook',
  ]) {
    t.true(args.includes(arg), arg);
  }
  t.false(args.some((arg) => /^--(cert|key)=/.test(arg)));
});

testWithHelm('with a Secret of the operator the authority is asked for, and used', (t) => {
  const given = (certificate: object) => ({
    webhook: { enabled: true, certificate: { source: 'secret', ...certificate } },
  });
  t.regex(render(given({})).text, /webhook.certificate.secretName: name the Secret/);
  t.regex(render(given({ secretName: 'mine' })).text, /webhook.certificate.caBundle: give the authority/);
  const objects = objectsOf(t, given({ secretName: 'mine', caBundle: 'PEM' }));
  t.false(objects.some(({ kind }) => String(kind) === 'Secret'));
  const webhooks = objects.flatMap((object) => list(object.webhooks));
  t.deepEqual([...new Set(webhooks.map(({ clientConfig }) => bytes(clientConfig?.caBundle).toString()))], ['PEM']);
  const mounted = list(find(objects, 'Deployment', 'cotenant-webhook').spec?.template?.spec?.volumes).map(
    ({ secret }) => String(secret?.secretName),
  );
  t.true(mounted.includes('mine'));
});

testWithHelm('with cert-manager a Certificate is requested, and cert-manager sets the CA', (t) => {
  const certificate = { source: 'certManager', issuerRef: { name: 'ours' } };
  t.regex(
    render({ webhook: { enabled: true, certificate: { source: 'certManager' } } }).text,
    /issuerRef.name: name the issuer/,
  );
  const objects = objectsOf(t, { webhook: { enabled: true, certificate } });
  const asked = find(objects, 'Certificate', 'cotenant-webhook-certificate');
  t.like(asked.spec, { secretName: 'cotenant-webhook-certificate', issuerRef: { kind: 'Issuer', name: 'ours' } });
  t.true(list(asked.spec?.dnsNames).map(String).includes(HOST));
  for (const kind of ['Mutating', 'Validating']) {
    const { metadata, webhooks } = find(objects, `${kind}WebhookConfiguration`, 'cotenant-webhook');
    t.is(
      String(metadata?.annotations?.['cert-manager.io/inject-ca-from']),
      `${NAMESPACE}/cotenant-webhook-certificate`,
    );
    for (const { clientConfig } of list(webhooks)) t.is(clientConfig?.caBundle, undefined);
  }
});

testWithHelm('two webhooks run on different nodes, one may be evicted at a time, and drain', (t) => {
  const objects = objectsOf(t, withDialects);
  const { spec } = find(objects, 'Deployment', 'cotenant-webhook');
  t.is(Number(spec?.replicas), 2);
  t.is(Number(find(objects, 'PodDisruptionBudget', 'cotenant-webhook').spec?.minAvailable), 1);
  const pod = spec?.template?.spec;
  t.true(
    list(pod?.topologySpreadConstraints).some(({ topologyKey }) => String(topologyKey) === 'kubernetes.io/hostname'),
  );
  const [main] = list(pod?.containers);
  t.true(list(main?.args).map(String).includes('--drain=10'));
  t.is(Number(pod?.terminationGracePeriodSeconds), 10 + 92 + 10 + 8, 'drain, idle connections, open requests, reserve');
  t.deepEqual(
    [main?.readinessProbe, main?.livenessProbe].map(
      (probe) => `${probe?.httpGet?.path} ${probe?.httpGet?.port} ${probe?.httpGet?.scheme ?? 'HTTP'}`,
    ),
    ['/readyz health HTTP', '/healthz health HTTP'],
  );
  const single = objectsOf(t, { webhook: { enabled: true, replicas: 1 } });
  t.false(
    single.some(
      ({ kind, metadata }) => String(kind) === 'PodDisruptionBudget' && String(metadata?.name) === 'cotenant-webhook',
    ),
    'a budget of one would block every drain',
  );
});
