// The product on a node with version 2 of cgroups: a real kubelet with its defaults, containerd, and runc or crun
// in an emulated machine (variants.ts), as a second node of a test cluster. The control plane, the webhook and the
// scheduler run outside, on the cluster's first node. A named part of the tests of test/cluster.
import test, { type ExecutionContext } from 'ava';
import type { ActionRecord } from '../../src/agent/enforcement/action-record.ts';
import { type Bed, BUSYBOX_IMAGE, startBed } from '../cluster/bed/bed.ts';
import { eventually } from '../cluster/bed/eventually.ts';
import { INSIDE } from '../cluster/bed/gpus.ts';
import { kubernetesMinor } from '../cluster/bed/kubernetes.ts';
import { pauseLayer } from '../cluster/bed/layers.ts';
import { PAUSE_IMAGE } from '../cluster/bed/node.ts';
import {
  addClientImage,
  addCotenantImage,
  addKubeSchedulerImage,
  BYPASSING,
  installChart,
} from '../cluster/bed/product.ts';
import { untilOffered, WHOLE_VALUES, wholeTools } from '../cluster/bed/whole.ts';
import { cotenant, gpusOf, OUT_OF_MEMORY, refusedBy, seriesWhen, TEAM } from '../cluster/pod-lifecycle/common.ts';
import {
  attach,
  clientOf,
  containerOf,
  eventsOf,
  getPod,
  MIB,
  namespaceOf,
  ONE_SHARE,
  type Pod,
  podOf,
  podPath,
  rogueOf,
  shellOf,
  untilGone,
  untilPhase,
  untilPod,
  untilRunning,
} from '../cluster/support/pods.ts';
import { podOfRelease } from '../cluster/support/release.ts';
import { readyHelm } from '../support/services/helm.ts';
import { nodeReason } from './node/disk.ts';
import { GUEST_WAIT_MS, type GuestNode, startGuestNode } from './node/guest-node.ts';
import { GUEST_NODE } from './node/network.ts';
import { cgroupDriver, crunPackages, ociRuntime, systemdPackages } from './node/variants.ts';
import { guestTools } from './tools.ts';

const LIMIT_MS = 900_000;
const MEMORY = 'cotenant.io/memory';
const tools = guestTools(console.log, false);
const whole = wholeTools(console.log);
const crun = ociRuntime() === 'crun' ? crunPackages(console.log) : undefined;
const systemd = cgroupDriver() === 'systemd' ? systemdPackages(console.log) : undefined;
const missing = [tools, whole, crun, systemd].find((one) => one?.ok === false);
const reason = missing?.ok === false ? missing.reason : nodeReason();

type Cluster = { readonly bed: Bed; readonly node: GuestNode };
let cluster: Cluster | undefined;
let close: (() => Promise<void>) | undefined;

if (reason === undefined) {
  test.before(async (t) => {
    t.timeout(LIMIT_MS);
    if (!tools.ok || !whole.ok) return;
    const started = performance.now();
    const say = (line: string) => t.log(`${Math.round((performance.now() - started) / 1000)} s: ${line}`);
    const helm = await readyHelm(whole.helm);
    const bed = await startBed(whole.tools, say, [], [GUEST_NODE]);
    close = () => bed.close();
    addCotenantImage(bed);
    addKubeSchedulerImage(bed, whole.tools.bin);
    // Before the other node joins, so that these pods run on the first one.
    installChart(bed, helm, {
      ...WHOLE_VALUES,
      webhook: {
        ...WHOLE_VALUES.webhook,
        configuration: { ...WHOLE_VALUES.webhook.configuration, annotationWriters: ['admin'] },
      },
    });
    say('the chart is installed');
    const programs = {
      ...whole.tools,
      ...(crun?.ok && { crun: crun.root }),
      ...(systemd?.ok && { systemd: systemd.root }),
    };
    const node = await startGuestNode(bed, tools, programs, ['l4', 'a10'], (own) => {
      own.addImage(PAUSE_IMAGE, [pauseLayer(own.folder)], { entrypoint: ['/pause'] });
      own.addImage(BUSYBOX_IMAGE, [own.busybox], { entrypoint: ['/bin/sh'] });
      addCotenantImage(own);
      addClientImage(own);
    });
    say(`${tools.versions}: the node is ready`);
    await untilOffered(bed, GUEST_NODE, GUEST_WAIT_MS);
    bed.apply(namespaceOf(TEAM.namespace));
    say('the agent offers the GPUs');
    cluster = { bed, node };
  });
  test.after.always(async () => {
    await close?.();
  });
}

function inGuest(title: string, body: (t: ExecutionContext, cluster: Cluster) => Promise<void>): void {
  if (reason !== undefined) {
    test.skip(`${title} (skipped: ${reason})`, () => {});
    return;
  }
  test.serial(title, async (t) => {
    t.timeout(LIMIT_MS);
    if (cluster === undefined) throw new Error('the node did not come up');
    const started = performance.now();
    await body(t, cluster);
    t.log(`${Math.round((performance.now() - started) / 1000)} s`);
  });
}

/** Output of a container; its log is on the node, so the kubelet has to be asked. */
async function logOf(bed: Bed, { metadata }: Pod, container = 'main'): Promise<readonly string[]> {
  const path = `${podPath(metadata.name, metadata.namespace)}/log?container=${container}`;
  const { status, body } = await bed.api.ask('GET', path);
  return status === 200 ? String(body).split('\n').filter(Boolean) : [];
}

const attachTo = (bed: Bed, name: string, namespace: string) =>
  attach(bed, name, namespace, 'main', (pod) => logOf(bed, pod));

const idOf = (pod: Pod, container: string) => containerOf(pod, container)?.containerID?.replace('containerd://', '');

/** The container's cgroup below the only hierarchy: the kubelet has one for each quality of service but the highest. */
const groupOf = (pod: Pod, container = 'main'): string => {
  const { qosClass = 'Guaranteed' } = pod.status ?? {};
  const quality = qosClass === 'Guaranteed' ? '' : `/${qosClass.toLowerCase()}`;
  if (cgroupDriver() === 'systemd') {
    const slices = ['kubepods', ...(quality === '' ? [] : [`kubepods-${qosClass.toLowerCase()}`])];
    const pods = `${slices.at(-1)}-pod${pod.metadata.uid?.replaceAll('-', '_')}`;
    return `/${[...slices, pods].map((one) => `${one}.slice`).join('/')}/cri-containerd-${idOf(pod, container)}.scope`;
  }
  return `/kubepods${quality}/pod${pod.metadata.uid}/${idOf(pod, container)}`;
};

const auditOf = ({ node }: Cluster, pod: string): readonly ActionRecord[] =>
  node
    .script('cat /var/lib/cotenant/audit.log')
    .split('\n')
    .filter(Boolean)
    .map((line) => JSON.parse(line) as ActionRecord)
    .filter((record) => record.pod === pod);

async function remove({ bed }: Cluster, ...names: readonly string[]): Promise<void> {
  bed.kubectl('-n', TEAM.namespace, 'delete', 'pod', ...names, '--wait=false');
  await Promise.all(names.map((name) => untilGone(bed, name, TEAM)));
}

inGuest('a kubelet at its defaults for cgroup v2 registers a node that offers its GPUs', async (t, { bed, node }) => {
  const hierarchies = node.script("awk '$3 ~ /^cgroup/ {print $2, $3}' /proc/mounts").trim();
  t.is(hierarchies, '/sys/fs/cgroup cgroup2');
  type Configuration = { readonly kubeletconfig: Readonly<Record<string, unknown>> };
  const path = `/api/v1/nodes/${GUEST_NODE}/proxy/configz`;
  const { kubeletconfig } = await bed.api.must<Configuration>('GET', path);
  t.like(kubeletconfig, { cgroupDriver: cgroupDriver(), cgroupsPerQOS: true, enforceNodeAllocatable: ['pods'] });
  t.is(kubeletconfig.cgroupRoot, undefined);
  // kubernetes/pkg/kubelet/apis/config/v1beta1/defaults.go
  if (kubernetesMinor() >= 35) t.true(kubeletconfig.failCgroupV1);
  const offered = await untilOffered(bed, GUEST_NODE);
  t.is(offered['cotenant.io/gpu-cores'], '200');
  t.true(Number(offered['cotenant.io/gpu-memory']) > 40 * 1024 * MIB);
  const agent = await podOfRelease(bed, 'agent');
  t.is(agent.spec.nodeName, GUEST_NODE);
  // What each writes about a container that it has created.
  const state = node.script(`ls /run/containerd/runc/k8s.io/${idOf(agent, 'node')}`).split('\n');
  t.deepEqual(
    [state.includes('state.json'), state.includes('status')],
    [ociRuntime() === 'runc', ociRuntime() === 'crun'],
  );
  const pid = node.script(`head -n 1 /sys/fs/cgroup${groupOf(agent, 'node')}/cgroup.procs`).trim();
  t.is(node.script(`cat /proc/${pid}/cgroup`), `0::${groupOf(agent, 'node')}\n`);
});

inGuest('a pod with GPU memory sees its grant, and what exceeds it is refused', async (t, { bed, node }) => {
  bed.apply(podOf('tenant', [clientOf(ONE_SHARE.own(1024), ['init', 'count', 'context 0', 'info'])], TEAM));
  const pod = await untilRunning(bed, 'tenant', TEAM);
  t.is(pod.spec.nodeName, GUEST_NODE);
  t.deepEqual(
    gpusOf(t, pod).map(({ memoryBytes }) => memoryBytes),
    [1024 * MIB],
  );
  const client = attachTo(bed, 'tenant', TEAM.namespace);
  const [result, free = 0, total] = await client.ask('info');
  t.is(result, 0);
  t.is(total, 1024 * MIB);
  t.true(free < 1024 * MIB);
  const count = (await logOf(bed, pod))[1];
  t.is(count, '0 1', 'it has one of the two GPUs');
  await client.must(`alloc ${512 * MIB}`);
  t.is((await client.ask(`alloc ${768 * MIB}`))[0], OUT_OF_MEMORY);
  await client.leave();
  const used = await seriesWhen(bed, 'cotenant_container_memory_used_bytes', 'tenant', (bytes) => bytes > 512 * MIB);
  t.true(used < 1024 * MIB, 'the agent counts it by its cgroup');
  const procs = node
    .script(`cat /sys/fs/cgroup${groupOf(pod)}/cgroup.procs`)
    .trim()
    .split('\n');
  t.is(node.script(`cat /proc/${procs[0]}/cgroup`), `0::${groupOf(pod)}\n`);
});

inGuest('memory of a running pod is changed, and its next allocation follows', async (t, { bed }) => {
  const client = attachTo(bed, 'tenant', TEAM.namespace);
  const has = async () =>
    gpusOf(t, await untilRunning(bed, 'tenant', TEAM)).map(({ memoryBytes }) => memoryBytes / MIB);
  const wish = { metadata: { annotations: { [MEMORY]: '{"main":"2Gi"}' } } };
  const tenant = { name: 'alice', groups: ['system:masters'] };
  const asked = await bed.api.ask('PATCH', podPath('tenant', TEAM.namespace), wish, tenant);
  t.is(asked.status, 403, 'a tenant cannot raise itself');
  t.is(cotenant(bed, 'set', 'team/tenant', '-m', '2Gi'), 'pod team/tenant: memory {"main":"2Gi"}\n');
  t.deepEqual(await has(), [2048]);
  const grown = async () => (await client.ask(`alloc ${768 * MIB}`))[0] === 0;
  await eventually(grown, 'its next allocation follows');
  await eventually(
    async () => (await eventsOf(bed, 'tenant', 'team')).some(({ reason: why }) => why === 'GPUMemoryResized'),
    'an Event says so',
  );
  t.regex(refusedBy(bed, 'set', 'team/tenant', '-m', '400Gi'), /for the pod, but 400Gi are/);
  cotenant(bed, 'set', 'team/tenant', '-m', '1536Mi');
  t.deepEqual(await has(), [1536]);
  const shrunk = async () => (await client.ask(`alloc ${128 * MIB}`))[0] === OUT_OF_MEMORY;
  await eventually(shrunk, 'and it shrinks');
  t.is(containerOf(await getPod(bed, 'tenant', 'team'))?.restartCount, 0);
  await client.leave();
});

inGuest('a container over its grant is stopped with a reason; its neighbor is undisturbed', async (t, whole) => {
  const { bed } = whole;
  const [{ gpuUuid = '' } = {}] = gpusOf(t, await untilRunning(bed, 'tenant', TEAM));
  const settings = { ...TEAM, annotations: { 'cotenant.io/gpu-uuid': gpuUuid } };
  // Another process beside it: the container's cgroup is stopped, not one process.
  const beside = `sleep 3600 & exec ${BYPASSING.join(' ')} init 'context 0' 'alloc ${4096 * MIB}'`;
  // Of the highest quality of service, whose cgroups are below kubepods itself; the agent's is burstable, the other pods'
  // best effort.
  const limits = { ...ONE_SHARE.own(1024), cpu: '500m', memory: '256Mi' };
  const rogue = rogueOf(limits, [], { command: ['/bin/sh', '-c', beside] });
  bed.apply(podOf('rogue', [rogue], settings));
  const stopped = await untilPod(
    bed,
    'rogue',
    'was stopped and started again',
    (pod) => (containerOf(pod)?.restartCount ?? 0) > 0 && containerOf(pod)?.lastState.terminated !== undefined,
    TEAM,
  );
  t.is(stopped.status?.qosClass, 'Guaranteed');
  const { terminated } = containerOf(stopped)?.lastState ?? {};
  t.is(terminated?.exitCode, 137);
  const sentence = new RegExp(
    `team/rogue/main .*: \\d+ MiB of 1024 MiB on ${gpuUuid}, \\d+ MiB of it past the interposer`,
  );
  t.regex(terminated?.message ?? '', sentence);
  const kill = auditOf(whole, 'rogue').find(({ action }) => action === 'kill');
  t.is(kill?.result, 'sent');
  t.deepEqual(kill?.processes.map(({ command, result }) => [command.split('/').at(-1), result]).toSorted(), [
    ['foreign-loader', 'sent'],
    ['sleep', 'sent'],
  ]);
  await eventually(
    async () => (await eventsOf(bed, 'rogue', 'team')).some(({ message }) => sentence.test(message)),
    'an Event says so',
  );
  t.regex(cotenant(bed, 'why', 'team/rogue'), sentence);
  await remove(whole, 'rogue');
  t.is(containerOf(await getPod(bed, 'tenant', 'team'))?.restartCount, 0);
});

inGuest('a container opens no GPU that it was not granted', async (t, whole) => {
  const { bed, node } = whole;
  const numbers = ['195 0', '195 255'];
  const script = numbers.map((one, at) => `mknod /tmp/gpu${at} c ${one} && cat /tmp/gpu${at}`).join('; ');
  // Without rules these have no driver here, which is another answer.
  const outside = node.run(['sh', '-c', `${script.replaceAll('/tmp/', '/var/')}; true`]).err;
  t.deepEqual(
    outside.trim().split('\n'),
    numbers.map((_, at) => `cat: can't open '/var/gpu${at}': No such device or address`),
  );
  const share = { resources: { limits: ONE_SHARE.own(256) } };
  const list = `ls ${INSIDE}/gpus`;
  bed.apply(
    podOf('makes-nodes', [shellOf(`(${script}; ${list}) 2>&1`, share)], { ...TEAM, spec: { restartPolicy: 'Never' } }),
  );
  const pod = await untilPhase(bed, 'makes-nodes', 'Succeeded', TEAM);
  t.deepEqual(await logOf(bed, pod), [
    ...numbers.map((_, at) => `cat: can't open '/tmp/gpu${at}': Operation not permitted`),
    ...gpusOf(t, pod).map(({ gpuUuid }) => gpuUuid),
  ]);
  await remove(whole, 'makes-nodes');
});

inGuest('an agent that is killed comes back with all grants', async (t, whole) => {
  const { bed, node } = whole;
  const agent = await podOfRelease(bed, 'agent');
  const restarts = async () => containerOf(await podOfRelease(bed, 'agent'), 'node')?.restartCount ?? 0;
  const before = await restarts();
  node.script(`for pid in $(cat /sys/fs/cgroup${groupOf(agent, 'node')}/cgroup.procs); do kill -9 $pid; done`);
  const client = attachTo(bed, 'tenant', TEAM.namespace);
  t.is((await client.ask(`alloc ${1024 * MIB}`))[0], OUT_OF_MEMORY, 'the grant holds without an agent');
  await eventually(async () => (await restarts()) > before, 'the agent starts again', GUEST_WAIT_MS);
  await seriesWhen(bed, 'cotenant_container_memory_limit_bytes', 'tenant', (bytes) => bytes === 1536 * MIB);
  cotenant(bed, 'set', 'team/tenant', '-m', '3Gi');
  await eventually(async () => (await client.ask(`alloc ${1024 * MIB}`))[0] === 0, 'it changes grants as before');
  t.is((await client.ask(`alloc ${2048 * MIB}`))[0], OUT_OF_MEMORY);
  t.is(containerOf(await getPod(bed, 'tenant', 'team'))?.restartCount, 0);
  await client.leave();
});

inGuest('a machine that restarts at once gives its pods their grants again', async (t, whole) => {
  const { bed, node } = whole;
  const before = await untilRunning(bed, 'tenant', TEAM);
  const idOf = (pod: Pod | undefined) => containerOf(pod)?.containerID;
  await node.reboot();
  const pod = await untilPod(
    bed,
    'tenant',
    'runs in a container of its own',
    (one) => idOf(one) !== idOf(before) && containerOf(one)?.state.running !== undefined,
    TEAM,
    GUEST_WAIT_MS,
  );
  t.is(pod.metadata.uid, before.metadata.uid);
  t.deepEqual(gpusOf(t, pod), gpusOf(t, before));
  const client = attachTo(bed, 'tenant', TEAM.namespace);
  const [result, , total] = await client.ask('info');
  t.deepEqual([result, total], [0, 3072 * MIB]);
  t.is((await client.ask(`alloc ${3072 * MIB}`))[0], OUT_OF_MEMORY);
  await client.must(`alloc ${2048 * MIB}`);
  await client.leave();
  await seriesWhen(bed, 'cotenant_container_memory_used_bytes', 'tenant', (bytes) => bytes > 2048 * MIB);
  await remove(whole, 'tenant');
});
