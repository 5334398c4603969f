// A cluster for random histories: nodes with agents, pods and their controllers, and two replicas of the extender, each
// with a kube-scheduler that calls it. Time and API server are the model's own; extender and the agent's check are the
// product.
import { EventEmitter } from 'node:events';
import type { IncomingMessage, RequestListener, ServerResponse } from 'node:http';
import { Readable } from 'node:stream';
import { setTimeout as delay } from 'node:timers/promises';
import type { V1Lease, V1Pod } from '@kubernetes/client-node';
import { type NodeGpu, verifyGrant } from '../../../../src/agent/allocation/verify-grant.ts';
import type { PodGrant } from '../../../../src/api/grant-annotation.ts';
import { parsePodGrant } from '../../../../src/api/grant-annotation.ts';
import { GPUS_ANNOTATION, GRANT_ANNOTATION, REQUEST_ANNOTATION } from '../../../../src/api/names.ts';
import { formatNodeGpus } from '../../../../src/api/node-annotation.ts';
import type { Logger } from '../../../../src/common/logger.ts';
import { MIB } from '../../../../src/common/quantity.ts';
import { demandOf } from '../../../../src/placement/demand.ts';
import type { SchedulerMetrics } from '../../../../src/scheduler/metrics.ts';
import { createExtender } from '../../../../src/scheduler/server.ts';
import { createParts } from '../../../../src/scheduler/start.ts';
import { recordOf, uuid } from '../cluster.ts';
import { createModelApi, type ModelApi, type Random } from './api.ts';
import { virtualTime } from './virtual-time.ts';

export const REPLICAS = ['a', 'b'] as const;
export type ReplicaName = (typeof REPLICAS)[number];
/** MiB of the GPUs of each node. */
export const NODES: Readonly<Record<string, readonly number[]>> = { n1: [1000], n2: [600], n3: [1000, 800] };
export const MOST_TENANTS = 3;
const LEASE = { namespace: 'ns', name: 'l' };
const LEASE_S = 60;
/** How long the chart lets kube-scheduler wait for an answer. */
const EXTENDER_MS = 20_000;

/** What a pod asks for, on each of its GPUs. `isRecreated`: its controller makes another one when it is gone. */
export type Wanted = {
  readonly mib: number;
  readonly cores: number;
  readonly gpus: number;
  readonly isRecreated: boolean;
  readonly gang?: { readonly name: string; readonly size: number };
};

type Counts = { readonly grantedPods: () => number; readonly bindingsInFlight: () => number };
export type Replica = {
  readonly extender: RequestListener;
  readonly counts: Counts;
  readonly close: () => Promise<unknown>;
  /** Resolves when the process ends: kube-scheduler sees its connections end. */
  readonly gone: Promise<Record<string, unknown>>;
  isReady: boolean;
};

const SILENT: Logger = {
  ...{ debug: () => undefined, info: () => undefined, warn: () => undefined, error: () => undefined },
  component: () => SILENT,
};

export function createCluster(random: Random) {
  const api = createModelApi(random);
  const time = virtualTime(api.pump);
  const replicas = new Map<ReplicaName, Replica>();
  let created = 0;

  for (const [index, [name, sizes]] of Object.entries(NODES).entries()) {
    const gpus = sizes.map((mib, gpu) => ({
      ...{ gpuUuid: uuid(index * 10 + gpu), index: gpu, model: 'x', usableBytes: mib * MIB, healthy: true },
    }));
    const annotations = { [GPUS_ANNOTATION]: formatNodeGpus({ mostTenantsPerGpu: MOST_TENANTS, gpus }) };
    api.put('nodes', { metadata: { name, annotations } });
  }
  for (const name of REPLICAS)
    api.put('pods', { metadata: { namespace: 'ns', name, uid: name }, spec: { nodeName: 'm', containers: [] } });

  const startReplica = (name: ReplicaName): void => {
    replicas.set(name, openReplica(api, name));
  };
  const create = (wanted: Wanted): string => {
    created += 1;
    const name = `p${created}`;
    api.put('pods', podOf(name, wanted, time.date));
    return name;
  };
  return {
    ...{ api, time, replicas, random, startReplica, create, agents: createAgents(api) },
    lead(holder: ReplicaName, transitions: number) {
      const renewTime = time.date.toISOString() as unknown as NonNullable<V1Lease['spec']>['renewTime'];
      const spec = { holderIdentity: `${holder}_1`, leaseTransitions: transitions, leaseDurationSeconds: LEASE_S };
      api.put('leases', { metadata: { ...LEASE, uid: 'lease' }, spec: { ...spec, renewTime } } as V1Lease);
    },
    /** The process ends without notice, and another one starts. */
    async restart(name: ReplicaName): Promise<void> {
      const before = replicas.get(name);
      replicas.delete(name);
      if (before) {
        const closing = before.close();
        api.abandon(name);
        await time.until(closing);
      }
      startReplica(name);
    },
    async close(): Promise<void> {
      await time.until(Promise.all([...replicas.values()].map((one) => one.close())));
    },
  };
}

export type Cluster = ReturnType<typeof createCluster>;

function podOf(name: string, { mib, cores, gpus, isRecreated, gang }: Wanted, created: Date): V1Pod {
  const share = { memory: { kind: 'bytes' as const, bytes: mib * MIB }, ...(cores > 0 && { coresPercent: cores }) };
  const container = { name: 'main', kind: 'app' as const, dialect: 'cotenant' as const, asked: {} };
  const containers = [{ ...container, memoryIsolation: 'on' as const, gpus: Array(gpus).fill(share) }];
  const labels: Record<string, string> = gang
    ? {
        'pod-group.scheduling.sigs.k8s.io/name': gang.name,
        'pod-group.scheduling.sigs.k8s.io/min-available': String(gang.size),
      }
    : {};
  const owner = { apiVersion: 'apps/v1', kind: 'ReplicaSet', name: 'r', uid: 'r', controller: true };
  const metadata = {
    ...{ namespace: 'team', name, uid: `uid-${name}`, labels, creationTimestamp: created },
    annotations: { [REQUEST_ANNOTATION]: recordOf(mib, { containers }) },
    ...(isRecreated && { ownerReferences: [owner] }),
  };
  return { metadata, spec: { containers: [] }, status: { phase: 'Pending' } };
}

function openReplica(api: ModelApi, name: ReplicaName): Replica {
  let counts: Counts = { grantedPods: () => 0, bindingsInFlight: () => 0 };
  const metrics = {
    ...{ observe: () => undefined, watchProblem: () => undefined, eviction: () => undefined },
    ...{ memoryChange: () => undefined, addState: (state: Counts) => (counts = state) },
  } as unknown as SchedulerMetrics;
  const parts = createParts(
    {
      ...{ config: api.configOf(name), host: '127.0.0.1', port: 0, lease: LEASE, leaseHolder: 'sidecar' },
      ...{ hostname: name, placement: 'binpack', mostNodes: 1, evictOvercommittedAfterMs: 15_000, logger: SILENT },
    },
    metrics,
  );
  const { leadership, cluster, evictor, resizer, closeWatches, ...deciding } = parts;
  const { promise: gone, resolve: end } = Promise.withResolvers<Record<string, unknown>>();
  const replica: Replica = {
    extender: createExtender({
      ...{ ...deciding, metrics, logger: SILENT },
      notReadyReason: () => (replica.isReady ? undefined : 'nodes and pods were not listed yet'),
    }),
    counts,
    gone,
    isReady: false,
    close() {
      replica.isReady = false;
      end({ Error: 'the connection ended' });
      deciding.binder.close();
      return Promise.all([evictor.close(), resizer.close(), leadership.close(), cluster.close(), closeWatches()]);
    },
  };
  void cluster.ready.then(() => {
    replica.isReady = true;
    evictor.start();
    resizer.start();
  });
  return replica;
}

/** As over HTTP. */
function callExtender({ extender, gone }: Replica, url: string, body: object): Promise<Record<string, unknown>> {
  const late = delay(EXTENDER_MS, { Error: 'no answer in time' });
  const answered = new Promise<Record<string, unknown>>((resolve) => {
    const request = Readable.from([Buffer.from(JSON.stringify(body))]);
    const end = (text: string) => resolve(JSON.parse(text) as Record<string, unknown>);
    const response = Object.assign(new EventEmitter(), {
      ...{ headersSent: false, setHeader: () => undefined, writeHead: () => undefined, end },
    });
    Object.assign(request, { url, method: 'POST', headers: {} });
    extender(request as unknown as IncomingMessage as never, response as unknown as ServerResponse as never);
  });
  return Promise.race([answered, gone, late]);
}

/** What kube-scheduler does with one pod: the node that it was bound to, or undefined. */
export async function schedule(
  { api, replicas }: Cluster,
  name: ReplicaName,
  key: string,
): Promise<string | undefined> {
  const replica = replicas.get(name);
  const pod = api.get<V1Pod>('pods', key);
  if (!replica || !pod) return undefined;
  const asked = { Pod: pod, NodeNames: Object.keys(NODES) };
  const { NodeNames = [] } = await callExtender(replica, '/filter', asked);
  const feasible = NodeNames as readonly string[];
  if (feasible.length === 0) return undefined;
  const scores = (await callExtender(replica, '/prioritize', { ...asked, NodeNames: feasible })) as unknown as {
    Host: string;
    Score: number;
  }[];
  if (!Array.isArray(scores)) return undefined;
  const best = scores.reduce((a, b) => (b.Score > a.Score ? b : a));
  const { namespace, name: podName, uid } = pod.metadata ?? {};
  const binding = { PodName: podName, PodNamespace: namespace, PodUID: uid, Node: best.Host };
  const { Error: problem } = await callExtender(replica, '/bind', binding);
  return problem === undefined ? best.Host : undefined;
}

export const grantOf = (pod: V1Pod): PodGrant | undefined => {
  const read = parsePodGrant(pod.metadata?.annotations?.[GRANT_ANNOTATION] ?? '');
  return read.ok ? read.value : undefined;
};
export const isBound = (pod: V1Pod): boolean =>
  pod.metadata?.namespace === 'team' && !!pod.spec?.nodeName && pod.status?.phase !== 'Succeeded';

export type Used = { memoryBytes: number; coresPercent: number; tenants: number };

/** What these pods hold, by GPU. */
export function usedBy(pods: Iterable<V1Pod>): ReadonlyMap<string, Used> {
  const used = new Map<string, Used>();
  for (const pod of pods)
    for (const [gpu, demand] of demandOf(grantOf(pod)?.containers ?? [])) {
      const one = used.get(gpu) ?? { memoryBytes: 0, coresPercent: 0, tenants: 0 };
      used.set(gpu, {
        memoryBytes: one.memoryBytes + demand.memoryBytes,
        coresPercent: one.coresPercent + demand.coresPercent,
        tenants: one.tenants + demand.tenants,
      });
    }
  return used;
}

export const gpusOf = (node: string): readonly { readonly uuid: string; readonly bytes: number }[] =>
  (NODES[node] ?? []).map((mib, gpu) => ({
    ...{ uuid: uuid(Object.keys(NODES).indexOf(node) * 10 + gpu), bytes: mib * MIB },
  }));

/** The agents and kubelets of all nodes: which pods were accepted and run. */
function createAgents(api: ModelApi) {
  /** By key: UID of the pod. */
  const running = new Map<string, string>();
  const runningPods = (): V1Pod[] => [...running.keys()].flatMap((key) => api.pods.get(key) ?? []);
  return {
    running,
    runningPods,
    /** The pod's volume is published, if its grant is right and fits beside what runs; else why not. */
    admit(key: string): string | undefined {
      const pod = api.get<V1Pod>('pods', key);
      if (!pod || running.has(key) || !isBound(pod) || pod.metadata?.deletionTimestamp) return undefined;
      const used = usedBy(runningPods());
      const gpus = gpusOf(pod.spec?.nodeName ?? '').map(
        (gpu): NodeGpu => ({
          ...{ gpuUuid: gpu.uuid, usableBytes: gpu.bytes, healthy: true },
          granted: used.get(gpu.uuid) ?? { memoryBytes: 0, coresPercent: 0, tenants: 0 },
        }),
      );
      const ruling = verifyGrant(pod.metadata?.annotations, gpus);
      if (!ruling.ok) return ruling.later ? undefined : ruling.why;
      running.set(key, pod.metadata?.uid ?? '');
      const state = { running: {} };
      const containerStatuses = [{ name: 'main', state }] as NonNullable<V1Pod['status']>['containerStatuses'];
      api.put('pods', { ...pod, status: { phase: 'Running', containerStatuses } } as V1Pod);
      return undefined;
    },
    /** It ends by itself. */
    finish(key: string): void {
      const pod = api.get<V1Pod>('pods', key);
      if (!pod || !running.delete(key)) return;
      api.put('pods', { ...pod, status: { ...pod.status, phase: 'Succeeded' } });
    },
    /** The kubelet ends a pod that is being deleted, and removes it. */
    reap(key: string): V1Pod | undefined {
      const pod = api.get<V1Pod>('pods', key);
      if (!pod?.metadata?.deletionTimestamp) return undefined;
      running.delete(key);
      api.remove('pods', key);
      return pod;
    },
    delete(key: string): void {
      const pod = api.get<V1Pod>('pods', key);
      if (!pod) return;
      api.put('pods', { ...pod, metadata: { ...pod.metadata, deletionTimestamp: new Date(0) } });
    },
  };
}
