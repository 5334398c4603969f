// `cotenant inspect` and `why` as people call them, against a real API server: with all rights, with those of one namespace,
// and as a plugin of kubectl. What the scheduler, the webhook and the agent would write is written here.
import { mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import type { ExecutionContext } from 'ava';
import { createPage, FAMILIES } from '../../src/agent/metrics/page.ts';
import type { Explanation } from '../../src/cli/cluster/explain.ts';
import type { Inventory } from '../../src/cli/cluster/inventory.ts';
import type { Pod } from '../../src/cli/cluster/objects.ts';
import { eventOf } from '../../src/kube/events.ts';
import { formatNodeCards } from '../../src/placement/node-cards.ts';
import { formatPodGrant } from '../../src/placement/pod-grant.ts';
import {
  CARDS_ANNOTATION,
  COMPONENT_LABEL,
  GRANT_ANNOTATION,
  NAMESPACE_ANNOTATION,
  REQUEST_ANNOTATION,
} from '../../src/request/names.ts';
import { MIB } from '../../src/request/quantity.ts';
import { formatRecord } from '../../src/request/record.ts';
import { testUnless } from '../support/gate.ts';
import { eventually } from '../support/node.ts';
import { exampleContainer, exampleView } from '../support/views.ts';
import { type Bed, BUSYBOX_IMAGE, bedGround, startBed } from './bed/bed.ts';
import type { Ran } from './bed/namespaces.ts';
import { NODE_NAME } from './bed/node.ts';

const ground = bedGround(console.log, false);
const MAIN = join(import.meta.dirname, '../../src/cli/main.ts');
const CARDS = ['GPU-51a0c07e-4a27-4551-8d21-6e1004000000', 'GPU-51a0c07e-4a27-4551-8d21-6e1005000001'] as const;
const AGENT = 'cotenant-agent-x7k2p';
const STOP = `team/cheat/main holds GPU memory that its limit does not see: 3000 MiB of 1024 MiB on ${CARDS[0]}, 2900 MiB of it past the interposer; it is stopped`;

const request = (mib: number, cards: number): string =>
  formatRecord({
    priority: 'normal',
    gpuModels: [],
    gpuUuids: [],
    containers: [
      {
        name: 'main',
        kind: 'app',
        dialect: 'cotenant',
        asked: { 'cotenant.io/gpu-memory': String(mib * cards * MIB) },
        memoryIsolation: 'on',
        cards: Array.from({ length: cards }, () => ({ memory: { kind: 'bytes', bytes: mib * MIB }, coresPercent: 25 })),
      },
    ],
  });

type Wanted = {
  readonly mib: number;
  readonly cards: readonly string[];
  readonly script?: string;
  readonly volume?: true;
};

/** As the webhook leaves it. */
const podOf = (name: string, { mib, cards, script = 'exec sleep 600', volume }: Wanted): object => ({
  apiVersion: 'v1',
  kind: 'Pod',
  metadata: { name, namespace: 'team', annotations: { [REQUEST_ANNOTATION]: request(mib, cards.length) } },
  spec: {
    schedulerName: 'cotenant-scheduler',
    terminationGracePeriodSeconds: 1,
    containers: [
      {
        name: 'main',
        image: BUSYBOX_IMAGE,
        imagePullPolicy: 'Never',
        command: ['/bin/sh', '-c', script],
        ...(volume ? { volumeMounts: [{ name: 'cotenant', mountPath: '/run/cotenant' }] } : {}),
      },
    ],
    ...(volume ? { volumes: [{ name: 'cotenant', csi: { driver: 'cotenant.io' } }] } : {}),
  },
});

/** As the extender binds it. */
function bind(bed: Bed, name: string, { mib, cards }: Wanted): void {
  const grant = formatPodGrant({
    epoch: 1,
    containers: [
      {
        name: 'main',
        kind: 'app',
        memoryIsolation: 'on',
        cards: cards.map((gpuUuid) => ({ gpuUuid, memoryBytes: mib * MIB, limitBytes: mib * MIB, coresPercent: 25 })),
      },
    ],
  });
  const body = {
    apiVersion: 'v1',
    kind: 'Binding',
    metadata: { name, annotations: { [GRANT_ANNOTATION]: grant } },
    target: { apiVersion: 'v1', kind: 'Node', name: NODE_NAME },
  };
  const { code, err } = bed.kubectlWith(
    JSON.stringify(body),
    ...['create', '--raw', `/api/v1/namespaces/team/pods/${name}/binding`, '-f', '-'],
  );
  if (code !== 0) throw new Error(err);
}

/** What the agent of two cards says while one container uses the first of them. */
async function agentPage(): Promise<string> {
  const { text } = await createPage(FAMILIES)({
    ...exampleView,
    devices: exampleView.devices.map((device, index) => ({
      ...device,
      card: { ...device.card, uuid: CARDS[index] ?? '', usedBytes: index === 0 ? 5312 * MIB : 0 },
    })),
    containers: [{ ...exampleContainer, namespace: 'team', pod: 'train', gpuUuid: CARDS[0], usedBytes: 3320 * MIB }],
    foreign: [],
  });
  return text;
}

/** Stands where an agent's pod does, and serves a page as one does; the agent itself is another test's. */
const agentPod = (volumes: readonly object[], command: readonly string[], namespace = 'cotenant-system'): object => ({
  apiVersion: 'v1',
  kind: 'Pod',
  metadata: { name: AGENT, namespace, labels: { [COMPONENT_LABEL]: 'agent' } },
  spec: {
    nodeName: NODE_NAME,
    terminationGracePeriodSeconds: 1,
    containers: [
      {
        name: 'exporter',
        image: BUSYBOX_IMAGE,
        imagePullPolicy: 'Never',
        command,
        ports: [{ name: 'metrics', containerPort: 9837 }],
        volumeMounts: volumes.map(() => ({ name: 'page', mountPath: '/page' })),
        readinessProbe: { httpGet: { path: '/metrics', port: 9837 }, periodSeconds: 1 },
      },
    ],
    volumes,
  },
});

/** As the chart has it; no driver of the name is on the node. */
const CSI_DRIVER = {
  apiVersion: 'storage.k8s.io/v1',
  kind: 'CSIDriver',
  metadata: { name: 'cotenant.io', annotations: { [NAMESPACE_ANNOTATION]: 'cotenant-system' } },
  spec: { attachRequired: false, podInfoOnMount: true, volumeLifecycleModes: ['Ephemeral'] },
};

const POLICY = [
  {
    apiVersion: 'admissionregistration.k8s.io/v1',
    kind: 'ValidatingAdmissionPolicy',
    metadata: { name: 'cotenant-pods' },
    spec: {
      failurePolicy: 'Fail',
      matchConstraints: {
        resourceRules: [{ apiGroups: [''], apiVersions: ['v1'], operations: ['CREATE'], resources: ['pods'] }],
      },
      validations: [
        {
          expression: "!has(object.metadata.labels) || !('refused' in object.metadata.labels)",
          message: 'a pod that asks for a share must pass the webhook of Cotenant',
        },
      ],
    },
  },
  {
    apiVersion: 'admissionregistration.k8s.io/v1',
    kind: 'ValidatingAdmissionPolicyBinding',
    metadata: { name: 'cotenant-pods' },
    spec: { policyName: 'cotenant-pods', validationActions: ['Deny'] },
  },
];

const REFUSED = {
  apiVersion: 'apps/v1',
  kind: 'Deployment',
  metadata: { name: 'refused', namespace: 'team' },
  spec: {
    selector: { matchLabels: { app: 'refused' } },
    template: {
      metadata: { labels: { app: 'refused', refused: 'yes' } },
      spec: { containers: [{ name: 'main', image: BUSYBOX_IMAGE, imagePullPolicy: 'Never' }] },
    },
  },
};

/** May see the pods of its namespace, and nothing else. */
const READER = [
  { apiVersion: 'v1', kind: 'ServiceAccount', metadata: { name: 'reader', namespace: 'team' } },
  {
    apiVersion: 'rbac.authorization.k8s.io/v1',
    kind: 'Role',
    metadata: { name: 'reader', namespace: 'team' },
    rules: [{ apiGroups: [''], resources: ['pods'], verbs: ['get', 'list'] }],
  },
  {
    apiVersion: 'rbac.authorization.k8s.io/v1',
    kind: 'RoleBinding',
    metadata: { name: 'reader', namespace: 'team' },
    roleRef: { apiGroup: 'rbac.authorization.k8s.io', kind: 'Role', name: 'reader' },
    subjects: [{ kind: 'ServiceAccount', name: 'reader', namespace: 'team' }],
  },
];

/** A kubeconfig of the bed's with another token. */
function readerKubeconfig(bed: Bed): string {
  const { out, code, err } = bed.kubectl('-n', 'team', 'create', 'token', 'reader');
  if (code !== 0) throw new Error(err);
  const config = JSON.parse(readFileSync(join(bed.folder, 'kubeconfig'), 'utf8')) as {
    users: { user: { token: string } }[];
    contexts: { context: { namespace?: string } }[];
  };
  for (const { user } of config.users) user.token = out.trim();
  for (const { context } of config.contexts) context.namespace = 'team';
  const file = join(bed.folder, 'reader.json');
  writeFileSync(file, JSON.stringify(config));
  return file;
}

async function setUp(bed: Bed): Promise<void> {
  for (const name of ['team', 'cotenant-system']) {
    bed.apply({ apiVersion: 'v1', kind: 'Namespace', metadata: { name } });
  }
  const models = ['NVIDIA L4', 'NVIDIA A10'];
  const cards = formatNodeCards({
    mostTenantsPerCard: 50,
    cards: CARDS.map((gpuUuid, index) => ({
      gpuUuid,
      index,
      model: models[index] ?? '',
      usableBytes: 22_600 * MIB,
      healthy: true,
    })),
  });
  bed.kubectl('annotate', 'node', NODE_NAME, `${CARDS_ANNOTATION}=${cards}`);
  await eventually(() => bed.get('serviceaccount', 'default', 'team'), 'the namespace is ready');
  await eventually(() => bed.get('serviceaccount', 'default', 'cotenant-system'), 'the namespace is ready');
  const wanted: Readonly<Record<string, Wanted>> = {
    train: { mib: 4096, cards: [CARDS[0]] },
    two: { mib: 6144, cards: CARDS },
    // No CSI driver is there.
    mounts: { mib: 512, cards: [CARDS[1]], volume: true },
    cheat: { mib: 1024, cards: [CARDS[0]], script: `printf '%s' '${STOP}' > /dev/termination-log; exit 137` },
  };
  bed.apply(
    ...Object.entries(wanted).map(([name, what]) => podOf(name, what)),
    podOf('large', { mib: 30_720, cards: [CARDS[0]] }),
    {
      apiVersion: 'v1',
      kind: 'ConfigMap',
      metadata: { name: 'page', namespace: 'cotenant-system' },
      data: { metrics: await agentPage() },
    },
    CSI_DRIVER,
    agentPod([{ name: 'page', configMap: { name: 'page' } }], ['httpd', '-f', '-p', '9837', '-h', '/page']),
    // Of a tenant that looks like one, and says that its page is not an agent's; labels are anybody's to write.
    agentPod([], ['sh', '-c', 'mkdir /tmp/p && echo no > /tmp/p/metrics && httpd -f -p 9837 -h /tmp/p'], 'team'),
    ...POLICY,
    ...READER,
  );
  for (const [name, what] of Object.entries(wanted)) bind(bed, name, what);
  // The policy takes effect a moment after it is there.
  await eventually(() => {
    const { code } = bed.kubectl('-n', 'team', 'run', 'x', '--image=x', '--labels=refused=yes', '--dry-run=server');
    return code === 0 ? undefined : true;
  }, 'the policy refuses');
  bed.apply(REFUSED);
  const stopped = await eventually(() => {
    const [status] = bed.get<Pod>('pod', 'cheat', 'team')?.status?.containerStatuses ?? [];
    return status?.lastState?.terminated ?? status?.state?.terminated;
  }, 'the cheat has ended');
  const event = eventOf({
    namespace: 'team',
    pod: 'cheat',
    podUid: bed.get<Pod>('pod', 'cheat', 'team')?.metadata.uid ?? '',
    container: 'main',
    reason: 'GPUMemoryQuotaExceeded',
    type: 'Warning',
    message: STOP,
    atMs: Date.parse(stopped.finishedAt ?? ''),
    by: { component: 'agent', instance: NODE_NAME },
  });
  bed.kubectlWith(JSON.stringify({ apiVersion: 'v1', kind: 'Event', ...event }), 'create', '-f', '-');
  const words = ['wait', 'pod', '--for=condition=Ready', '--timeout=60s'];
  must(bed.kubectl('-n', 'team', ...words, 'train', 'two', AGENT));
  must(bed.kubectl('-n', 'cotenant-system', ...words, '--all'));
}

const must = ({ code, err }: Ran): void => {
  if (code !== 0) throw new Error(err);
};

type Cotenant = (...args: readonly string[]) => Ran;

const inventoryFrom = ({ out, code, err }: Ran): Inventory => {
  if (code !== 0) throw new Error(err);
  return JSON.parse(out) as Inventory;
};

function inspectsAll(t: ExecutionContext, cotenant: Cotenant): void {
  const { out, code, err } = cotenant('inspect');
  t.is(code, 0, err);
  const lines = out.trimEnd().split('\n');
  const row = (text: string) => lines.filter((line) => line.includes(text)).map((line) => line.trim().split(/ {2,}/));
  t.deepEqual(row(CARDS[0]), [
    [NODE_NAME, '0', CARDS[0], 'NVIDIA L4', String(4096 + 6144 + 1024), '22600', '5312', '75%', '3/50'],
  ]);
  t.deepEqual(row(CARDS[1]), [['1', CARDS[1], 'NVIDIA A10', String(6144 + 512), '22600', '0', '50%', '2/50']]);
  t.deepEqual(row('team/train/main'), [['team/train/main', 'running', '4096', '3320', '25%', 'interposer']]);
  t.deepEqual(row('team/mounts/main'), [['team/mounts/main', 'starting', '512', '-', '25%']]);
  t.regex(out, /^team\/large waits for \d+ s: main asks for 30720 MiB and 25 % of the compute of one card\.$/m);
  t.is(
    lines.at(-1),
    'Granted/usable GPU memory: 17920/45200 MiB (39%), 2 cards on 1 node, 4 containers with a share, 1 pod pending.',
  );
  const one = inventoryFrom(cotenant('inspect', '-o', 'json', '--node', NODE_NAME, '-n', 'default'));
  t.is(one.totals.grantedBytes, 17_920 * MIB, 'sums are of all');
  t.deepEqual(
    one.nodes.flatMap(({ cards }) => cards.flatMap(({ containers }) => containers)),
    [],
  );
  t.deepEqual(one.notes, []);
  const missing = cotenant('inspect', '--node', 'nowhere');
  t.is(missing.code, 2);
  t.is(missing.err, 'cotenant: --node nowhere: there is no node of that name\n');
}

async function explains(t: ExecutionContext, bed: Bed, cotenant: Cotenant): Promise<void> {
  const why = (...args: readonly string[]): Explanation =>
    JSON.parse(cotenant('why', '-o', 'json', ...args).out) as Explanation;
  const texts = (explanation: Explanation) => explanation.causes.map(({ text }) => text);
  t.like(why('team/train'), {
    state: 'running',
    headline: `team/train runs on node ${NODE_NAME}.`,
    notes: [],
    causes: [
      {
        text: `main was granted 4096 MiB and 25 % of the compute of GPU 0 (NVIDIA L4, ${CARDS[0]}); it uses 3320 MiB, and its limit is held by the interposer.`,
      },
    ],
  });
  const silent = why('large', '-n', 'team');
  t.is(silent.state, 'pending');
  t.regex(
    texts(silent)[0] ?? '',
    /^The scheduler cotenant-scheduler has said nothing about it in \d+ s: is it running\?$/,
  );
  t.deepEqual(texts(silent).slice(1), [
    "No pod of Cotenant's own scheduler is ready (there is none).",
    'main asks for 30720 MiB and 25 % of the compute of one card.',
  ]);
  const mounts = await eventually(() => {
    const told = why('team/mounts');
    return texts(told).some((text) => text.includes('kubelet')) ? told : undefined;
  }, 'the kubelet has told of the volume');
  t.is(mounts.state, 'waiting');
  t.deepEqual(texts(mounts), [
    `The agent has not announced itself to the kubelet of node ${NODE_NAME}: it is missing there, or just starts.`,
    `main was granted 512 MiB and 25 % of the compute of GPU 1 (NVIDIA A10, ${CARDS[1]}).`,
  ]);
  const end = texts(why('team/cheat')).find((text) => /^Container main .*ended/.test(text));
  t.regex(
    end ?? '',
    /^Container main (\(restarted \d+ times so far\) )?ended with exit code 137, stopped by the agent: /,
  );
  t.true(end?.endsWith(`: ${STOP}.`), end);
  const refused = await eventually(() => {
    const ran = cotenant('why', '-n', 'team', 'refused');
    return ran.out.includes('ReplicaSet') ? ran : undefined;
  }, 'the ReplicaSet has told of its failure');
  t.is(refused.code, 1, 'there is no such pod');
  t.regex(
    refused.out,
    /^There is no pod team\/refused\.\n {2}\S+Z ReplicaSet refused-\w+ could not create its pod, .*ValidatingAdmissionPolicy 'cotenant-pods' .*must pass the webhook of Cotenant\.\n$/,
  );
  // It goes at once, since its volume was never mounted.
  must(bed.kubectl('-n', 'team', 'delete', 'pod', 'mounts', '--wait=true'));
  t.is(why('team/mounts').state, 'absent');
}

function readsOwnNamespace(t: ExecutionContext, bed: Bed): void {
  const env = { KUBECONFIG: readerKubeconfig(bed) };
  const cotenant: Cotenant = (...args) => bed.namespaces.run([process.execPath, MAIN, ...args], { env });
  const { nodes, totals, notes } = inventoryFrom(cotenant('inspect', '-o', 'json'));
  t.like(totals, { cards: 2, usableBytes: 0, grantedBytes: (4096 + 2 * 6144 + 1024) * MIB });
  t.deepEqual(
    nodes.map(({ name, use }) => [name, use]),
    [[NODE_NAME, 'forbidden']],
  );
  const cannot = (verb: string, resource: string, group: string) =>
    `User "system:serviceaccount:team:reader" cannot ${verb} resource "${resource}" in API group "${group}" at the cluster scope`;
  t.deepEqual(notes, [
    `Sizes and models of cards are not shown: nodes is forbidden: ${cannot('list', 'nodes', '')}.`,
    `Only pods of namespace team are counted: pods is forbidden: ${cannot('list', 'pods', '')}.`,
    `Use is not shown: csidrivers.storage.k8s.io "cotenant.io" is forbidden: ${cannot('get', 'csidrivers', 'storage.k8s.io')}.`,
  ]);
  const [, , named] = inventoryFrom(cotenant('inspect', '-o', 'json', '--system-namespace', 'cotenant-system')).notes;
  t.is(
    named,
    'Use is not shown: pods is forbidden: User "system:serviceaccount:team:reader" cannot list resource "pods" in API group "" in the namespace "cotenant-system".',
  );
  t.regex(cotenant('inspect').out, new RegExp(`^${NODE_NAME} +\\? +${CARDS[0]} +- +11264 +- +forbidden +75% +3$`, 'm'));
  const other = cotenant('inspect', '-n', 'default');
  t.is(other.code, 1);
  t.regex(other.err, /^cotenant: pods cannot be listed: pods is forbidden: .* in the namespace "default"\n$/);

  const why = cotenant('why', 'train');
  t.is(why.code, 0, why.err);
  t.regex(why.out, new RegExp(`main was granted 4096 MiB and 25 % of the compute of ${CARDS[0]}\\.`));
  t.regex(why.out, /^Events are not told: events is forbidden: .*\.$/m);
  t.regex(why.out, /^Node node-1 is not looked at: nodes "node-1" is forbidden: .*\.$/m);
  t.regex(cotenant('why', 'team/gone').out, /^ {2}Whether one was refused cannot be told\.$/m);
}

function servesAsPlugin(t: ExecutionContext, bed: Bed, bin: string): void {
  const folder = join(bed.folder, 'plugins');
  mkdirSync(folder);
  symlinkSync(MAIN, join(folder, 'kubectl-cotenant'));
  const env = {
    KUBECONFIG: join(bed.folder, 'kubeconfig'),
    PATH: [folder, dirname(process.execPath), process.env.PATH].join(':'),
    // Where a node's own tools would look for their agent.
    COTENANT_STATE: bed.folder,
  };
  const kubectl = (...args: readonly string[]) => bed.namespaces.run([join(bin, 'kubectl'), ...args], { env });
  const table = kubectl('cotenant', 'inspect');
  t.is(table.code, 0, table.err);
  t.regex(table.out, /^Granted\/usable GPU memory: \d+\/45200 MiB /m);
  t.like(JSON.parse(kubectl('cotenant', 'why', '-n', 'team', 'two', '-o', 'json').out), { state: 'running' });
}

/** What is left when the agent is gone, or there but silent. */
async function withoutAgent(t: ExecutionContext, bed: Bed, cotenant: Cotenant): Promise<void> {
  must(bed.kubectl('-n', 'cotenant-system', 'delete', 'pod', AGENT, '--wait=true'));
  const gone = inventoryFrom(cotenant('inspect', '-o', 'json'));
  t.deepEqual(gone.notes, [`No agent runs on node ${NODE_NAME}.`]);
  t.is(gone.nodes[0]?.use, 'no agent');
  t.is(gone.totals.grantedBytes, 17_408 * MIB, 'the grants are told without it');
  t.regex(cotenant('why', 'team/train').out, new RegExp(`^  No agent of Cotenant runs on node ${NODE_NAME}\\.$`, 'm'));

  bed.apply(agentPod([], ['sleep', '600']));
  await eventually(
    () => bed.get<Pod>('pod', AGENT, 'cotenant-system')?.status?.phase === 'Running' || undefined,
    'it runs',
  );
  const silent = inventoryFrom(cotenant('inspect', '-o', 'json'));
  t.is(silent.nodes[0]?.use, 'no answer');
  t.regex(
    silent.notes.join('\n'),
    /^Use on node node-1 is not known: its agent cotenant-system\/cotenant-agent-x7k2p cannot be asked: error trying to reach service: .*refused\.$/,
  );
  t.regex(
    cotenant('why', 'team/train').out,
    /^ {2}\S+Z The agent of node node-1 \(pod cotenant-agent-x7k2p\) is not ready: containers with unready status: \[exporter\]\.$/m,
  );
}

testUnless(ground.ok ? undefined : ground.reason)('inspect and why tell of a real cluster', async (t) => {
  t.timeout(300_000);
  if (!ground.ok) throw new Error(ground.reason);
  const bed = await startBed(ground, (line) => t.log(line));
  t.teardown(() => bed.close());
  await setUp(bed);
  const admin = join(bed.folder, 'kubeconfig');
  const cotenant: Cotenant = (...args) =>
    bed.namespaces.run([process.execPath, MAIN, ...args], { env: { KUBECONFIG: admin } });
  inspectsAll(t, cotenant);
  await explains(t, bed, cotenant);
  readsOwnNamespace(t, bed);
  servesAsPlugin(t, bed, ground.bin);
  await withoutAgent(t, bed, cotenant);
});
