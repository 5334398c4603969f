// The webhook of the chart on a real API server: called by the server and judged by what it stores; its certificates,
// its absence and its replacement under load; and that it cannot be uninstalled while pods need it. Its pods stay
// Pending, because the scheduler that it names does not exist here.
import type { ExecutionContext } from 'ava';
import { FOREIGN_DIALECT_NAMES } from '../../../src/api/request.ts';
import { testUnless } from '../../support/gate.ts';
import { BUILD_MS, lookForHelm, readyHelm } from '../../support/services/helm.ts';
import { type Bed, BUSYBOX_IMAGE, bedTools, startBed } from '../bed/bed.ts';
import { eventually } from '../bed/eventually.ts';
import { kubernetesMinor } from '../bed/kubernetes.ts';
import { NODE_NAME } from '../bed/node.ts';
import { addCotenantImage, installChart, NAMESPACE, OFF, uninstallChart } from '../bed/product.ts';
import { podsOf } from '../support/release.ts';
import { createWithoutPause } from '../support/stream.ts';
import { checkLiveRules } from './live-rules.ts';
import { checkLiving, checkQuotas } from './quotas.ts';
import { checkRotation } from './webhook-certificates.ts';

const tools = bedTools(console.log, false);
const helm = lookForHelm();
const reason = tools.ok ? (helm.kind === 'missing' ? helm.reason : undefined) : tools.reason;

type Container = {
  name: string;
  env?: { name: string; value?: string }[];
  resources?: { limits?: Record<string, string> };
  volumeMounts?: { name: string; mountPath: string; readOnly?: boolean }[];
};
type Pod = {
  metadata: { annotations?: Record<string, string> };
  spec: {
    schedulerName?: string;
    containers: Container[];
    ephemeralContainers?: Container[];
    volumes?: { name: string; csi?: { driver: string } }[];
  };
  status?: { phase?: string };
};

const podOf = (name: string, limits: Record<string, string | number>, more: object = {}, container: object = {}) => ({
  apiVersion: 'v1',
  kind: 'Pod',
  metadata: { name, ...more },
  spec: {
    terminationGracePeriodSeconds: 1,
    containers: [
      {
        name: 'main',
        image: BUSYBOX_IMAGE,
        imagePullPolicy: 'Never',
        command: ['sleep', '600'],
        resources: { limits },
        ...container,
      },
    ],
  },
});
const slice = (name: string, more: object = {}) => podOf(name, { 'cotenant.io/gpu-memory': '2Gi' }, more);

type Answer = { readonly pod: Pod | undefined; readonly said: string };

/** What the server would store after admission, and its response: a refusal, or warnings. */
function dryRun(bed: Bed, pod: object): Answer {
  const args = ['create', '--dry-run=server', '-o', 'json', '-f', '-'];
  const { code, out, err } = bed.kubectlWith(JSON.stringify(pod), ...args);
  return { pod: code === 0 ? (JSON.parse(out) as Pod) : undefined, said: err.trim() };
}

const visibleOf = ({ env = [] }: Container) =>
  env.filter(({ name }) => name === 'NVIDIA_VISIBLE_DEVICES').map(({ value }) => value);

testUnless(reason)('the webhook of the chart works with a real API server', async (t) => {
  t.timeout(BUILD_MS);
  if (!tools.ok || helm.kind === 'missing') throw new Error(reason);
  const path = await readyHelm(helm);
  const bed = await startBed(tools, (line) => t.log(line));
  t.teardown(() => bed.close());
  const started = performance.now();
  const step = (what: string) => t.log(`${what} after ${Math.round((performance.now() - started) / 1000)} s`);
  addCotenantImage(bed);
  installChart(bed, path, {
    agent: OFF,
    csi: OFF,
    scheduler: OFF,
    webhook: {
      enabled: true,
      replicas: 2,
      drainSeconds: 5,
      configuration: {
        schedulerName: 'cotenant-scheduler',
        rules: { dialects: FOREIGN_DIALECT_NAMES, templates: { small: { gpuMemory: '1Gi' } } },
      },
    },
  });
  step('installed');
  await checkPatches(t, bed);
  checkConditions(t, bed);
  await checkQuotas(t, bed);
  step('counted');
  await checkLiving(t, bed, NODE_NAME);
  await checkLiveRules(t, bed);
  step('rules changed');
  if (kubernetesMinor() >= 36) await checkInjectedLater(t, bed);
  else t.log('no container is injected after the webhook: MutatingAdmissionPolicy is of Kubernetes 1.36');
  bed.apply(slice('waiting'));
  await checkDebugging(t, bed);
  step('reviewed');
  await checkRotation(t, bed, slice('streamed'));
  step('certificates rotated');
  await checkReplacement(t, bed);
  step('all replicas replaced');
  await checkOutage(t, bed);
  step('gone and plain pods started');
  await checkUninstall(t, bed, path);
  step('uninstalled');
});

async function checkPatches(t: ExecutionContext, bed: Bed): Promise<void> {
  const own = dryRun(bed, slice('own'));
  t.truthy(own.pod, own.said);
  const [container] = own.pod?.spec.containers ?? [];
  t.is(own.pod?.spec.schedulerName, 'cotenant-scheduler');
  t.true(own.pod?.spec.volumes?.some(({ csi }) => csi?.driver === 'cotenant.io'));
  t.deepEqual(container?.resources?.limits, { 'cotenant.io/gpu': '1', 'cotenant.io/gpu-memory': '2Gi' });
  t.is(own.pod?.metadata.annotations?.['required-plugins.noderesource.dev'], '["cotenant"]');
  const mounts = Object.fromEntries((container?.volumeMounts ?? []).map((mount) => [mount.mountPath, mount]));
  t.true(mounts['/etc/ld.so.preload']?.readOnly);

  const odd = dryRun(bed, podOf('odd', { 'cotenant.io/gpu-memory': '4G' }));
  t.is(odd.pod, undefined);
  t.regex(
    odd.said,
    /resources\.limits\["cotenant\.io\/gpu-memory"\]: "4G" is not a whole number of MiB on the GPU; write "3814Mi"/,
  );
  // A pod without a GPU runs and is stored unchanged.
  bed.apply(podOf('plain', { memory: '64Mi' }));
  await eventually(() => bed.get<Pod>('pod', 'plain')?.status?.phase === 'Running' || undefined, 'the plain pod runs');
  t.is(bed.get<Pod>('pod', 'plain')?.spec.schedulerName, 'default-scheduler');
}

/** Each property alone by which a pod matches the webhook, recognized by an answer that only the webhook gives. */
function checkConditions(t: ExecutionContext, bed: Bed): void {
  const annotated = (annotations: object) => podOf('x', {}, { annotations });
  const patched: readonly (readonly [string, object])[] = [
    ["ACK's amount", podOf('x', { 'aliyun.com/gpu-mem': 2 })],
    [
      "ACK's amount and its label",
      podOf('x', { 'aliyun.com/gpu-mem': 4 }, { labels: { 'aliyun.com/gpu-count': '2' } }),
    ],
    ["MetaGPU's amount", podOf('x', { 'cnvrg.io/metagpu': 50 })],
    ['a template, in an annotation alone', annotated({ 'cotenant.io/template': 'small' })],
  ];
  for (const [what, pod] of patched) {
    const answer = dryRun(bed, pod);
    t.is(answer.pod?.spec.schedulerName, 'cotenant-scheduler', `${what}: ${answer.said}`);
    const left = Object.keys(answer.pod?.spec.containers[0]?.resources?.limits ?? {});
    t.true(left.length > 0 && left.every((name) => name.startsWith('cotenant.io/')), `${what}: ${left}`);
  }
  const ours = podOf('x', {});
  const refused: readonly (readonly [string, object, RegExp])[] = [
    [
      'a grant',
      annotated({ 'cotenant.io/grant': '[]' }),
      /"inject\.cotenant\.io" denied.*is written only by the scheduler/,
    ],
    ["a container's grant", annotated({ 'gpu-uuids.cotenant.io/main': 'x' }), /"inject\.cotenant\.io" denied/],
    [
      'our volume',
      { ...ours, spec: { ...ours.spec, volumes: [{ name: 'cotenant', csi: { driver: 'cotenant.io' } }] } },
      /"inject\.cotenant\.io" denied.*asks for no share/,
    ],
  ];
  for (const [what, pod, wanted] of refused) {
    const answer = dryRun(bed, pod);
    t.is(answer.pod, undefined, what);
    t.regex(answer.said, wanted, what);
  }
  const foreign = dryRun(bed, podOf('x', {}, {}, { env: [{ name: 'NVIDIA_VISIBLE_DEVICES', value: 'all' }] }));
  t.deepEqual(visibleOf(foreign.pod?.spec.containers[0] as Container), ['all'], 'it is left as it is');
  t.regex(foreign.said, /Warning: main: NVIDIA_VISIBLE_DEVICES without a share/);
}

/**
 * A policy adds a container to pods with our volume, which happens after the webhook; the webhook is called again and
 * hides the GPUs from that container. The policy marks every pod, because only plugins of the first round take part in
 * the second.
 */
async function checkInjectedLater(t: ExecutionContext, bed: Bed): Promise<void> {
  const isPatched = "has(object.spec.volumes) && object.spec.volumes.exists(v, v.name == 'cotenant')";
  const late = `Object{spec: Object.spec{containers: [Object.spec.containers{name: 'late', image: '${BUSYBOX_IMAGE}'}]}}`;
  const mark = "Object{metadata: Object.metadata{annotations: {'late': 'seen'}}}";
  const policy = {
    apiVersion: 'admissionregistration.k8s.io/v1',
    kind: 'MutatingAdmissionPolicy',
    metadata: { name: 'late' },
    spec: {
      failurePolicy: 'Fail',
      reinvocationPolicy: 'IfNeeded',
      matchConstraints: {
        resourceRules: [{ apiGroups: [''], apiVersions: ['v1'], operations: ['CREATE'], resources: ['pods'] }],
      },
      mutations: [
        { patchType: 'ApplyConfiguration', applyConfiguration: { expression: `${isPatched} ? ${late} : ${mark}` } },
      ],
    },
  };
  const binding = { ...policy, kind: 'MutatingAdmissionPolicyBinding', spec: { policyName: 'late' } };
  bed.apply(policy, binding);
  const injected = await eventually(
    () => dryRun(bed, slice('x')).pod?.spec.containers.find(({ name }) => name === 'late'),
    'a container is injected',
  );
  t.deepEqual(visibleOf(injected), ['void']);
  for (const kind of ['binding', '']) {
    t.is(bed.kubectl('delete', `mutatingadmissionpolicy${kind}`, 'late').code, 0);
  }
  await eventually(() => dryRun(bed, slice('x')).pod?.spec.containers.length === 1 || undefined, 'the policy is gone');
}

async function checkDebugging(t: ExecutionContext, bed: Bed): Promise<void> {
  const image = [`--image=${BUSYBOX_IMAGE}`, '--image-pull-policy=Never'];
  const tried = bed.kubectl('debug', 'waiting', ...image, '--env=NVIDIA_VISIBLE_DEVICES=all', '--', 'sh');
  t.not(tried.code, 0);
  t.regex(tried.err, /sets NVIDIA_VISIBLE_DEVICES in a pod with a share of a GPU/);
  const { code, err } = bed.kubectl('debug', 'waiting', ...image, '--', 'sh');
  t.is(code, 0, err);
  const [debug] = bed.get<Pod>('pod', 'waiting')?.spec.ephemeralContainers ?? [];
  t.deepEqual(visibleOf(debug as Container), ['void']);
}

/** Every replica is replaced while pods are created all the time. */
async function checkReplacement(t: ExecutionContext, bed: Bed): Promise<void> {
  const names = async () => (await podsOf(bed, 'webhook')).map(({ metadata }) => metadata.name);
  const path = `/api/v1/namespaces/${NAMESPACE}/pods`;
  const before = await names();
  const stream = createWithoutPause(bed, slice('streamed'));
  t.teardown(() => stream.end().then(() => undefined));
  t.is(bed.kubectl('-n', NAMESPACE, 'rollout', 'restart', 'deployment/cotenant-webhook').code, 0);
  const rolled = bed.kubectl('-n', NAMESPACE, 'rollout', 'status', 'deployment/cotenant-webhook', '--timeout=240s');
  t.is(rolled.code, 0, rolled.err);
  const gone = async () => {
    const left = await Promise.all(before.map((name) => bed.api.get<object>(`${path}/${name}`)));
    return left.every((pod) => pod === undefined) || undefined;
  };
  // Each waits until the API server has closed its idle connections, up to 90 s after their last use.
  await eventually(gone, 'the old replicas are gone');
  t.deepEqual(await stream.end(), []);
  t.log(`${stream.count()} pods were created while the replicas were replaced`);
  const after = await names();
  t.is(after.length, 2);
  t.deepEqual(
    before.filter((name) => after.includes(name)),
    [],
  );
}

/** Webhook down: a GPU pod is refused with the webhook's name in the reason, a plain pod is not. */
async function checkOutage(t: ExecutionContext, bed: Bed): Promise<void> {
  t.is(bed.kubectl('-n', NAMESPACE, 'scale', 'deployment', '--all', '--replicas=0').code, 0);
  const down = await eventually(() => {
    const answer = dryRun(bed, slice('late'));
    return answer.pod ? undefined : answer.said;
  }, 'GPU pods are refused while the webhook is down');
  t.regex(down, /failed calling webhook "[a-z.]*cotenant\.io"/);
  bed.apply(podOf('plain-too', { memory: '64Mi' }));
  await eventually(() => bed.get<Pod>('pod', 'plain-too')?.status?.phase === 'Running' || undefined, 'it runs, too');
}

async function checkUninstall(t: ExecutionContext, bed: Bed, path: string): Promise<void> {
  const all = bed.kubectl('api-resources', '--verbs=list', '-o', 'name').out.trim().split('\n');
  const kinds = all.filter((kind) => !/^(events|componentstatuses)/.test(kind)).join();
  const ours = () => {
    const args = ['get', kinds, '-A', '-l', 'app.kubernetes.io/instance=cotenant', '-o', 'name'];
    const labeled = bed
      .kubectl(...args)
      .out.trim()
      .split('\n');
    const inside = bed.kubectl('-n', NAMESPACE, 'get', 'secrets,configmaps,jobs,pods,leases', '-o', 'name').out;
    const others = inside.split('\n').filter((name) => name !== '' && name !== 'configmap/kube-root-ca.crt');
    return [...new Set([...labeled, ...others])].filter(Boolean);
  };
  const installed = ours();
  t.true(installed.length > 20, installed.join());

  const refused = uninstallChart(bed, path);
  t.not(refused.code, 0);
  const list = [
    'cotenant: not uninstalled, for 1 pod has a volume of Cotenant and cannot end without its agent. Delete these first:',
    '  default/waiting (not bound yet)',
    '',
  ];
  // Helm 4 prints the log of a failed hook as one line.
  t.true(refused.err.includes(list.join('\\n').slice(0, -2)), refused.err);
  const job = ['-n', NAMESPACE, 'get', 'pods', '-l', 'job-name=cotenant-uninstall-check', '-o'];
  const message = '{.items[*].status.containerStatuses[*].state.terminated.message}';
  t.is(bed.kubectl(...job, `jsonpath=${message}`).out, list.join('\n'));
  const extra = ours().filter((name) => !installed.includes(name));
  t.true(
    extra.every((name) => /^(job.batch|pod)\/cotenant-uninstall-check/.test(name)),
    `nothing but the Job is left of the attempt: ${extra}`,
  );
  // Pods of replaced replicas terminate in their own time; their owners stay.
  const left = ours();
  t.deepEqual(
    installed.filter((name) => !name.startsWith('pod/') && !left.includes(name)),
    [],
    'nothing was uninstalled',
  );

  t.is(bed.kubectl('delete', 'pod', 'waiting', '--wait=true', '--timeout=240s').code, 0);
  const done = uninstallChart(bed, path);
  t.is(done.code, 0, done.err);
  await eventually(() => ours().length === 0 || undefined, 'nothing of ours is left').catch(() => {
    t.fail(`left: ${ours()}`);
  });
}
