// A stand-in for the API server of a large cluster: lists nodes and pods page by page, watches with bookmarks and
// resource versions, one Lease, bindings. Objects are made from their number when they are sent, so that it needs
// little memory itself. What a real API server does with each call is seen in test/cluster.
import type { ServerResponse } from 'node:http';
import { setTimeout as delay } from 'node:timers/promises';
import type { KubeConfig, V1Binding, V1Lease, V1Pod } from '@kubernetes/client-node';
import { formatPodGrant } from '../../../src/api/grant-annotation.ts';
import { formatNodeGpus } from '../../../src/api/node-annotation.ts';
import { GIB } from '../../../src/common/quantity.ts';
import type { Teardown } from '../native/node.ts';
import { type Asked, answer, refuse, startApiServer } from './api-server.ts';

export const GPUS_PER_NODE = 8;
export const GPU_BYTES = 80 * GIB;

export type StandInOptions = {
  readonly nodes: number;
  /** Bound ones, of which the first `shares` hold a grant of one GPU each. */
  readonly pods: number;
  readonly shares: number;
  /** Of a pod's JSON, whose annotations are as long as needed. A usual pod has 7 kB. */
  readonly podBytes?: number;
  readonly containers?: number;
  /** How long each answer waits. */
  readonly slowMs?: number;
};

export type StandIn = {
  readonly config: KubeConfig;
  /** By verb and resource: `list pods`. */
  readonly requests: ReadonlyMap<string, number>;
  readonly bindings: readonly V1Binding[];
  readonly connections: number;
  /** Watches that are open now. */
  readonly watched: number;
  nodeName(index: number): string;
  /** One pod starts, changes or is deleted and replaced, and all watches see it. */
  churn(): void;
  /** Deletes a pod that was bound here. */
  removeBound(name: string): void;
  /** Deletes a pod at once, as with `--force --grace-period=0`. */
  forceDelete(index: number): void;
  /** The node's conditions and labels change, as its kubelet and others write them; its GPUs do not. */
  flap(index: number): void;
  /** The Node is deleted, and created again. */
  replaceNode(index: number): void;
  bookmark(): void;
  /** From now on no pod can be changed, as where the extender may not write to its own. */
  refusePatches(): void;
  /** Ends all watches, takes no request for so long, and then has none of the changes before, as after a restart. */
  restart(awayMs: number): Promise<void>;
  /** Ends all watches without their last chunk. */
  cutWatches(): void;
};

/** Of the last two there are none. */
type Kind = 'nodes' | 'pods' | 'resourceslices' | 'poddisruptionbudgets';
type Change = { readonly version: number; readonly kind: Kind; readonly text: string; readonly node: string };
type Watch = { readonly response: ServerResponse; readonly kind: Kind; readonly node: string | undefined };

const KEPT_CHANGES = 10_000;
const GRANTED_BYTES = 8 * GIB;

export const gpuUuid = (gpu: number): string => `GPU-00000000-0000-4000-8000-${String(gpu).padStart(12, '0')}`;
const nodeName = (index: number): string => `node-${index}.pool-a.example`;

function nodeText(index: number, version: number, isReady = true): string {
  const gpus = Array.from({ length: GPUS_PER_NODE }, (_, gpu) => ({
    ...{ gpuUuid: gpuUuid(index * GPUS_PER_NODE + gpu), index: gpu, model: 'NVIDIA H100 80GB HBM3' },
    ...{ usableBytes: GPU_BYTES, healthy: true },
  }));
  const images = Array.from({ length: 50 }, (_, image) => ({
    names: [`registry.example/team/image-${image}@sha256:${'0123456789abcdef'.repeat(4)}`],
    sizeBytes: 1e9,
  }));
  return JSON.stringify({
    metadata: {
      name: nodeName(index),
      uid: `node-uid-${index}`,
      resourceVersion: String(version),
      labels: { 'nvidia.com/gpu.present': 'true', ...(!isReady && { 'example.com/out-of-service': String(version) }) },
      annotations: { 'cotenant.io/gpus': formatNodeGpus({ mostTenantsPerGpu: 20, gpus }) },
    },
    status: { images, conditions: [{ type: 'Ready', status: isReady ? 'True' : 'Unknown' }] },
  });
}

export const podUid = (index: number, generation: number): string =>
  `0f${String(generation).padStart(6, '0')}-0000-4000-8000-${String(index).padStart(12, '0')}`;

/** How pods are made from their number and how often they were replaced. */
function podMaker({ nodes, shares, podBytes = 7000, containers = 1 }: StandInOptions) {
  return (index: number, generation: number, version: number): string => {
    const names = Array.from({ length: containers }, (_, at) => `container-${at}`);
    const gpu = {
      gpuUuid: gpuUuid((index % nodes) * GPUS_PER_NODE + (Math.floor(index / nodes) % GPUS_PER_NODE)),
      ...{ memoryBytes: GRANTED_BYTES, limitBytes: GRANTED_BYTES, coresPercent: 10 },
    };
    const granted = names.map((name) => ({ name, kind: 'app', memoryIsolation: 'on', gpus: [gpu] }) as const);
    const grant = index < shares && { 'cotenant.io/grant': formatPodGrant({ epoch: 1, containers: granted }) };
    const status = { started: true, ready: true, restartCount: 0, state: { running: { startedAt: version } } };
    const pod = {
      metadata: {
        name: `workload-${index}-${generation}`,
        namespace: `team-${index % 100}`,
        uid: podUid(index, generation),
        resourceVersion: String(version),
        creationTimestamp: '2026-01-01T00:00:00Z',
        labels: {
          ...{ 'app.kubernetes.io/name': `workload-${index % 1000}`, 'app.kubernetes.io/instance': 'production' },
          'pod-template-hash': '6d4cf56db6',
        },
        ownerReferences: [{ apiVersion: 'apps/v1', kind: 'ReplicaSet', name: 'r', uid: 'u', controller: true }],
        annotations: { ...grant, filler: '' },
      },
      spec: { nodeName: nodeName(index % nodes), containers: names.map((name) => ({ name, image: 'x' })) },
      status: { phase: 'Running', containerStatuses: names.map((name) => ({ name, ...status })) },
    };
    const text = JSON.stringify(pod);
    return text.replace('"filler":""', () => `"filler":"${'x'.repeat(Math.max(0, podBytes - text.length))}"`);
  };
}

/** Serves until the test ends. */
export async function startStandIn(t: Teardown, options: StandInOptions): Promise<StandIn> {
  const { nodes, pods, slowMs = 0 } = options;
  const makePod = podMaker(options);
  let version = 1000;
  /** Of the last change that a watch can no longer continue from. */
  let forgotten = 0;
  let lease: V1Lease | undefined;
  const generations = new Map<number, number>();
  const deleted = new Set<number>();
  /** Pods that were bound here, by name. */
  const bound = new Map<string, { readonly text: string; readonly node: string }>();
  const changes: Change[] = [];
  const watches = new Set<Watch>();
  const requests = new Map<string, number>();
  const bindings: V1Binding[] = [];

  const podText = (index: number) => makePod(index, generations.get(index) ?? 0, version);
  const send = ({ response, kind, node }: Watch, change: Change) => {
    if (change.kind === kind && (node === undefined || node === change.node)) response.write(`${change.text}\n`);
  };
  const emit = (type: string, make: () => string, node: string, kind: Kind = 'pods') => {
    version += 1;
    const change = { version, kind, node, text: `{"type":"${type}","object":${make()}}` };
    changes.push(change);
    if (changes.length > KEPT_CHANGES) forgotten = changes.shift()?.version ?? forgotten;
    for (const watch of watches) send(watch, change);
  };
  const removePod = (index: number) => {
    emit('DELETED', () => podText(index), nodeName(index % nodes));
    deleted.add(index);
  };

  /** Of a list; a node's own where the selector names one. */
  const textsOf = (kind: Kind, node: string | undefined, from: number, limit: number): [string[], number?] => {
    const count = { nodes, pods, resourceslices: 0, poddisruptionbudgets: 0 }[kind];
    const texts: string[] = [];
    let at = from;
    for (; at < count && texts.length < limit; at += 1) {
      if (node !== undefined && nodeName(kind === 'nodes' ? at : at % nodes) !== node) continue;
      if (kind === 'nodes') texts.push(nodeText(at, version));
      else if (!deleted.has(at)) texts.push(podText(at));
    }
    if (at < count) return [texts, at];
    if (kind === 'pods')
      for (const pod of bound.values()) if (node === undefined || pod.node === node) texts.push(pod.text);
    return [texts];
  };

  const list = (kind: Kind, node: string | undefined, { url }: Asked, response: ServerResponse) => {
    const from = Number(url.searchParams.get('continue') ?? 0);
    const limit = Number(url.searchParams.get('limit') ?? Number.POSITIVE_INFINITY);
    const [texts, next] = textsOf(kind, node, from, limit);
    const metadata = { resourceVersion: String(version), ...(next !== undefined && { continue: String(next) }) };
    response.writeHead(200, { 'Content-Type': 'application/json' });
    response.end(`{"kind":"List","metadata":${JSON.stringify(metadata)},"items":[${texts.join(',')}]}`);
  };
  const watch = (kind: Kind, node: string | undefined, { url }: Asked, response: ServerResponse) => {
    const since = Number(url.searchParams.get('resourceVersion') ?? version);
    if (since < forgotten) return refuse(response, 410, 'too old');
    response.writeHead(200, { 'Content-Type': 'application/json' }).flushHeaders();
    const opened = { response, kind, node };
    watches.add(opened);
    response.on('close', () => watches.delete(opened));
    for (const change of changes) if (change.version > since) send(opened, change);
  };
  const writeLease = async ({ method, body }: Asked, response: ServerResponse) => {
    if (method === 'GET') return lease ? answer(response, 200, lease) : refuse(response, 404, 'no such Lease');
    const sent = (await body()) as V1Lease;
    version += 1;
    lease = { ...sent, metadata: { ...sent.metadata, uid: 'lease', resourceVersion: String(version) } };
    return answer(response, 200, lease);
  };
  const bind = async (asked: Asked, response: ServerResponse) => {
    const binding = (await asked.body()) as V1Binding;
    bindings.push(binding);
    const { metadata = {}, target } = binding;
    const object = { metadata, spec: { nodeName: target.name, containers: [] }, status: { phase: 'Pending' } };
    emit(
      'ADDED',
      () => {
        const text = JSON.stringify({ ...object, metadata: { ...metadata, resourceVersion: String(version) } });
        bound.set(metadata.name ?? '', { text, node: target.name ?? '' });
        return text;
      },
      target.name ?? '',
    );
    answer(response, 201, { kind: 'Status', status: 'Success' });
  };

  /** A change of a pod that is not one of the many: the extender's own. */
  const patchOwn = async ({ body }: Asked, response: ServerResponse) => {
    const { metadata } = (await body()) as V1Pod;
    const make = () =>
      JSON.stringify({
        metadata: { ...metadata, name: 'own', uid: 'own', resourceVersion: String(version) },
        spec: { nodeName: nodeName(0), containers: [] },
      });
    emit('MODIFIED', make, nodeName(0));
    answer(response, 200, {});
  };

  let refusesPatches = false;
  let isAway = false;
  const sockets = new Set<unknown>();
  const { config } = await startApiServer(t, async (asked, response) => {
    const { url, method, isWatch } = asked;
    const { socket } = response;
    if (isAway) return response.destroy();
    if (socket && !sockets.has(socket)) {
      sockets.add(socket);
      socket.on('close', () => sockets.delete(socket));
    }
    const kind = /\/(nodes|pods|resourceslices|poddisruptionbudgets)$/.exec(url.pathname)?.[1] as Kind | undefined;
    const selector = url.searchParams.get('fieldSelector') ?? '';
    const asksNominated = selector.includes('nominatedNodeName');
    const named = asksNominated ? 'nominated pods' : (url.pathname.split('/').at(-1) ?? '');
    const resource = /\/leases(\/|$)/.test(url.pathname) ? 'leases' : named;
    const verb = method === 'GET' ? (isWatch ? 'watch' : 'list') : method.toLowerCase();
    requests.set(`${verb} ${resource}`, (requests.get(`${verb} ${resource}`) ?? 0) + 1);
    if (slowMs > 0) await delay(slowMs);
    const node = /^(?:spec\.nodeName|metadata\.name)=([^,]+)$/.exec(selector)?.[1];
    // No pod is nominated: none of them, as there are no disruption budgets.
    if (asksNominated) return (isWatch ? watch : list)('poddisruptionbudgets', undefined, asked, response);
    if (kind && method === 'GET') return (isWatch ? watch : list)(kind, node, asked, response);
    if (resource === 'leases') return writeLease(asked, response);
    if (resource === 'binding') return bind(asked, response);
    if (method === 'PATCH' && /\/pods\/[^/]+$/.test(url.pathname))
      return refusesPatches ? refuse(response, 403, 'pods may not be changed') : patchOwn(asked, response);
    // Events, and whatever else is written; what it does not have.
    return method === 'GET' ? refuse(response, 404, 'not here') : answer(response, 201, {});
  });

  let turn = 0;
  return {
    config,
    requests,
    bindings,
    get connections() {
      return sockets.size;
    },
    get watched() {
      return watches.size;
    },
    nodeName,
    churn() {
      turn += 1;
      const index = (turn * 7919) % pods;
      if (deleted.has(index)) return;
      if (turn % 3 !== 0) return emit('MODIFIED', () => podText(index), nodeName(index % nodes));
      emit('DELETED', () => podText(index), nodeName(index % nodes));
      generations.set(index, (generations.get(index) ?? 0) + 1);
      emit('ADDED', () => podText(index), nodeName(index % nodes));
    },
    removeBound(name) {
      const pod = bound.get(name);
      bound.delete(name);
      if (pod) emit('DELETED', () => pod.text, pod.node);
    },
    forceDelete: removePod,
    flap(index) {
      turn += 1;
      emit('MODIFIED', () => nodeText(index, version, turn % 2 === 0), nodeName(index), 'nodes');
    },
    replaceNode(index) {
      for (const type of ['DELETED', 'ADDED']) emit(type, () => nodeText(index, version), nodeName(index), 'nodes');
    },
    bookmark() {
      version += 1;
      const object = { metadata: { resourceVersion: String(version) } };
      for (const { response } of watches) response.write(`${JSON.stringify({ type: 'BOOKMARK', object })}\n`);
    },
    refusePatches() {
      refusesPatches = true;
    },
    async restart(awayMs) {
      isAway = true;
      for (const { response } of watches) response.destroy();
      await delay(awayMs);
      version += 1;
      forgotten = version;
      changes.length = 0;
      isAway = false;
    },
    cutWatches() {
      for (const { response } of watches) response.destroy();
    },
  };
}
