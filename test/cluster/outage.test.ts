// Each component is away for a while, not only killed: which pods start meanwhile, which wait and with what message,
// which keep running, and that everything proceeds by itself when the component is back.
import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import type { ExecutionContext } from 'ava';
import { GPUS_ANNOTATION } from '../../src/api/names.ts';
import { parseNodeGpus } from '../../src/api/node-annotation.ts';
import { buildBinding } from '../../src/scheduler/allocations/binding-writer.ts';
import { BUILD } from '../support/native/node.ts';
import type { Bed } from './bed/bed.ts';
import { eventually } from './bed/eventually.ts';
import { NODE_NAME } from './bed/node.ts';
import { NAMESPACE } from './bed/product.ts';
import { untilOffered } from './bed/whole.ts';
import { signalContainer } from './support/containers.ts';
import {
  attach,
  bind,
  clientOf,
  containerOf,
  eventsOf,
  getPod,
  MIB,
  namespaceOf,
  ONE_SHARE,
  outputOf,
  podOf,
  podPath,
  shellOf,
  untilGone,
  untilPod,
  untilRunning,
} from './support/pods.ts';
import { type Component, podsOf, untilNone } from './support/release.ts';
import { testsOnWhole } from './support/shared.ts';

const onCluster = testsOnWhole(['l4', 'a10']);
const TEAM = { namespace: 'team' };
const EACH_MIB = 2048;

const slice = (name: string, mib = EACH_MIB): object =>
  podOf(name, [clientOf(ONE_SHARE.own(mib), ['init', 'context 0'])], { namespace: TEAM.namespace });
const plain = (name: string): object => podOf(name, [shellOf('exec sleep 600')], { namespace: TEAM.namespace });

const create = (bed: Bed, pod: object, query = '') =>
  bed.api.ask('POST', `/api/v1/namespaces/${TEAM.namespace}/pods${query}`, pod);
async function must(bed: Bed, ...pods: readonly object[]): Promise<void> {
  for (const pod of pods) {
    const { status, body } = await create(bed, pod);
    if (status !== 201) throw new Error(`a pod is refused with ${status}: ${JSON.stringify(body)}`);
  }
}
const remove = (bed: Bed, name: string) => bed.api.ask('DELETE', podPath(name, TEAM.namespace));

const untilReady = (bed: Bed, component: Component) =>
  eventually(async () => {
    const pods = await podsOf(bed, component);
    const ready = pods.filter(({ status }) =>
      status?.conditions?.some((condition) => condition.type === 'Ready' && condition.status === 'True'),
    );
    return pods.length > 0 && ready.length === pods.length ? true : undefined;
  }, `${component} is ready`);

async function patch(bed: Bed, path: string, body: object): Promise<void> {
  const { status, body: said } = await bed.api.ask('PATCH', `/apis/apps/v1/namespaces/${NAMESPACE}/${path}`, body);
  if (status !== 200) throw new Error(`${path}: ${status} ${JSON.stringify(said)}`);
}

const scale = (bed: Bed, component: 'webhook' | 'scheduler', replicas: number) =>
  patch(bed, `deployments/cotenant-${component}`, { spec: { replicas } });

/** Gives the agent's DaemonSet a node selector that no node matches. */
const keepAgentAway = (bed: Bed, away: boolean) =>
  patch(bed, 'daemonsets/cotenant-agent', {
    spec: { template: { spec: { nodeSelector: { 'example.com/nowhere': away ? 'true' : null } } } },
  });

const event = (bed: Bed, name: string, wanted: RegExp) =>
  eventually(
    async () => (await eventsOf(bed, name, TEAM.namespace)).find(({ message }) => wanted.test(message)),
    `an event of ${name} says ${wanted}`,
  );

/** Inside, the container has its GPU and its grant, and no more. */
async function isLimited(t: ExecutionContext, bed: Bed, name: string, mib = EACH_MIB): Promise<void> {
  const pod = await getPod(bed, name, TEAM.namespace);
  await eventually(() => (pod && outputOf(bed, pod).length >= 2) || undefined, `${name} has done its first commands`);
  const talk = attach(bed, name, TEAM.namespace);
  t.deepEqual([(await talk.ask('info'))[0], (await talk.ask('info'))[2]], [0, mib * MIB], name);
  t.is((await talk.ask(`alloc ${(mib + 256) * MIB}`))[0], 2, `${name}: out of memory beyond its slice`);
  await talk.leave();
}

onCluster('without the webhook plain pods start and GPU pods are refused', async (t, { bed }) => {
  bed.apply(namespaceOf(TEAM.namespace));
  await must(bed, slice('steady'), slice('leaves'));
  const steady = await untilRunning(bed, 'steady', TEAM);
  await untilRunning(bed, 'leaves', TEAM);
  await isLimited(t, bed, 'steady');

  await scale(bed, 'webhook', 0);
  // While it drains it answers once on each idle connection.
  const asked = { ...slice('asked'), metadata: { name: 'asked' } };
  await eventually(
    async () => (await create(bed, asked, '?dryRun=All')).status === 500 || undefined,
    'no webhook answers',
  );
  await must(bed, plain('plain'));
  const { status, body } = await create(bed, slice('refused'));
  t.is(status, 500);
  const { message } = body as { message: string };
  t.log(`the message on a pod with a share: ${message}`);
  t.regex(
    message,
    /failed calling webhook "(?:inject|validate)\.cotenant\.io".*(?:no endpoints available|connection refused|no route)/,
  );
  t.is(await getPod(bed, 'refused', TEAM.namespace), undefined);
  await untilRunning(bed, 'plain', TEAM);
  // Existing pods are unaffected: their status is updated, and they can terminate.
  await remove(bed, 'leaves');
  await untilGone(bed, 'leaves', TEAM);
  signalContainer(bed, steady, 'main', 'SIGKILL');
  await untilPod(
    bed,
    'steady',
    'is written to have started again',
    (pod) =>
      (containerOf(pod)?.restartCount ?? 0) > (containerOf(steady)?.restartCount ?? 0) &&
      containerOf(pod)?.state.running !== undefined,
    TEAM,
  );

  await scale(bed, 'webhook', 1);
  const accepted = async () => ((await create(bed, slice('refused'))).status === 201 ? true : undefined);
  await eventually(accepted, 'a pod with a share is taken again');
  await untilRunning(bed, 'refused', TEAM);
  await isLimited(t, bed, 'refused');
  await isLimited(t, bed, 'steady');
});

onCluster('without the extender plain pods are placed and GPU pods wait for it', async (t, { bed }) => {
  await scale(bed, 'scheduler', 0);
  await untilNone(bed, 'scheduler');
  await must(bed, slice('waits'), plain('plain-2'));
  await untilRunning(bed, 'plain-2', TEAM);
  const waiting = await getPod(bed, 'waits', TEAM.namespace);
  t.is(waiting?.status?.phase, 'Pending');
  t.is(waiting?.spec.nodeName, undefined, 'no other scheduler places it');
  t.is(waiting?.spec.schedulerName, 'cotenant-scheduler');
  await scale(bed, 'scheduler', 1);
  await untilRunning(bed, 'waits', TEAM);
  await isLimited(t, bed, 'waits');
});

onCluster('of two pods bound beyond the memory of a GPU the second waits for the first', async (t, { bed, uuids }) => {
  const [gpuUuid = ''] = uuids;
  const half = 12_288;
  await scale(bed, 'scheduler', 0);
  await untilNone(bed, 'scheduler');
  // As two leaders would bind that do not know of each other.
  const bindByHand = async (name: string) => {
    await must(bed, slice(name, half));
    const podUid = (await getPod(bed, name, TEAM.namespace))?.metadata.uid ?? '';
    const asked = { podName: name, podNamespace: TEAM.namespace, podUid, node: NODE_NAME };
    const gpu = { gpuUuid, memoryBytes: half * MIB, limitBytes: half * MIB, coresPercent: 0 };
    const container = { name: 'main', kind: 'app', memoryIsolation: 'on', gpus: [gpu] } as const;
    const { status, body } = await bind(
      bed,
      name,
      TEAM.namespace,
      buildBinding(asked, 1, [container]).metadata?.annotations,
    );
    if (status !== 201) throw new Error(JSON.stringify(body));
  };
  await bindByHand('first');
  await untilRunning(bed, 'first', TEAM);
  await bindByHand('second');
  const { message } = await event(bed, 'second', /would be overcommitted/);
  t.log(`the message on the second pod: ${message}`);
  t.regex(
    message,
    new RegExp(
      `${gpuUuid} would be overcommitted: ${half} MiB of cotenant\\.io/gpu-memory were granted, \\d+ MiB are left`,
    ),
  );
  const waiting = await getPod(bed, 'second', TEAM.namespace);
  t.is(waiting?.status?.phase, 'Pending');
  t.is(waiting?.status?.containerStatuses?.[0]?.state.waiting?.reason, 'ContainerCreating');
  await remove(bed, 'first');
  await untilRunning(bed, 'second', TEAM);
  await isLimited(t, bed, 'second', half);
  await scale(bed, 'scheduler', 1);
  await remove(bed, 'second');
});

onCluster('without the agent GPU pods wait to start and to terminate', async (t, { bed }) => {
  const before = containerOf(await getPod(bed, 'steady', TEAM.namespace))?.containerID;
  await keepAgentAway(bed, true);
  await untilNone(bed, 'agent');
  await must(bed, slice('late'), plain('plain-3'));
  await untilRunning(bed, 'plain-3', TEAM);
  const found = await event(
    bed,
    'late',
    /cotenant\.io.*(?:connect: connection refused|no such file or directory|not found in the list of registered CSI drivers)/,
  );
  t.log(`the message on a new pod: ${found.reason}: ${found.message}`);
  await remove(bed, 'waits');
  const ending = await untilPod(
    bed,
    'waits',
    'has no container left',
    (pod) => containerOf(pod)?.state.terminated !== undefined,
    TEAM,
  );
  t.truthy(ending.metadata.deletionTimestamp);
  await isLimited(t, bed, 'steady');
  t.is((await getPod(bed, 'waits', TEAM.namespace))?.metadata.uid, ending.metadata.uid, 'it cannot end yet');
  await keepAgentAway(bed, false);
  await untilReady(bed, 'agent');
  await untilOffered(bed);
  await untilRunning(bed, 'late', TEAM);
  await untilGone(bed, 'waits', TEAM);
  await isLimited(t, bed, 'late');
  await isLimited(t, bed, 'steady');
  t.is(containerOf(await getPod(bed, 'steady', TEAM.namespace))?.containerID, before, 'it was not touched');
});

onCluster('without the CSIDriver object GPU pods wait, and start when it is back', async (t, { bed }) => {
  const path = '/apis/storage.k8s.io/v1/csidrivers';
  const driver = await bed.api.get<{ metadata: object; spec: object }>(`${path}/cotenant.io`);
  t.truthy(driver);
  t.is((await bed.api.ask('DELETE', `${path}/cotenant.io`)).status, 200);
  await must(bed, slice('driverless'));
  const found = await event(bed, 'driverless', /CSIDriver/);
  t.log(`the message on a new pod: ${found.message}`);
  await isLimited(t, bed, 'steady');
  const again = {
    apiVersion: 'storage.k8s.io/v1',
    kind: 'CSIDriver',
    metadata: { name: 'cotenant.io' },
    spec: driver?.spec,
  };
  t.is((await bed.api.ask('POST', path, again)).status, 201);
  await untilRunning(bed, 'driverless', TEAM);
  await isLimited(t, bed, 'driverless');
  await remove(bed, 'driverless');
  await untilGone(bed, 'driverless', TEAM);
});

onCluster('after a node restart each pod has its volume before its containers run', async (t, { bed }) => {
  await must(bed, slice('reboots'));
  await untilRunning(bed, 'reboots', TEAM);
  await isLimited(t, bed, 'reboots');
  await bed.stop('kubelet');
  const tasks = bed.ctr('tasks', 'ls', '-q').out.split('\n').filter(Boolean);
  t.true(tasks.length > 3, `${tasks.length} containers`);
  for (const id of tasks) bed.ctr('tasks', 'kill', '-s', 'SIGKILL', '-a', id);
  await bed.stop('containerd');
  // Volumes are in memory.
  const mounts = () =>
    bed.namespaces
      .run(['cat', '/proc/mounts'])
      .out.split('\n')
      .flatMap((line) => /^\S+ (\/var\/lib\/kubelet\/pods\/\S+csi\/cotenant\S*)/.exec(line)?.[1] ?? []);
  t.true(mounts().length > 0);
  for (const path of mounts().toReversed()) bed.namespaces.run(['umount', '-l', path]);
  t.deepEqual(mounts(), []);
  await bed.start('containerd');
  await bed.start('kubelet');
  const again = await untilPod(
    bed,
    'reboots',
    'runs again',
    (pod) => (containerOf(pod)?.restartCount ?? 0) > 0 && containerOf(pod)?.state.running !== undefined,
    TEAM,
  );
  t.log(`started ${containerOf(again)?.restartCount} times more`);
  await isLimited(t, bed, 'reboots');
  await remove(bed, 'reboots');
  await untilGone(bed, 'reboots', TEAM);
});

onCluster('lost GPUs end no running pod, also when the kubelet restarts', async (t, { bed }) => {
  await must(bed, slice('survivor'));
  const before = containerOf(await untilRunning(bed, 'survivor', TEAM))?.containerID;
  const simulator = (command: string, gpu: string) =>
    execFileSync(join(BUILD, 'cotenant-simulator'), [command, '--dir', join(bed.folder, 'gpu'), gpu]);
  const node = async () =>
    (await bed.api.get<{ metadata: { annotations: Record<string, string> }; status: { allocatable: object } }>(
      `/api/v1/nodes/${NODE_NAME}`,
    )) ?? t.fail();
  const offered = (await node()).status.allocatable;
  for (const gpu of ['0', '1']) simulator('lose', gpu);
  const healthy = async (wanted: boolean) => {
    const gpus = parseNodeGpus((await node()).metadata.annotations[GPUS_ANNOTATION] ?? '');
    return gpus.ok && gpus.value.gpus.length === 2 && gpus.value.gpus.every((gpu) => gpu.healthy === wanted);
  };
  await eventually(async () => (await healthy(false)) || undefined, 'the Node tells that its GPUs are lost');
  t.deepEqual((await node()).status.allocatable, offered);
  await must(bed, slice('later'));
  await bed.restart('kubelet');
  // Running pods are admitted before new ones.
  await must(bed, plain('after'));
  await untilRunning(bed, 'after', TEAM);
  const survivor = await getPod(bed, 'survivor', TEAM.namespace);
  t.is(survivor?.status?.phase, 'Running');
  t.is(containerOf(survivor)?.containerID, before);
  const later = await getPod(bed, 'later', TEAM.namespace);
  t.is(later?.spec?.nodeName, undefined, 'no grant goes to a lost GPU');
  for (const gpu of ['0', '1']) simulator('recover', gpu);
  await eventually(async () => (await healthy(true)) || undefined, 'the Node tells that its GPUs are back');
  await untilRunning(bed, 'later', TEAM);
  await isLimited(t, bed, 'later');
});

onCluster('memory added to a grant is not allocated to another pod', async (t, { bed, uuids }) => {
  const [gpuUuid = ''] = uuids;
  const onGpu = (name: string, mib: number) =>
    podOf(name, [clientOf(ONE_SHARE.own(mib), ['init', 'context 0'])], {
      namespace: TEAM.namespace,
      annotations: { 'cotenant.io/gpu-uuid': gpuUuid },
    });
  bed.apply(namespaceOf(TEAM.namespace));
  for (const name of ['refused', 'late', 'survivor', 'later']) {
    await remove(bed, name);
    await untilGone(bed, name, TEAM);
  }
  await must(bed, onGpu('grown', 1024));
  await untilRunning(bed, 'grown', TEAM);
  const main = join(import.meta.dirname, '../../src/cli/main.ts');
  // The command finds it by name from the first sample on that includes it.
  const set = (mib: number) =>
    eventually(() => {
      const { code, err } = bed.namespaces.run([process.execPath, main, 'set', 'team/grown', '-m', `${mib}Mi`]);
      if (err.includes('no grant team/grown on this node')) return undefined;
      t.is(code, 0, err);
      return true;
    }, 'the agent gives it another amount');
  const others = async (): Promise<number | undefined> => {
    const path = `/api/v1/nodes/${NODE_NAME}`;
    const node = await bed.api.get<{ metadata: { annotations: Record<string, string> } }>(path);
    const read = parseNodeGpus(node?.metadata.annotations[GPUS_ANNOTATION] ?? '');
    if (!read.ok) throw new Error(read.error);
    return read.value.gpus.find((gpu) => gpu.gpuUuid === gpuUuid)?.others?.memoryBytes;
  };
  t.is(await others(), undefined);
  await set(9 * 1024);
  await eventually(async () => ((await others()) === 8 * 1024 * MIB ? true : undefined), 'the Node tells of it');
  const rest = 14 * 1024;
  await must(bed, onGpu('beside', rest));
  const waiting = await untilPod(
    bed,
    'beside',
    'has a message that no GPU has enough memory',
    ({ status }) => status?.conditions?.some(({ message }) => message?.includes(gpuUuid)) ?? false,
    TEAM,
  );
  t.is(waiting.spec.nodeName, undefined);
  await set(1024);
  await untilRunning(bed, 'beside', TEAM);
  t.is(await others(), undefined);
});
