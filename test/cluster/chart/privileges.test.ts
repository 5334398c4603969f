// What the components of an installed chart are allowed to do, from the kernel's data on their processes and the API
// server's audit of their requests.
import type { ExecutionContext } from 'ava';
import { formatPodGrant } from '../../../src/api/grant-annotation.ts';
import {
  COMPONENT_LABEL,
  GRANT_ANNOTATION,
  MEMORY_RESIZED,
  STATUS_AUDIENCE,
  STATUS_TOKEN_HEADER,
} from '../../../src/api/names.ts';
import { testUnless } from '../../support/gate.ts';
import { datagramPortsOf, type Listener, listenersOf } from '../../support/machine/sockets.ts';
import { seriesOf } from '../../support/product/agent.ts';
import { BUILD_MS } from '../../support/services/helm.ts';
import type { Bed } from '../bed/bed.ts';
import { eventually } from '../bed/eventually.ts';
import { NAMESPACE } from '../bed/product.ts';
import { startWhole, WHOLE_VALUES, wholeTools } from '../bed/whole.ts';
import { firstProcessOf, processesOf, rightsOf, signalContainer } from '../support/containers.ts';
import { lookAtPermissions } from '../support/permissions.ts';
import {
  bind,
  clientOf,
  containerOf,
  eventsOf,
  MIB,
  type Pod,
  podOf,
  rogueOf,
  shellOf,
  untilPod,
  untilRunning,
} from '../support/pods.ts';
import { agentPage, type Component, podOfRelease } from '../support/release.ts';

const tools = wholeTools(console.log);

/** Most rounds until the agent has asked for a pod. */
const ROUNDS = 5;

/** A volume that never exists: its pod never starts. */
const ABSENT = { volumes: [{ name: 'absent', configMap: { name: 'absent' } }] };
const ABSENT_MOUNT = { volumeMounts: [{ name: 'absent', mountPath: '/absent' }] };
const UNPRIVILEGED_UID = 65532;
/** In the host's PID namespace, so with a user ID of its own. */
const EXPORTER = 59_837;
/** Containers that need no privileges, and their users. */
const POWERLESS: readonly (readonly [Component, string, number])[] = [
  ['agent', 'exporter', EXPORTER],
  ['webhook', 'webhook', UNPRIVILEGED_UID],
  ['scheduler', 'extender', UNPRIVILEGED_UID],
  ['scheduler', 'kube-scheduler', UNPRIVILEGED_UID],
];

/** All ports that are reachable in the cluster's network, and those on loopback only. */
const LISTENERS: readonly (readonly [Component, string, readonly Listener[]])[] = [
  ['agent', 'node', []],
  ['agent', 'exporter', [{ port: 9837, isLoopback: false }]],
  [
    'webhook',
    'webhook',
    [
      { port: 8080, isLoopback: false },
      { port: 8443, isLoopback: false },
    ],
  ],
  // The bind port is used by the scheduler in the same pod only.
  [
    'scheduler',
    'extender',
    [
      { port: 9840, isLoopback: true },
      { port: 9841, isLoopback: false },
    ],
  ],
  ['scheduler', 'kube-scheduler', [{ port: 10259, isLoopback: false }]],
];

const ADMIN = '/var/lib/cotenant/agent.sock';
const SNAPSHOTS = '/run/cotenant/snapshots.sock';

/** Results of what a compromised exporter could try, run in its own container: error codes, or that it succeeded. */
async function reachOfExporter(bed: Bed, agent: Pod, node: number): Promise<unknown> {
  const tries = `
    const { connect } = require('node:net');
    const fs = require('node:fs');
    const tried = (what) => { try { what(); return 'done'; } catch ({ code }) { return code; } };
    const reach = (path) => new Promise((resolve) => {
      connect(path).on('connect', () => resolve('connected')).on('error', ({ code }) => resolve(code));
    });
    (async () => console.log(JSON.stringify({
      signal: tried(() => process.kill(${node}, 0)),
      snapshots: await reach('${SNAPSHOTS}'),
      replaced: tried(() => fs.writeFileSync('${SNAPSHOTS}.new', '')),
      adminThere: await reach('${ADMIN}'),
      adminThrough: await reach('/proc/${node}/root${ADMIN}'),
      token: tried(() => fs.readdirSync('/var/run/secrets/kubernetes.io')),
    })))().finally(() => process.exit());`;
  const args = ['-n', NAMESPACE, 'exec', agent.metadata.name, '-c', 'exporter', '--', 'node', '-e', tries];
  const { code, out, err } = bed.kubectl(...args);
  if (code !== 0) throw new Error(`the exporter's container ran nothing: ${err}`);
  return JSON.parse(out);
}

/** Everything that the exporter serves to a client that reaches the pod. */
async function lookAtPage(t: ExecutionContext, bed: Bed, agent: Pod): Promise<void> {
  const page = await eventually(async () => {
    const text = (await agentPage(bed)) ?? '';
    return seriesOf(text, 'cotenant_up') === 1 ? text : undefined;
  }, 'the page');
  t.true((seriesOf(page, 'cotenant_device_memory_total_bytes') ?? 0) > 0);
  const ip = agent.status?.podIP ?? '';
  const get = (path: string, ...args: readonly string[]) =>
    bed.namespaces.run(['curl', '-s', '-D', '-', ...args, `http://${ip.includes(':') ? `[${ip}]` : ip}:9837${path}`])
      .out;
  const accept = ['-H', 'Accept: application/openmetrics-text;version=1.0.0'];
  const open = get('/metrics', ...accept, '--compressed');
  t.regex(open, /^content-encoding: gzip\r$/im);
  t.regex(open, /^content-type: application\/openmetrics-text; version=1\.0\.0/im);
  t.regex(open, /^cotenant_up 1$/m);
  t.regex(open, /# EOF\n$/);
  t.regex(get('/'), /<title>Cotenant<\/title>/);
  // The processes of all tenants are shown to readers that the API server knows.
  const reader = ['-n', NAMESPACE, 'create', 'token', 'cotenant-status-reader'];
  const own = (...audience: readonly string[]) => [
    '-H',
    `${STATUS_TOKEN_HEADER}: ${bed.kubectl(...reader, ...audience).out.trim()}`,
  ];
  const token = own(`--audience=${STATUS_AUDIENCE}`);
  t.regex(get('/status.json', ...token), /"devices":\[\{/);
  t.regex(get('/history.json', ...token), /"gpus":\{"GPU-/);
  for (const args of [[], own()]) t.regex(get('/status.json', ...args), /^HTTP\/1\.1 401 /);
  t.regex(get('/readyz'), /^HTTP\/1\.1 200 /);
  t.regex(get('/v1/status'), /^HTTP\/1\.1 404 /);
}

/**
 * Starts a pod that the agent has not seen, so that it asks the API server for it: the agent is stopped while its watch
 * breaks, and goes on when the pod has reached the kubelet. Its new watch may still be quicker than the kubelet's call,
 * so callers repeat this.
 */
async function startUnseenPod(bed: Bed, agent: Pod, name: string, share: Record<string, string>): Promise<void> {
  signalContainer(bed, agent, 'node', 'SIGSTOP');
  await bed.restart('apiserver');
  bed.apply(podOf(name, [clientOf(share)]));
  await untilPod(bed, name, 'has reached the kubelet', ({ status }) => status?.startTime !== undefined);
  signalContainer(bed, agent, 'node', 'SIGCONT');
  await untilRunning(bed, name);
}

testUnless(tools.ok ? undefined : tools.reason)('each component has only the permissions that it uses', async (t) => {
  t.timeout(BUILD_MS);
  if (!tools.ok) throw new Error(tools.reason);
  const { configuration } = WHOLE_VALUES.webhook;
  const { bed, uuids } = await startWhole(tools, ['l4'], (line) => t.log(line), {
    ...WHOLE_VALUES,
    webhook: { ...WHOLE_VALUES.webhook, configuration: { ...configuration, annotationWriters: ['admin'] } },
    scheduler: { ...WHOLE_VALUES.scheduler, overcommittedAfterSeconds: 1 },
  });
  t.teardown(() => bed.close());

  for (const [component, container, user] of POWERLESS) {
    const pod = await podOfRelease(bed, component);
    const pids = processesOf(bed, pod, container);
    t.true(pids.length > 0, container);
    const users = [user, user, user, user];
    for (const pid of pids) {
      t.deepEqual(
        rightsOf(pid),
        { users, groups: users, capabilities: 0n, noNewPrivileges: true, seccomp: 'filter', readOnlyRoot: true },
        container,
      );
    }
  }

  // Every container of the release is in one of the lists.
  const pods = (await bed.api.get<{ items: Pod[] }>(`/api/v1/namespaces/${NAMESPACE}/pods`))?.items ?? [];
  t.deepEqual(
    pods
      .flatMap(({ metadata, spec }) =>
        [...(spec.containers ?? []), ...(spec.initContainers ?? [])].map(
          ({ name }) => `${metadata.labels?.[COMPONENT_LABEL]} ${name}`,
        ),
      )
      .toSorted(),
    ['agent node', ...POWERLESS.map(([component, container]) => `${component} ${container}`)].toSorted(),
  );

  // The half that acts is root with all capabilities, so nothing may reach it.
  const agent = await podOfRelease(bed, 'agent');
  const node = processesOf(bed, agent, 'node');
  t.true(node.length > 1, 'with its sampler');
  const all = [0, 0, 0, 0];
  t.deepEqual(rightsOf(firstProcessOf(bed, agent, 'node')), {
    users: all,
    groups: all,
    capabilities: rightsOf(process.pid).capabilities, // as the machine's root, which this is
    noNewPrivileges: false,
    seccomp: 'off',
    readOnlyRoot: true,
  });
  for (const [component, container, listeners] of LISTENERS) {
    const pids = processesOf(bed, await podOfRelease(bed, component), container);
    t.deepEqual(
      listenersOf(pids).toSorted((a, b) => a.port - b.port),
      listeners,
      container,
    );
    t.deepEqual(datagramPortsOf(pids), [], container);
  }
  t.deepEqual(await reachOfExporter(bed, agent, firstProcessOf(bed, agent, 'node')), {
    signal: 'EPERM',
    snapshots: 'connected',
    replaced: 'EROFS',
    adminThere: 'ENOENT',
    adminThrough: 'EACCES',
    token: 'ENOENT',
  });
  await lookAtPage(t, bed, agent);
  // A bit of everything: a pod is placed, exceeds its grant, and is stopped.
  const share = { 'cotenant.io/gpu-memory': '1Gi' };
  bed.apply(podOf('rogue', [rogueOf(share, ['init', 'context 0', `alloc ${2048 * MIB}`])]));
  await untilPod(bed, 'rogue', 'was stopped', (pod) => (containerOf(pod)?.restartCount ?? 0) > 0);
  const stopped = await eventually(
    async () => (await eventsOf(bed, 'rogue')).find(({ message }) => message.includes('the agent stops it')),
    'an Event tells of it',
  );
  t.is(stopped.type, 'Warning');
  t.is(bed.kubectl('delete', 'pod', 'rogue').code, 0);

  // An administrator gives a running pod more memory.
  bed.apply(podOf('grows', [clientOf(share)]));
  await untilRunning(bed, 'grows');
  t.is(bed.kubectl('annotate', 'pod', 'grows', 'cotenant.io/memory={"main":"2Gi"}').code, 0);
  await untilPod(bed, 'grows', 'has more memory', ({ status }) =>
    (status?.conditions ?? []).some(({ type, status: is }) => type === MEMORY_RESIZED && is === 'True'),
  );
  t.is(bed.kubectl('delete', 'pod', 'grows').code, 0);

  // Two leaders allocated one GPU; the owner of the later pod replaces it. Bindings in an excluded namespace are not
  // checked.
  const labels = { app: 'twice' };
  const spec = { ...ABSENT, schedulerName: 'none', containers: [shellOf('', ABSENT_MOUNT)] };
  bed.apply({
    apiVersion: 'apps/v1',
    kind: 'ReplicaSet',
    metadata: { name: 'twice', namespace: 'kube-system' },
    spec: { replicas: 1, selector: { matchLabels: labels }, template: { metadata: { labels }, spec } },
  });
  const list = '/api/v1/namespaces/kube-system/pods?labelSelector=app%3Dtwice';
  const made = (what: string, good: (pod: Pod) => boolean) =>
    eventually(async () => (await bed.api.get<{ items: Pod[] }>(list))?.items.find(good), what);
  const twice = await made('the ReplicaSet made a pod', () => true);
  const gpus = [{ gpuUuid: uuids[0] ?? '', memoryBytes: 2 ** 40, limitBytes: 2 ** 40, coresPercent: 0 }];
  const containers = [{ name: 'main', kind: 'app' as const, memoryIsolation: 'on' as const, gpus }];
  const grant = { [GRANT_ANNOTATION]: formatPodGrant({ epoch: 0, containers }) };
  t.is((await bind(bed, twice.metadata.name, 'kube-system', grant)).status, 201);
  await made('another one was made', ({ metadata }) => metadata.uid !== twice.metadata.uid);
  t.is(bed.kubectl('-n', 'kube-system', 'delete', 'replicaset', 'twice').code, 0);
  // The evicted pod holds the GPU until it is gone, and it terminates with the agent's help.
  const gone = async () => (await bed.api.get<{ items: Pod[] }>(list))?.items.length === 0 || undefined;
  await eventually(gone, 'the pods of the ReplicaSet are gone');

  const { held, denied } = await lookAtPermissions(bed, NAMESPACE);
  t.true(held > 0);
  // Checked before a restarted API server refuses requests because it has not read all roles yet.
  t.deepEqual(denied, []);

  // Agents ask about the rights of this account; it makes no request itself.
  const lookAtUnused = async () =>
    (await lookAtPermissions(bed, NAMESPACE)).unused.filter((one) => !one.includes('cotenant-status-reader'));
  let unused = await lookAtUnused();
  for (let round = 1; unused.length > 0 && round <= ROUNDS; round += 1) {
    await startUnseenPod(bed, agent, `unseen-${round}`, share);
    unused = await lookAtUnused();
  }
  t.deepEqual(unused, []);
});
