// The chart's ValidatingAdmissionPolicies on a real API server: the type check of their CEL, and each refusal without
// the webhook, on objects that are wrong in exactly one respect.
import type { ExecutionContext } from 'ava';
import { testUnless } from '../../support/gate.ts';
import { BUILD_MS, lookForHelm, readyHelm } from '../../support/services/helm.ts';
import type { User } from '../bed/api.ts';
import { type Bed, bedTools, startBed } from '../bed/bed.ts';
import { eventually } from '../bed/eventually.ts';
import { kubernetesMinor } from '../bed/kubernetes.ts';
import { NODE_NAME } from '../bed/node.ts';
import { addCotenantImage, installChart, NAMESPACE, OFF } from '../bed/product.ts';
import { SCHEDULER } from '../support/pods.ts';
import { ASKED, but, container, limits, named, REQUIRED, type Slice, WRONG } from '../support/slices.ts';
import { checkPatch, PATCHED_BY } from './patch.ts';

const tools = bedTools(console.log, false);
const helm = lookForHelm();
const reason = tools.ok ? (helm.kind === 'missing' ? helm.reason : undefined) : tools.reason;

const POLICIES = ['bindings', 'debug', 'grants', 'nodes', 'shares'];
const AGENT = `system:serviceaccount:${NAMESPACE}:cotenant-agent`;
const NODE_OF_TOKEN = 'authentication.kubernetes.io/node-name';
const PODS = '/api/v1/namespaces/default/pods';
/** A kubelet changes memory and processors by `resize` since Kubernetes 1.33. */
const SUBRESOURCES = ['', '/status', '/ephemeralcontainers', ...(kubernetesMinor() >= 33 ? ['/resize'] : [])];

type Policy = {
  metadata: { name: string; generation: number };
  status?: {
    observedGeneration?: number;
    typeChecking?: { expressionWarnings?: { fieldRef: string; warning: string }[] };
  };
};
type Said = { readonly allowed: boolean; readonly said: string; readonly stored: Slice };

async function send(bed: Bed, method: string, path: string, body: object, as?: User): Promise<Said> {
  const { status, body: answer } = await bed.api.ask(method, `${path}?dryRun=All`, body, as);
  return {
    allowed: status < 300,
    said: (answer as { message?: string }).message ?? '',
    stored: answer as Slice,
  };
}

const create = (bed: Bed, pod: object, as?: User) => send(bed, 'POST', PODS, pod, as);
const replace = (bed: Bed, pod: Slice, subresource: string, as?: User) =>
  send(bed, 'PUT', `${PODS}/slice${subresource}`, pod, as);

/** Has all rights, so that a refusal comes from the policy. */
const user = (name: string, extra: Record<string, string> = {}): User => ({ name, groups: ['system:masters'], extra });
const kubelet: User = { name: `system:node:${NODE_NAME}`, groups: ['system:nodes', 'system:masters'] };

function refused(t: ExecutionContext, { allowed, said }: Said, policy: string, wanted: RegExp, what: string): void {
  t.false(allowed, what);
  t.regex(said, new RegExp(`ValidatingAdmissionPolicy 'cotenant-${policy}' with binding`), what);
  t.regex(said, wanted, what);
}

function typeWarnings(bed: Bed, name: string): readonly string[] | undefined {
  const policy = bed.get<Policy>('validatingadmissionpolicy', name);
  if (policy?.status?.observedGeneration !== policy?.metadata.generation) return undefined;
  return (policy?.status?.typeChecking?.expressionWarnings ?? []).map(({ fieldRef, warning }) => fieldRef + warning);
}

testUnless(reason)('admission policies refuse what the webhook would refuse, without the webhook', async (t) => {
  t.timeout(BUILD_MS);
  if (!tools.ok || helm.kind === 'missing') throw new Error(reason);
  const path = await readyHelm(helm);
  const bed = await startBed(tools, (line) => t.log(line));
  t.teardown(() => bed.close());
  addCotenantImage(bed);
  const configuration = { schedulerName: 'cotenant-scheduler', allowedSchedulers: ['second'] };
  installChart(bed, path, { scheduler: OFF, webhook: { enabled: true, replicas: 1, configuration } });

  await checkTypes(t, bed);
  // Pods as the webhook leaves them are allowed; one such pod is stored and waits for a scheduler that does not exist.
  const first = await create(bed, ASKED);
  t.true(first.allowed, first.said);
  const { uid: _, ...metadata } = first.stored.metadata;
  const patched: Slice = { ...first.stored, metadata };
  bed.apply(ASKED);

  // Webhook down: requests that match it are refused for that reason; the others are left to the policies.
  t.is(bed.kubectl('-n', NAMESPACE, 'scale', 'deployment', 'cotenant-webhook', '--replicas=0').code, 0);
  const down = await eventually(async () => {
    const { allowed, said } = await create(bed, named(ASKED, 'late'));
    return allowed ? undefined : said;
  }, 'GPU pods are refused while the webhook is down');
  t.regex(down, /failed calling webhook "(inject|validate)\.cotenant\.io"/);
  await checkBindings(t, bed);
  await checkNodes(t, bed);

  // Webhook configuration gone, as if a pod had bypassed it.
  for (const kind of ['mutating', 'validating']) {
    t.is(bed.kubectl('delete', `${kind}webhookconfiguration`, 'cotenant-webhook').code, 0);
  }
  const alone = named(patched, 'alone');
  const isAllowed = async () => (await create(bed, alone)).allowed || undefined;
  await eventually(isAllowed, 'a pod that is patched by hand is allowed');
  refused(t, await create(bed, named(ASKED, 'bare')), 'shares', /did not pass its webhook/, 'unpatched');
  for (const [what, wanted, change] of WRONG) {
    refused(t, await create(bed, but(alone, change)), 'shares', wanted, what);
  }
  const alike = but(alone, ({ spec }) => {
    for (const mountPath of ['/run/cotenant-data', '/etc/ld.so.preload.d']) {
      spec.containers[0].volumeMounts?.push({ name: 'data', mountPath });
    }
  });
  t.true((await create(bed, alike)).allowed, 'paths that only look alike');
  await checkOtherPods(t, bed);
  await checkChanges(t, bed);
  await checkDebugging(t, bed);

  if (kubernetesMinor() < 36) {
    t.log('no admission.mode policy: MutatingAdmissionPolicy is of Kubernetes 1.36');
    return;
  }
  const creation = async (namespace: string, pod: object) =>
    send(bed, 'POST', `/api/v1/namespaces/${namespace}/pods`, pod);
  const runtime = { apiVersion: 'node.k8s.io/v1', kind: 'RuntimeClass', metadata: { name: 'other' }, handler: 'runc' };
  bed.apply(runtime);
  for (const route of [{ deviceRoute: 'nri' }, { deviceRoute: 'environment', runtimeClassName: 'other' }]) {
    const configured = { ...PATCHED_BY, ...route };
    installChart(bed, path, { scheduler: OFF, admission: { mode: 'policy' }, webhook: { configuration: configured } });
    // The API server takes up policies of each kind by a timer of its own (policy_source.go: each second): both are in
    // force when a pod has what this policy patches and not the other one, and the policy that checks takes that and
    // refuses what the webhook left.
    const wanted = route.runtimeClassName ? /"runtimeClassName":"other"/ : /"required-plugins\.noderesource\.dev"/;
    const isPatched = async () => {
      const { stored } = await create(bed, named(ASKED, 'p'));
      const other = but(named(ASKED, 'p'), ({ metadata }) => {
        metadata.annotations = { ...metadata.annotations, 'cotenant.io/compute-policy': 'binpack' };
      });
      const { said } = await create(bed, other);
      return (wanted.test(JSON.stringify(stored)) && /of the values that are allowed/.test(said)) || undefined;
    };
    await eventually(isPatched, `the policy patches pods (${route.deviceRoute})`);
    t.deepEqual(await eventually(() => typeWarnings(bed, 'cotenant-shares'), 'the policy is checked'), []);
    await checkPatch(t, creation, configured);
  }
});

/** The API server checks types; a policy with an unknown field proves it. */
async function checkTypes(t: ExecutionContext, bed: Bed): Promise<void> {
  const policies = JSON.parse(bed.kubectl('get', 'validatingadmissionpolicy', '-o', 'json').out) as { items: Policy[] };
  t.deepEqual(
    policies.items.map(({ metadata }) => metadata.name).sort(),
    POLICIES.map((name) => `cotenant-${name}`),
  );
  const shares = policies.items.find(({ metadata }) => metadata.name === 'cotenant-shares');
  const misspelt = JSON.parse(JSON.stringify(shares).replaceAll('object.spec.hostPID', 'object.spec.hostPid'));
  bed.apply({ ...misspelt, metadata: { name: 'misspelt' }, status: undefined });
  const warnings = await eventually(() => typeWarnings(bed, 'misspelt'), 'the misspelt policy is checked');
  t.regex(warnings.join(), /undefined field 'hostPid'/);
  for (const { metadata } of policies.items) {
    const found = await eventually(() => typeWarnings(bed, metadata.name), `${metadata.name} is checked`);
    t.deepEqual(found, [], metadata.name);
  }
  t.is(bed.kubectl('delete', 'validatingadmissionpolicy', 'misspelt').code, 0);
}

async function checkBindings(t: ExecutionContext, bed: Bed): Promise<void> {
  const binding = (annotations: object) => ({
    apiVersion: 'v1',
    kind: 'Binding',
    metadata: { name: 'slice', namespace: 'default', annotations },
    target: { apiVersion: 'v1', kind: 'Node', name: NODE_NAME },
  });
  const other = user('system:kube-scheduler');
  for (const route of [`${PODS}/slice/binding`, '/api/v1/namespaces/default/bindings']) {
    for (const key of ['cotenant.io/grant', 'gpu-uuids.cotenant.io/main', 'cotenant.io/request', `${REQUIRED}/pod`]) {
      const answer = await send(bed, 'POST', route, binding({ [key]: '{}' }), other);
      refused(t, answer, 'bindings', /may not be sent with a Binding by "system:kube-scheduler"/, `${key} to ${route}`);
    }
    const ours = binding({ 'cotenant.io/grant': '{}', 'gpu-uuids.cotenant.io/main': 'x' });
    const granted = await send(bed, 'POST', route, ours, SCHEDULER);
    t.true(granted.allowed, granted.said);
    t.true((await send(bed, 'POST', route, binding({ note: 'x' }), other)).allowed);
  }
}

/** An agent's token names its node; no other token does. */
async function checkNodes(t: ExecutionContext, bed: Bed): Promise<void> {
  bed.apply({ apiVersion: 'v1', kind: 'Node', metadata: { name: 'node-2' } });
  const patch = (name: string, as: User) =>
    send(
      bed,
      'PATCH',
      `/api/v1/nodes/${name}/status`,
      { status: { capacity: { 'cotenant.io/gpu-cores': '100' } } },
      as,
    );
  const onNode = user(AGENT, { [NODE_OF_TOKEN]: NODE_NAME });
  const own = await patch(NODE_NAME, onNode);
  t.true(own.allowed, own.said);
  t.true((await patch('node-2', user('alice'))).allowed, 'others are not held to it');
  refused(t, await patch('node-2', onNode), 'nodes', /this token is of node-1/, 'another node');
  refused(t, await patch(NODE_NAME, user(AGENT)), 'nodes', /this token is of no node/, 'a token of no pod');
  // The API server puts the node into tokens of pods.
  const spec = { serviceAccountName: 'cotenant-agent', nodeName: NODE_NAME, containers: [container('main')] };
  bed.apply({ apiVersion: 'v1', kind: 'Pod', metadata: { name: 'agent', namespace: NAMESPACE }, spec });
  const bound = ['--bound-object-kind=Pod', '--bound-object-name=agent'];
  const token = bed.kubectl('-n', NAMESPACE, 'create', 'token', 'cotenant-agent', ...bound).out.trim();
  const { out } = bed.kubectl(`--token=${token}`, 'auth', 'whoami', '-o', 'json');
  t.deepEqual(JSON.parse(out).status.userInfo.extra[NODE_OF_TOKEN], [NODE_NAME]);
}

const NOTHING: object = {};

/** Our names in pods without a request, static pods, and grants that a user wrote. */
async function checkOtherPods(t: ExecutionContext, bed: Bed): Promise<void> {
  // A node may create only mirror pods of its own static pods.
  const uid = bed.get<{ metadata: { uid: string } }>('node', NODE_NAME)?.metadata.uid ?? '';
  const owner = { apiVersion: 'v1', kind: 'Node', name: NODE_NAME, uid, controller: true };
  const plain = (more: object, annotations: object = NOTHING) => ({
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { name: 'plain', annotations, ...(annotations === NOTHING ? {} : { ownerReferences: [owner] }) },
    spec: { containers: [container('main')], ...more },
  });
  t.true((await create(bed, plain({ hostPID: true, nodeName: NODE_NAME }))).allowed, 'other pods are none of ours');
  const volumes = (name: string) => plain({ volumes: [{ name, csi: { driver: 'cotenant.io' } }] });
  refused(t, await create(bed, volumes('cotenant')), 'shares', /asks for no share/, 'our volume in a plain pod');
  refused(t, await create(bed, volumes('x')), 'shares', /the only volume of Cotenant/, 'under another name');
  const recorded = plain({}, { 'cotenant.io/request': '{}' });
  refused(t, await create(bed, recorded), 'shares', /records a request, but no container asks/, 'a forged request');

  const isStatic = { 'kubernetes.io/config.mirror': 'x', 'kubernetes.io/config.source': 'file' };
  const onNode = { nodeName: NODE_NAME, containers: [container('main', { resources: limits('1Gi') })] };
  const image = await create(bed, plain(onNode, isStatic), kubelet);
  t.true(image.allowed, `a static pod runs anyway, without a share: ${image.said}`);
  refused(t, await create(bed, plain(onNode, isStatic), user('alice')), 'shares', /lacks the volume/, 'by a tenant');

  for (const key of ['cotenant.io/grant', 'gpu-uuids.cotenant.io/main']) {
    for (const as of [user('alice'), user(AGENT), SCHEDULER, kubelet]) {
      const forged = plain({ nodeName: NODE_NAME }, { ...isStatic, [key]: '{}' });
      refused(t, await create(bed, forged, as), 'grants', /is written only by the scheduler/, `${key} by ${as.name}`);
    }
  }
  t.true((await create(bed, plain({}, { 'notcotenant.io/grant': '{}' }))).allowed);
}

async function checkChanges(t: ExecutionContext, bed: Bed): Promise<void> {
  const running = bed.get<Slice>('pod', 'slice') as Slice;
  const before = running.metadata.annotations;
  const changes: readonly Record<string, string | undefined>[] = [
    { 'cotenant.io/grant': '{}' },
    { 'gpu-uuids.cotenant.io/main': 'all' },
    { 'cotenant.io/request': before['cotenant.io/request']?.replace('2147483648', '4294967296') },
    { 'cotenant.io/request': undefined },
    { [REQUIRED]: '[]' },
    { [`${REQUIRED}/pod`]: '[]' },
  ];
  for (const change of changes) {
    const annotations = JSON.parse(JSON.stringify({ ...before, ...change }));
    t.notDeepEqual(annotations, before);
    const changed: Slice = { ...running, metadata: { ...running.metadata, annotations } };
    for (const subresource of SUBRESOURCES) {
      const what = `${JSON.stringify(change)} by pods${subresource}`;
      const answer = await replace(bed, changed, subresource, user('alice'));
      // Some subresources accept no other changes than their own.
      if (answer.allowed) t.deepEqual(answer.stored.metadata.annotations, before, what);
      else refused(t, answer, 'grants', /may not be changed by "alice"/, what);
    }
    t.true((await replace(bed, changed, '', user(AGENT))).allowed, `${JSON.stringify(change)} by a writer`);
  }
  const noted = but(running, ({ metadata }) => Object.assign(metadata.annotations, { note: 'x' }));
  t.true((await replace(bed, noted, '', user('alice'))).allowed, 'other annotations are not ours');
}

async function checkDebugging(t: ExecutionContext, bed: Bed): Promise<void> {
  const running = bed.get<Slice>('pod', 'slice') as Slice;
  const closed = [{ name: 'NVIDIA_VISIBLE_DEVICES', value: 'void' }];
  const debug = (more: object) => {
    const added = container('debug', { imagePullPolicy: 'Never', terminationMessagePolicy: 'File', ...more });
    const changed = but(running, ({ spec }) => Object.assign(spec, { ephemeralContainers: [added] }));
    return replace(bed, changed, '/ephemeralcontainers');
  };
  const tracing = await debug({ env: closed, securityContext: { capabilities: { add: ['SYS_PTRACE'] } } });
  t.true(tracing.allowed, tracing.said);
  t.true((await debug({ env: [{ name: 'NVIDIA_VISIBLE_DEVICES', value: 'none' }] })).allowed);
  const list = '/run/nvidia-container-devices/0';
  const cases: readonly (readonly [object, RegExp])[] = [
    [{}, /gets no device/],
    [{ env: [{ name: 'NVIDIA_VISIBLE_DEVICES', value: 'all' }] }, /gets no device/],
    [{ env: [...closed, { name: 'NVIDIA_VISIBLE_DEVICES', value: '0' }] }, /gets no device/],
    [{ env: closed, volumeMounts: [{ name: 'cotenant', mountPath: '/all' }] }, /may not mount the volume/],
    [{ env: closed, volumeMounts: [{ name: 'data', mountPath: list }] }, /a list of devices/],
    [{ env: closed, securityContext: { privileged: true } }, /may not be privileged/],
    [{ env: closed, securityContext: { capabilities: { add: ['CAP_SYS_ADMIN'] } } }, /may not be privileged nor add/],
  ];
  for (const [more, wanted] of cases) refused(t, await debug(more), 'debug', wanted, JSON.stringify(more));
}
