// The agent as a process beside a real API server, on the way to which four of ten requests go wrong. The test
// stands for the kubelet: it publishes volumes over CSI, again after every failure, runs programs in groups of their
// pods' containers and says in their status what runs. What was to be seen is taken from the API server itself.
import { existsSync, mkdirSync, readdirSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { status } from '@grpc/grpc-js';
import type { CoreV1Event, V1Node, V1Pod } from '@kubernetes/client-node';
import type { ExecutionContext } from 'ava';
import { mountsOf, VOLUME } from '../../src/api/csi-volume.ts';
import { formatPodGrant } from '../../src/api/grant-annotation.ts';
import {
  ACTION_ANNOTATION,
  GPU_MEMORY,
  GPUS_ANNOTATION,
  GRANT_ANNOTATION,
  REQUEST_ANNOTATION,
} from '../../src/api/names.ts';
import { parseNodeGpus } from '../../src/api/node-annotation.ts';
import { formatPodRequest } from '../../src/api/request-annotation.ts';
import { place, podGroup, startHolder, startPodResources } from '../integration/agent/kubelet/kubernetes-inside.ts';
import { random } from '../integration/dashboards/day/fleet.ts';
import { testUnless } from '../support/gate.ts';
import { type SimulatedNode, startNode, temporaryFolder } from '../support/native/node.ts';
import { startAgent } from '../support/product/agent.ts';
import { placeOf, publish, unpublish } from '../support/product/kubelet.ts';
import { BUILD_MS } from '../support/services/helm.ts';
import type { Api } from './bed/api.ts';
import { type LoneApiServer, startLoneApiServer } from './bed/api-server.ts';
import { bedTools } from './bed/bed.ts';
import { eventually } from './bed/eventually.ts';
import { startFaultyProxy } from './support/faulty-proxy.ts';

const tools = bedTools(console.log, false);
const SEED = Number(process.env.COTENANT_SEED ?? 1);
const MIB = 2 ** 20;
const NODE = 'node-a';
/** Of the requests that go wrong. */
const SHARE = 0.4;
const PODS = 30;
/** More come until each kind of fault was there. */
const MOST_PODS = 120;
const KINDS = 7;
/** Pods that are there at a time. */
const MOST = 5;
const PODS_PATH = '/api/v1/namespaces/team/pods';
/** A holder takes 300 MiB and a context. */
const [ENOUGH_MIB, TOO_LITTLE_MIB] = [1024, 200];
/** What a kubelet takes for a failure that passes; the second on a busy machine. */
const MAY_PASS: readonly number[] = [status.UNAVAILABLE, status.DEADLINE_EXCEEDED];
/** Of the agent in all, for each pod: its volume, its Events and watches, with what is tried again. */
const MOST_REQUESTS_PER_POD = 15;
/** Connections and files that come and go. */
const MOST_MORE_FILES = 10;

const reason = !tools.ok ? tools.reason : 'reason' in place ? place.reason : undefined;
testUnless(reason)('with faults in every call an agent loses no pod, no action and no Event', async (t) => {
  t.timeout(BUILD_MS);
  if (!tools.ok) return;
  await checkFaults(t, await startLoneApiServer(t, tools));
});

type Running = { readonly name: string; readonly uid: string; readonly pid: number; readonly end: () => Promise<void> };

function podWith(name: string, gpuUuid: string, mib: number): object {
  const bytes = mib * MIB;
  const container = { name: 'main', kind: 'app', memoryIsolation: 'on' } as const;
  return {
    metadata: {
      name,
      annotations: {
        [REQUEST_ANNOTATION]: formatPodRequest({
          priority: 'normal',
          gpuModels: [],
          gpuUuids: [],
          containers: [{ ...container, dialect: 'cotenant', asked: {}, gpus: [{ memory: { kind: 'bytes', bytes } }] }],
        }),
        [GRANT_ANNOTATION]: formatPodGrant({
          epoch: 1,
          containers: [{ ...container, gpus: [{ gpuUuid, memoryBytes: bytes, limitBytes: bytes, coresPercent: 0 }] }],
        }),
      },
    },
    spec: {
      nodeName: NODE,
      automountServiceAccountToken: false,
      volumes: [VOLUME],
      containers: [{ name: 'main', image: 'x', volumeMounts: mountsOf('main') }],
    },
  };
}

/** The part of a kubelet. */
function kubeletOf(t: ExecutionContext, api: Api, root: string, node: SimulatedNode) {
  const kubelet = {
    failures: 0,
    /** Creates the pod, publishes its volume and runs its program. */
    async run(index: number, mib: number): Promise<Running> {
      const name = `p${index}`;
      const { metadata } = await api.must<V1Pod>('POST', PODS_PATH, podWith(name, node.uuid(0), mib));
      const uid = metadata?.uid ?? '';
      const id = index.toString(16).padStart(64, '0');
      mkdirSync(dirname(placeOf(root, uid)), { recursive: true });
      const isPublished = async () => {
        const { code, details } = await publish(root, uid, name);
        if (code === status.OK) return true;
        kubelet.failures += 1;
        t.true(MAY_PASS.includes(code), `${name}: ${code} ${details}`);
        return undefined;
      };
      await eventually(isPublished, `${name} has its volume`);
      const { pid, end } = await startHolder(t, node.lib, podGroup(t, uid, id), 0);
      const main = { name: 'main', containerID: `containerd://${id}`, image: 'x', imageID: 'x' };
      const containerStatuses = [{ ...main, ready: true, restartCount: 0 }];
      await api.must('PATCH', `${PODS_PATH}/${name}/status`, { status: { containerStatuses } });
      return { name, uid, pid: pid ?? 0, end };
    },
    async stop({ name, uid, end }: Running): Promise<void> {
      await end();
      t.is((await unpublish(root, placeOf(root, uid))).code, status.OK);
      await api.must('DELETE', `${PODS_PATH}/${name}?gracePeriodSeconds=0`);
    },
  };
  return kubelet;
}

const isThere = ({ pid }: Running) => existsSync(`/proc/${pid}`);

async function checkFaults(t: ExecutionContext, { api, socket }: LoneApiServer): Promise<void> {
  const next = random(SEED);
  await api.must('POST', '/api/v1/namespaces', { metadata: { name: 'team' } });
  await api.must('POST', '/api/v1/namespaces/team/serviceaccounts', { metadata: { name: 'default' } });
  await api.must('POST', '/api/v1/nodes', { metadata: { name: NODE } });
  const proxy = await startFaultyProxy(t, socket, next);
  const file = join(temporaryFolder(t), 'kubeconfig');
  writeFileSync(file, proxy.config.exportConfig());
  const node = await startNode(t, '--gpu', 'l4');
  const root = temporaryFolder(t);
  proxy.share = SHARE;
  const agent = await startAgent(t, node, {
    env: { KUBECONFIG: file },
    // Its volumes end with it.
    prefix: ['unshare', '--mount', '--propagation', 'private'],
    settings: {
      intervalMs: 100,
      'enforcement.mostStopsPerMinute': MOST_PODS,
      'kubernetes.enabled': true,
      'kubernetes.nodeName': NODE,
      'kubernetes.pods': true,
      'kubernetes.cdiFolders': '',
      'kubernetes.kubeletRoot': root,
      'kubernetes.nriSocket': '',
      'kubernetes.podResources': (await startPodResources(t)).socket,
    },
  });
  const advertised = async () => {
    const { metadata, status: now } = (await api.get<V1Node>(`/api/v1/nodes/${NODE}`)) ?? {};
    const text = metadata?.annotations?.[GPUS_ANNOTATION];
    return text !== undefined && now?.capacity?.[GPU_MEMORY] !== undefined ? parseNodeGpus(text) : undefined;
  };
  await agent.measured(1);
  const atFirst = await eventually(advertised, 'the Node has its GPUs');

  const kubelet = kubeletOf(t, api, root, node);
  const [within, over]: [Running[], Running[]] = [[], []];
  const files = () => readdirSync(`/proc/${agent.child.pid}/fd`).length;
  const filesAtFirst = files();
  let erased = 0;
  let count = 0;
  for (; count < PODS || (proxy.faults.size < KINDS && count < MOST_PODS); count += 1) {
    if (within.length === MOST) {
      const [one] = within.splice(Math.floor(next() * MOST), 1);
      if (!one) throw new Error('there is none');
      t.true(isThere(one), `${one.name} within its grant goes on`);
      await kubelet.stop(one);
    }
    // One of each at least, whatever is drawn.
    const isLast = count === PODS - 1;
    const tooLittle = next() < 0.3 || (isLast && over.length === 0);
    (tooLittle ? over : within).push(await kubelet.run(count, tooLittle ? TOO_LITTLE_MIB : ENOUGH_MIB));
    if (next() < 0.3 || (isLast && erased === 0)) {
      // As another writer of the Node, which does not know the annotation.
      erased += 1;
      await api.must('PATCH', `/api/v1/nodes/${NODE}`, { metadata: { annotations: { [GPUS_ANNOTATION]: null } } });
    }
    await delay(next() * 500);
  }
  await eventually(() => !over.some(isThere) || undefined, 'those beyond their grants are stopped');

  // Still with faults.
  const eventsNow = async () =>
    ((await api.get<{ items: CoreV1Event[] }>('/api/v1/namespaces/team/events'))?.items ?? [])
      .map(
        ({ involvedObject, metadata, count }) =>
          `${involvedObject.name} ${metadata.annotations?.[ACTION_ANNOTATION]} ${count}`,
      )
      .toSorted();
  const wanted = over.flatMap(({ name }) => ['warn', 'kill', 'released'].map((action) => `${name} ${action} 1`));
  const isSaid = async () => (await eventsNow()).length >= wanted.length || undefined;
  await eventually(isSaid, 'each action is an Event of its pod');
  t.deepEqual(await eventsNow(), wanted.toSorted(), 'each once, and none of other pods');
  for (const pod of within) t.true(isThere(pod), `${pod.name} within its grant goes on`);
  await eventually(advertised, 'the Node has its GPUs again');
  t.deepEqual(await advertised(), atFirst);
  const memory = async ({ name }: Running) =>
    agent.metric('cotenant_container_memory_used_bytes', { namespace: 'team', pod: name });
  for (const pod of within) {
    const held = node.usage().clients.find(({ pid }) => pid === pod.pid)?.gpus[0]?.bytes;
    await eventually(async () => (await memory(pod)) === held || undefined, `${pod.name} has its own memory`);
  }

  const faults = [...proxy.faults].map(([kind, times]) => `${kind} ${times}`).join(', ');
  t.log(
    `seed ${SEED}: ${over.length} of ${count} stopped, the Node written anew ${erased} times, ` +
      `${kubelet.failures} volumes tried again; ${proxy.requests} requests: ${faults}`,
  );
  t.is(proxy.faults.size, KINDS, faults);
  t.true(over.length > 0 && erased > 0);
  t.true(proxy.requests <= MOST_REQUESTS_PER_POD * count, `${proxy.requests} requests`);

  proxy.share = 0;
  for (const pod of [...within, ...over]) await kubelet.stop(pod);
  const pods = async () => (await agent.metric('cotenant_container_info')) ?? 0;
  await eventually(async () => (await pods()) === 0 || undefined, 'nothing is left of the pods');
  t.is(await agent.metric('cotenant_device_memory_allocated_bytes'), 0);
  t.log(`${filesAtFirst} open files, then ${files()}`);
  t.true(files() <= filesAtFirst + MOST_MORE_FILES, `${filesAtFirst} open files, then ${files()}`);
  t.is(agent.child.exitCode, null);
}
