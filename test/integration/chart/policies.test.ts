// The policy on pods with shares held against the webhook, on random pods: it refuses none that the webhook has
// patched, and each that the webhook would still patch. That API servers take the policies for the same is shown in
// test/cluster.
import type { ExecutionContext } from 'ava';
import fc from 'fast-check';
import { OWN_RESOURCES } from '../../../src/api/names.ts';
import { field, type JsonObject, listAt } from '../../../src/common/json.ts';
import { DEVICE_ROUTES } from '../../../webhook/config.ts';
import { mutatePod } from '../../../webhook/mutate.ts';
import { configured, creation, sharePod } from '../../unit/webhook/reviews.ts';
import { find, NAMESPACE, objectsOf, render, testWithHelm } from './chart.ts';
import { denialsOf } from './conditions.ts';
import { pod, soundPod } from './pods.ts';

const settings = (deviceRoute: string) => ({
  deviceRoute,
  rules: { dialects: ['ack', 'metagpu'], templates: { small: { gpuMemory: '1Gi' } } },
});

function policy(t: ExecutionContext, name: string, deviceRoute = 'nri') {
  const objects = objectsOf(t, { webhook: { enabled: true, configuration: settings(deviceRoute) } });
  return denialsOf(find(objects, 'ValidatingAdmissionPolicy', `cotenant-${name}`));
}

/** Asks in our own names, which is what the policies look at. */
const asks = (given: JsonObject) =>
  ['containers', 'initContainers']
    .flatMap((list) => listAt(field(given, 'spec'), list))
    .flatMap((each) => ['limits', 'requests'].map((kind) => field(field(each, 'resources'), kind)))
    .some((amounts) => OWN_RESOURCES.some((name) => field(amounts, name) !== undefined));

for (const deviceRoute of DEVICE_ROUTES) {
  testWithHelm(`a random pod passes the policy only after the webhook (${deviceRoute})`, (t) => {
    const denials = policy(t, 'shares', deviceRoute);
    const configuration = configured(settings(deviceRoute));
    const check = (kind: 'patched' | 'untouched', numRuns: number) =>
      fc.assert(
        fc.property(fc.oneof(pod, soundPod), (given) => {
          const injection = mutatePod(given, 'team-a', configuration);
          // Others are drawn in their place.
          fc.pre(injection.kind === kind);
          const [before, after] = [given, injection.kind === 'patched' ? injection.pod : given].map((each) =>
            denials(creation(each)),
          );
          if (after?.length !== 0) throw new Error(`refused though the webhook is done: ${after}`);
          if (kind === 'patched' && asks(given) && before?.length === 0) throw new Error('allowed as it came');
        }),
        { numRuns },
      );
    t.notThrows(() => check('patched', 150));
    t.notThrows(() => check('untouched', 30));
  });
}

testWithHelm('each of our resources makes a pod one with a share, as a limit and as a request', (t) => {
  const denials = policy(t, 'shares');
  for (const name of OWN_RESOURCES) {
    for (const kind of ['limits', 'requests']) {
      const given = sharePod({ resources: { [kind]: { [name]: '1' } } });
      t.regex(denials(creation(given))[0] ?? '', /lacks the volume of Cotenant/, `${name} in ${kind}`);
    }
  }
  t.deepEqual(denials(creation(sharePod({ resources: { limits: { 'cotenant.io/new': '1' } } }))), []);
});

testWithHelm('the image of a static pod is left to the node, but only as its kubelet sends it', (t) => {
  const denials = policy(t, 'shares');
  const image = sharePod({}, { nodeName: 'gpu-1' }, { annotations: { 'kubernetes.io/config.mirror': 'x' } });
  const by = (username: string, ...groups: string[]) => denials(creation(image, { userInfo: { username, groups } }));
  t.deepEqual(by('system:node:gpu-1', 'system:nodes'), []);
  t.true(by('alice', 'system:nodes').length > 0);
  t.true(by('system:node:gpu-1').length > 0);
});

testWithHelm('writers of annotations are listed once, by release and settings', (t) => {
  const values = { webhook: { enabled: true, configuration: { annotationWriters: ['alice'] } } };
  const changed = (given: object, username: string, key = 'cotenant.io/grant') => {
    const denials = denialsOf(
      find(objectsOf(t, given as typeof values), 'ValidatingAdmissionPolicy', 'cotenant-grants'),
    );
    const after = sharePod({}, {}, { annotations: { [key]: '{}' } });
    return denials(creation(after, { operation: 'UPDATE', oldObject: sharePod(), userInfo: { username } }));
  };
  t.deepEqual(changed(values, 'alice'), []);
  t.deepEqual(changed(values, `system:serviceaccount:${NAMESPACE}:cotenant-agent`), []);
  t.deepEqual(changed(values, 'bob'), [
    'metadata.annotations: cotenant.io/grant may not be changed by "bob"; to ask for something else, recreate the pod',
  ]);
  t.deepEqual(changed(values, 'alice', 'cotenant.io/compute'), []);
  t.is(changed(values, 'bob', 'cotenant.io/compute').length, 1);
  const sent = (given: object, username: string) => {
    const denials = denialsOf(
      find(objectsOf(t, given as typeof values), 'ValidatingAdmissionPolicy', 'cotenant-bindings'),
    );
    const metadata = { name: 'p', annotations: { 'gpu-uuids.cotenant.io/main': 'x' } };
    return denials(creation({ metadata }, { userInfo: { username } })).length;
  };
  const account = (name: string) => `system:serviceaccount:${NAMESPACE}:${name}`;
  t.is(sent(values, account('cotenant-scheduler')), 0);
  t.is(sent(values, 'alice'), 1);
});

testWithHelm('policies are bound, fail closed, and skip the namespaces of the webhook', (t) => {
  const kinds = (values: object) =>
    objectsOf(t, { ...values }).filter(({ kind }) => String(kind).startsWith('ValidatingAdmissionPolicy'));
  const off = { enabled: false };
  const names = (values: object) =>
    kinds(values).flatMap(({ kind, metadata }) =>
      String(kind) === 'ValidatingAdmissionPolicy' ? String(metadata?.name).replace('cotenant-', '') : [],
    );
  t.deepEqual(names({}).toSorted(), ['bindings', 'debug', 'grants', 'nodes', 'shares']);
  t.deepEqual(names({ webhook: off }).toSorted(), ['bindings', 'grants', 'nodes']);
  t.deepEqual(names({ webhook: null }).toSorted(), ['bindings', 'grants', 'nodes']);
  for (const without of [{ csi: off }, { agent: off }]) {
    t.deepEqual(names(without).toSorted(), ['bindings', 'debug', 'grants', 'shares']);
    t.deepEqual(names({ ...without, webhook: off }), []);
  }
  t.deepEqual(kinds({ policies: off }), []);
  const all = kinds({ webhook: { excludedNamespaces: ['kube-system', 'ci'] } });
  t.is(all.length, 10);
  for (const { kind, metadata, spec } of all) {
    if (String(kind) === 'ValidatingAdmissionPolicyBinding') {
      t.deepEqual(spec as unknown, { policyName: String(metadata?.name), validationActions: ['Deny'] });
      continue;
    }
    t.is(String(spec?.failurePolicy), 'Fail');
    const clusterWide = String(metadata?.name) === 'cotenant-nodes';
    const excluded = spec?.matchConstraints?.namespaceSelector?.matchExpressions?.[0]?.values;
    t.deepEqual(excluded as unknown, clusterWide ? undefined : [NAMESPACE, 'kube-system', 'ci']);
  }
});

testWithHelm('the policy allows SYS_PTRACE in the namespaces where the webhook does', (t) => {
  const capable = sharePod({ securityContext: { capabilities: { add: ['SYS_PTRACE'] } } });
  const allowed = (rules: object, namespaces: object) => {
    const configuration = { rules, namespaces };
    const objects = objectsOf(t, { webhook: { enabled: true, configuration } });
    const denials = denialsOf(find(objects, 'ValidatingAdmissionPolicy', 'cotenant-shares'));
    return ['team-a', 'team-b'].filter((namespace) => {
      const injection = mutatePod(capable, namespace, configured(configuration));
      // The pod as the webhook would patch it were tracing allowed.
      const all = configured({ ...configuration, rules: { allowPtrace: true }, namespaces: {} });
      const patched = mutatePod(capable, namespace, all);
      if (patched.kind !== 'patched') throw new Error('not patched');
      const isAllowed = denials(creation(patched.pod, { namespace })).length === 0;
      t.is(isAllowed, injection.kind === 'patched', namespace);
      return isAllowed;
    });
  };
  t.deepEqual(allowed({}, {}), []);
  t.deepEqual(allowed({}, { 'team-a': { allowPtrace: true } }), ['team-a']);
  t.deepEqual(allowed({ allowPtrace: true }, { 'team-a': { allowPtrace: false }, 'team-b': {} }), ['team-b']);
});

testWithHelm('mode policy comes without a webhook, and refuses what it cannot keep', (t) => {
  const of = (configuration: object, version = '1.36.4', more: object = {}) =>
    render({ admission: { mode: 'policy' }, webhook: { configuration }, ...more }, '--kube-version', version);
  const kept = { driverCapabilities: ['compute'], enforcement: 'report', memoryIsolation: 'off', allowPtrace: true };
  const { ok, objects, text } = of({ rules: { ...kept, placements: ['spread'], computePolicies: ['fixed'] } });
  t.true(ok, text);
  const kinds = objects.map(({ kind, metadata }) => `${kind} ${metadata?.name}`);
  t.true(kinds.includes('MutatingAdmissionPolicy cotenant-patch'));
  t.true(kinds.includes('ValidatingAdmissionPolicy cotenant-shares'));
  t.deepEqual(
    kinds.filter((kind) => /webhook/i.test(kind)),
    [],
  );
  const refusals: readonly (readonly [ReturnType<typeof of>, RegExp])[] = [
    [of({ rules: { dialects: ['ack'] } }), /admission\.mode policy keeps no webhook\.configuration\.rules\.dialects/],
    [of({ rules: { allowUncountedMemory: false } }), /keeps no .*rules\.allowUncountedMemory/],
    [of({ rules: { most: { gpu: 1 }, defaults: { gpuCores: 5 } } }), /rules\.defaults, webhook\.\S+rules\.most/],
    [of({ namespaces: { a: { allowPtrace: true } } }), /keeps no webhook\.configuration\.namespaces/],
    [of({ pools: { a: { nodeSelector: { a: 'b' } } } }), /keeps no webhook\.configuration\.pools/],
    [of({}, '1.35.2'), /needs Kubernetes 1\.36 .*this is v?1\.35\.2/],
    [of({}, '1.36.4', { policies: { enabled: false } }), /needs policies\.enabled/],
  ];
  for (const [rendered, wanted] of refusals) {
    t.false(rendered.ok);
    t.regex(rendered.text, wanted);
  }
});
