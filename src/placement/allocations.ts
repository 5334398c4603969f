// What is allocated on every GPU of the cluster: the nodes' GPUs, what their agents granted themselves, and the grants
// of bound pods, added up. No I/O: the watch and the binder write to it.
import type { GpuDemand } from '../api/gpu.ts';
import type { NodeGpus } from '../api/node-annotation.ts';
import type { Gang } from './gang.ts';
import type { PlaceableNode } from './node.ts';
import type { ReplicaOf } from './replicas.ts';

/** What one bound pod holds. */
export type Allocation = {
  readonly podUid: string;
  readonly nodeName: string;
  /** Of the text that says what it holds; absent: the watch has not shown it. */
  readonly digest?: string;
  /** By UUID of the GPU. */
  readonly demand: ReadonlyMap<string, GpuDemand>;
  readonly replicaOf?: ReplicaOf;
  /** CPU cores that the pod requests. */
  readonly cores?: number;
  /** The group that it belongs to; absent: none. */
  readonly gang?: Gang;
  /** Models that it allows; absent: any. */
  readonly gpuModels?: readonly string[];
  /** For a pod that waits until pods of lower priority have left: more is granted than there is until then. */
  readonly reserved?: boolean;
  /** GPUs that take no new pods because this pod's grant cannot be read, and the clause that says so. */
  readonly blocks?: { readonly gpuUuids: readonly string[]; readonly reason: string };
};

/** A node's GPUs, and how they are chosen. */
type AllocatableNode = NodeGpus & Pick<PlaceableNode, 'placement'>;

export type Allocations = {
  setNode(name: string, gpus: AllocatableNode): void;
  /** Its allocations stay: a node that comes back still has them. */
  removeNode(name: string): void;
  /** What is free of a node's CPU; undefined: unknown. */
  setFreeCores(name: string, cores: number | undefined): void;
  /** Replaces what the pod had. */
  allocate(allocation: Allocation): void;
  release(podUid: string): void;
  allocationOf(podUid: string): Allocation | undefined;
  /** The same object until something changes on the node. */
  placeableNode(nodeName: string): PlaceableNode | undefined;
  all(): Iterable<Allocation>;
  allocationsOn(nodeName: string): Iterable<Allocation>;
  gpusOf(nodeName: string): AllocatableNode | undefined;
  nodeNames(): Iterable<string>;
  /** Grows with each change. */
  readonly version: number;
  /** Nodes that changed since that version; undefined: it is too old. */
  changedSince(version: number): ReadonlySet<string> | undefined;
  readonly nodes: number;
  /** Pods that hold something. */
  readonly pods: number;
};

/** Changes that `changedSince` knows. */
const MOST_CHANGES = 4096;

export function createAllocations(): Allocations {
  const nodes = new Map<string, AllocatableNode>();
  const byPod = new Map<string, Allocation>();
  const byNode = new Map<string, Map<string, Allocation>>();
  const placeable = new Map<string, PlaceableNode>();
  const freeCores = new Map<string, number>();
  const changes: string[] = [];
  let version = 0;
  const changed = (nodeName: string): void => {
    placeable.delete(nodeName);
    changes[version % MOST_CHANGES] = nodeName;
    version += 1;
  };
  const release = (podUid: string): void => {
    const allocation = byPod.get(podUid);
    if (!allocation) return;
    byPod.delete(podUid);
    const onNode = byNode.get(allocation.nodeName);
    onNode?.delete(podUid);
    if (onNode?.size === 0) byNode.delete(allocation.nodeName);
    changed(allocation.nodeName);
  };
  return {
    setNode(name, gpus) {
      nodes.set(name, gpus);
      changed(name);
    },
    removeNode(name) {
      if (nodes.delete(name)) changed(name);
    },
    setFreeCores(name, cores) {
      if (cores === undefined) freeCores.delete(name);
      else freeCores.set(name, cores);
      if (nodes.has(name)) changed(name);
    },
    allocate(allocation) {
      release(allocation.podUid);
      byPod.set(allocation.podUid, allocation);
      const onNode = byNode.get(allocation.nodeName) ?? new Map<string, Allocation>();
      byNode.set(allocation.nodeName, onNode.set(allocation.podUid, allocation));
      changed(allocation.nodeName);
    },
    release,
    allocationOf: (podUid) => byPod.get(podUid),
    placeableNode(nodeName) {
      const known = placeable.get(nodeName);
      const gpus = nodes.get(nodeName);
      if (known || !gpus) return known;
      const cores = freeCores.get(nodeName);
      const added = addUp(gpus, [...(byNode.get(nodeName)?.values() ?? [])]);
      const node = cores === undefined ? added : { ...added, freeCores: cores };
      placeable.set(nodeName, node);
      return node;
    },
    all: () => byPod.values(),
    allocationsOn: (nodeName) => byNode.get(nodeName)?.values() ?? [],
    gpusOf: (nodeName) => nodes.get(nodeName),
    nodeNames: () => nodes.keys(),
    get version() {
      return version;
    },
    changedSince(since) {
      if (version - since > MOST_CHANGES) return undefined;
      const names = new Set<string>();
      for (let at = since; at < version; at += 1) names.add(changes[at % MOST_CHANGES] ?? '');
      return names;
    },
    get nodes() {
      return nodes.size;
    },
    get pods() {
      return byPod.size;
    },
  };
}

/** For trying out what does not happen. */
export function copyAllocations(allocations: Allocations): Allocations {
  const copy = createAllocations();
  for (const node of allocations.nodeNames()) {
    const gpus = allocations.gpusOf(node);
    if (gpus) copy.setNode(node, gpus);
    copy.setFreeCores(node, allocations.placeableNode(node)?.freeCores);
  }
  for (const one of allocations.all()) copy.allocate(one);
  return copy;
}

function addUp(
  { mostTenantsPerGpu, gpus, placement }: AllocatableNode,
  allocations: readonly Allocation[],
): PlaceableNode {
  return {
    mostTenantsPerGpu,
    ...(placement && { placement }),
    gpus: gpus.map(({ gpuUuid, index, model, usableBytes, links, healthy, fault, unfenced, mode, others }) => {
      const demands = [...(others ? [others] : []), ...allocations.flatMap(({ demand }) => demand.get(gpuUuid) ?? [])];
      // The copy has no spare places, which are most of a list that was filled one by one.
      const replicas = allocations
        .flatMap(({ demand, replicaOf }) => (replicaOf && demand.has(gpuUuid) ? [replicaOf] : []))
        .slice();
      const blocking = allocations.find(({ blocks }) => blocks?.gpuUuids.includes(gpuUuid))?.blocks;
      return {
        gpuUuid,
        model,
        usableBytes,
        healthy,
        grantedBytes: demands.reduce((total, { memoryBytes }) => total + memoryBytes, 0),
        grantedCoresPercent: demands.reduce((total, { coresPercent }) => total + coresPercent, 0),
        tenants: demands.reduce((total, { tenants }) => total + tenants, 0),
        ...(fault !== undefined && { fault }),
        ...(unfenced !== undefined && { unfenced }),
        ...(mode !== undefined && { mode }),
        ...(blocking && { blocked: blocking.reason }),
        ...(replicas.length > 0 && { replicas }),
        ...(links && { links, index }),
      };
    }),
  };
}
