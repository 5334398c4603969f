// `cotenant inspect` and `why` as users call them, against a real API server: with all rights, with those of one
// namespace, and as a kubectl plugin. inspect/objects.ts creates the objects.
import { mkdirSync, symlinkSync } from 'node:fs';
import { dirname, join } from 'node:path';
import type { ExecutionContext } from 'ava';
import type { Explanation } from '../../src/cli/cluster/explain-pod.ts';
import type { Inventory } from '../../src/cli/cluster/inventory.ts';
import type { Pod } from '../../src/cli/cluster/objects.ts';
import { MIB } from '../../src/common/quantity.ts';
import { testUnless } from '../support/gate.ts';
import { type Bed, bedTools, startBed } from './bed/bed.ts';
import { eventually } from './bed/eventually.ts';
import type { Ran } from './bed/namespaces.ts';
import { NODE_NAME } from './bed/node.ts';
import { AGENT, agentPod, GPUS, must, readerKubeconfig, SNAPSHOT, STOP, setUp } from './inspect/objects.ts';

const tools = bedTools(console.log, false);
const MAIN = join(import.meta.dirname, '../../src/cli/main.ts');

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
  t.deepEqual(row(GPUS[0]), [
    [
      NODE_NAME,
      '0',
      GPUS[0],
      'NVIDIA L4',
      String(4096 + 6144 + 1024),
      '22600',
      '5312',
      '75%',
      '3/50',
      SNAPSHOT.self.mode,
    ],
  ]);
  t.deepEqual(row(GPUS[1]), [['1', GPUS[1], 'NVIDIA A10', String(6144 + 512), '22600', '0', '50%', '2/50']]);
  t.deepEqual(row('team/train/main'), [
    ['team/train/main', 'running', '4096', '3320', '25%', 'report, namespace', 'interposer'],
  ]);
  t.deepEqual(row('team/mounts/main'), [['team/mounts/main', 'starting', '512', '-', '25%']]);
  t.regex(out, /^team\/large waits for \d+ s: main asks for 30720 MiB and 25 % of the compute of one GPU\.$/m);
  t.is(
    lines.at(-1),
    'Granted/usable GPU memory: 17920/45200 MiB (39%), 2 GPUs on 1 node, 4 containers with a share, 1 pod pending.',
  );
  const one = inventoryFrom(cotenant('inspect', '-o', 'json', '--node', NODE_NAME, '-n', 'default'));
  t.is(one.totals.grantedBytes, 17_920 * MIB, 'sums are of all');
  t.deepEqual(
    one.nodes.flatMap(({ gpus }) => gpus.flatMap(({ containers }) => containers)),
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
        text: `main was granted 4096 MiB and 25 % of the compute of GPU 0 (NVIDIA L4, ${GPUS[0]}); it uses 3320 MiB and 25 % of the compute, and its limit is enforced by the interposer.`,
      },
    ],
  });
  const silent = why('large', '-n', 'team');
  t.is(silent.state, 'pending');
  t.regex(
    texts(silent)[0] ?? '',
    /^The scheduler cotenant-scheduler has not reported on it for \d+ s: is it running\?$/,
  );
  t.deepEqual(texts(silent).slice(1), [
    "No pod of Cotenant's own scheduler is ready (none exists).",
    `Largest free shares: ${22_600 - 6144 - 512} MiB on node ${NODE_NAME} (of ${45_200 - 17_920} MiB free there).`,
    'main asks for 30720 MiB and 25 % of the compute of one GPU.',
  ]);
  const mounts = await eventually(() => {
    const answer = why('team/mounts');
    return texts(answer).some((text) => text.includes('kubelet')) ? answer : undefined;
  }, 'the kubelet has reported the volume');
  t.is(mounts.state, 'waiting');
  t.deepEqual(texts(mounts), [
    `The agent has not announced itself to the kubelet of node ${NODE_NAME}: it is missing there, or just starts.`,
    `main was granted 512 MiB and 25 % of the compute of GPU 1 (NVIDIA A10, ${GPUS[1]}).`,
  ]);
  const end = texts(why('team/rogue')).find((text) => /^Container main .*ended/.test(text));
  t.regex(
    end ?? '',
    /^Container main (\(restarted \d+ times so far\) )?ended with exit code 137, stopped by the agent: /,
  );
  t.true(end?.endsWith(`: ${STOP}.`), end);
  const refused = await eventually(() => {
    const ran = cotenant('why', '-n', 'team', 'refused');
    return ran.out.includes('ReplicaSet') ? ran : undefined;
  }, 'the ReplicaSet has reported its failure');
  t.is(refused.code, 1, 'there is no such pod');
  t.regex(
    refused.out,
    /^There is no pod team\/refused\.\n {2}\S+Z ReplicaSet refused-\w+ could not create its pod, .*ValidatingAdmissionPolicy 'cotenant-pods' .*must pass the webhook of Cotenant\.\n$/,
  );
  // It is deleted at once, since its volume was never mounted.
  must(bed.kubectl('-n', 'team', 'delete', 'pod', 'mounts', '--wait=true'));
  t.is(why('team/mounts').state, 'absent');
}

function recommends(t: ExecutionContext, cotenant: Cotenant): void {
  const sizes = (...args: readonly string[]) =>
    JSON.parse(cotenant('recommend', '-o', 'json', ...args).out) as unknown[];
  t.like(sizes('--ask-cluster'), [
    {
      namespace: 'team',
      pod: 'train',
      container: 'main',
      gpus: [{ grantedBytes: SNAPSHOT.containers[0]?.limitBytes }],
    },
  ]);
  t.deepEqual(sizes('-n', 'team'), sizes());
  t.deepEqual(sizes('-n', 'other'), []);
  t.regex(cotenant('recommend', '--ask-cluster').out, /agents of 1 node, each since it began/);
}

function readsOwnNamespace(t: ExecutionContext, bed: Bed): void {
  const env = { KUBECONFIG: readerKubeconfig(bed) };
  const cotenant: Cotenant = (...args) => bed.namespaces.run([process.execPath, MAIN, ...args], { env });
  const { nodes, totals, notes } = inventoryFrom(cotenant('inspect', '-o', 'json'));
  t.like(totals, { gpus: 2, usableBytes: 0, grantedBytes: (4096 + 2 * 6144 + 1024) * MIB });
  t.deepEqual(
    nodes.map(({ name, use }) => [name, use]),
    [[NODE_NAME, 'forbidden']],
  );
  const cannot = (verb: string, resource: string, group: string) =>
    `User "system:serviceaccount:team:reader" cannot ${verb} resource "${resource}" in API group "${group}" at the cluster scope`;
  t.deepEqual(notes, [
    `Sizes and models of GPUs are not shown: nodes is forbidden: ${cannot('list', 'nodes', '')}.`,
    `Only pods of namespace team are counted: pods is forbidden: ${cannot('list', 'pods', '')}.`,
    `Use is not shown: csidrivers.storage.k8s.io "cotenant.io" is forbidden: ${cannot('get', 'csidrivers', 'storage.k8s.io')}.`,
  ]);
  const [, , named] = inventoryFrom(cotenant('inspect', '-o', 'json', '--system-namespace', 'cotenant-system')).notes;
  t.is(
    named,
    'Use is not shown: pods is forbidden: User "system:serviceaccount:team:reader" cannot list resource "pods" in API group "" in the namespace "cotenant-system".',
  );
  t.regex(cotenant('inspect').out, new RegExp(`^${NODE_NAME} +\\? +${GPUS[0]} +- +11264 +- +forbidden +75% +3$`, 'm'));
  const got = cotenant('get');
  t.is(got.code, 0, got.err);
  t.regex(got.out, /^team\/train\/main .* enforce at most +node$/m);
  t.regex(got.out, /^Modes of nodes are not known: csidrivers\.storage\.k8s\.io "cotenant\.io" is forbidden: .*\.$/m);
  const weaker = cotenant('set', 'train', '--enforcement', 'report', '--ask-cluster');
  t.is(weaker.code, 1);
  t.regex(weaker.err, /^cotenant: pod team\/train: report is weaker than enforce, which its namespace sets; only /);
  const stricter = cotenant('set', 'train', '--enforcement', 'enforce', '--ask-cluster');
  t.is(stricter.code, 1);
  t.regex(stricter.err, /^cotenant: pods "train" is forbidden: User "system:serviceaccount:team:reader" cannot patch /);
  const other = cotenant('inspect', '-n', 'default');
  t.is(other.code, 1);
  t.regex(other.err, /^cotenant: pods cannot be listed: pods is forbidden: .* in the namespace "default"\n$/);

  const sizes = cotenant('recommend', '--system-namespace', 'cotenant-system');
  t.is(sizes.code, 2);
  t.regex(
    sizes.err,
    /^cotenant: the agents cannot be found: pods is forbidden: .* in the namespace "cotenant-system"\n$/,
  );

  const why = cotenant('why', 'train');
  t.is(why.code, 0, why.err);
  t.regex(why.out, new RegExp(`main was granted 4096 MiB and 25 % of the compute of ${GPUS[0]}\\.`));
  t.regex(why.out, /^Events cannot be read: events is forbidden: .*\.$/m);
  t.regex(why.out, /^Node node-1 cannot be read: nodes "node-1" is forbidden: .*\.$/m);
  t.regex(cotenant('why', 'team/gone').out, /^ {2}It is not known whether one was refused\.$/m);
}

function servesAsPlugin(t: ExecutionContext, bed: Bed, bin: string): void {
  const folder = join(bed.folder, 'plugins');
  mkdirSync(folder);
  for (const name of ['kubectl-cotenant', 'kubectl_complete-cotenant']) symlinkSync(MAIN, join(folder, name));
  const env = {
    KUBECONFIG: join(bed.folder, 'kubeconfig'),
    PATH: [folder, dirname(process.execPath), process.env.PATH].join(':'),
    // Where tools on the node look for their agent.
    COTENANT_STATE: bed.folder,
  };
  const kubectl = (...args: readonly string[]) => bed.namespaces.run([join(bin, 'kubectl'), ...args], { env });
  const table = kubectl('cotenant', 'inspect');
  t.is(table.code, 0, table.err);
  t.regex(table.out, /^Granted\/usable GPU memory: \d+\/45200 MiB /m);
  t.is(kubectl('__complete', 'cotenant', 'get', '-o', 'y').out, 'yaml\n:4\n');
  t.like(JSON.parse(kubectl('cotenant', 'why', '-n', 'team', 'two', '-o', 'json').out), { state: 'running' });
}

/** The output when the agent is gone, or there without an answer. */
async function withoutAgent(t: ExecutionContext, bed: Bed, cotenant: Cotenant): Promise<void> {
  must(bed.kubectl('-n', 'cotenant-system', 'delete', 'pod', AGENT, '--wait=true'));
  const gone = inventoryFrom(cotenant('inspect', '-o', 'json'));
  t.deepEqual(gone.notes, [`No agent runs on node ${NODE_NAME}.`]);
  t.is(gone.nodes[0]?.use, 'no agent');
  t.is(gone.totals.grantedBytes, 17_408 * MIB, 'grants are shown without the agent');
  t.regex(cotenant('why', 'team/train').out, new RegExp(`^  No agent of Cotenant runs on node ${NODE_NAME}\\.$`, 'm'));

  bed.apply(agentPod([], ['sleep', '600']));
  await eventually(
    () => bed.get<Pod>('pod', AGENT, 'cotenant-system')?.status?.phase === 'Running' || undefined,
    'it runs',
  );
  const silent = inventoryFrom(cotenant('inspect', '-o', 'json'));
  t.is(silent.nodes[0]?.use, 'no answer');
  t.regex(cotenant('recommend').err, /^cotenant: its agent cotenant-system\/cotenant-agent-x7k2p does not answer: /);
  t.regex(
    silent.notes.join('\n'),
    /^Use on node node-1 is not known: its agent cotenant-system\/cotenant-agent-x7k2p does not answer: error trying to reach service: .*refused\.$/,
  );
  t.regex(
    cotenant('why', 'team/train').out,
    /^ {2}\S+Z The agent of node node-1 \(pod cotenant-agent-x7k2p\) is not ready: containers with unready status: \[exporter\]\.$/m,
  );
}

testUnless(tools.ok ? undefined : tools.reason)('inspect and why report the state of a real cluster', async (t) => {
  t.timeout(600_000);
  if (!tools.ok) throw new Error(tools.reason);
  const bed = await startBed(tools, (line) => t.log(line));
  t.teardown(() => bed.close());
  await setUp(bed);
  const admin = join(bed.folder, 'kubeconfig');
  const cotenant: Cotenant = (...args) =>
    bed.namespaces.run([process.execPath, MAIN, ...args], { env: { KUBECONFIG: admin } });
  inspectsAll(t, cotenant);
  await explains(t, bed, cotenant);
  recommends(t, cotenant);
  readsOwnNamespace(t, bed);
  servesAsPlugin(t, bed, tools.bin);
  await withoutAgent(t, bed, cotenant);
});
