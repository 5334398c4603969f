// GPUs, grants and use of a cluster, computed from its Nodes, pods and metrics. Pure. Decides which pod counts on which
// GPU; ../output/cluster-table.ts prints the result.

import type { GpuDemand, GpuMode } from '../../api/gpu.ts';
import { type PodGrant, parsePodGrant } from '../../api/grant-annotation.ts';
import { GPUS_ANNOTATION, GRANT_ANNOTATION, REQUEST_ANNOTATION } from '../../api/names.ts';
import { parseNodeGpus } from '../../api/node-annotation.ts';
import type { ContainerKind, MemoryIsolation, Mode } from '../../api/request.ts';
import { parsePodRequest } from '../../api/request-annotation.ts';
import { demandOf } from '../../placement/demand.ts';
import type { EffectiveMode } from '../../policy/mode.ts';
import { given } from '../../request/rules/namespace-rules.ts';
import { askedByPod, mib } from '../lib/text.ts';
import { modeOf } from './modes.ts';
import { conditionOf, hasEnded, type Node, nameOf, type Pod, statusesOf } from './objects.ts';
import { type ContainerUse, type GoneHolder, type Use, useOn } from './use.ts';

/** Objects that were read from a cluster. `nodes` undefined: the user may not read nodes. */
export type ClusterObjects = {
  readonly nodes: readonly Node[] | undefined;
  readonly pods: readonly Pod[];
  /** By the node's name. */
  readonly use: ReadonlyMap<string, Use>;
  /** What could not be read, a sentence each. */
  readonly notes: readonly string[];
};

export type Tenant = {
  readonly namespace: string;
  readonly pod: string;
  readonly container: string;
  readonly kind: ContainerKind;
  /** running, starting, ending, ended, or why it waits. */
  readonly state: string;
  readonly memoryBytes: number;
  readonly limitBytes: number;
  readonly coresPercent: number;
  readonly memoryIsolation: MemoryIsolation;
  readonly usedBytes?: number;
  readonly smRatio?: number;
  readonly fence?: string;
  /** What the node's agent does when it is over, and the source of that mode; absent: the agent does not answer. */
  readonly enforcement?: EffectiveMode;
};

export type InventoryGpu = {
  readonly gpuUuid: string;
  /** Absent if the GPU is known only from a grant. */
  readonly index?: number;
  readonly model?: string;
  readonly usableBytes?: number;
  readonly healthy?: boolean;
  /** Absent: it is shared, or not known. */
  readonly mode?: GpuMode;
  /** Why the GPU is not healthy, if the agent reports a reason. */
  readonly fault?: string;
  readonly grantedBytes: number;
  readonly grantedCoresPercent: number;
  readonly tenants: number;
  /** Part of these sums: granted by the node's agent beyond the annotations. */
  readonly others?: GpuDemand;
  readonly usedBytes?: number;
  readonly containers: readonly Tenant[];
  /** Use without a grant. */
  readonly foreign: readonly ContainerUse[];
  /** Holders of grants that the agent made by pods which are gone; part of `others`. */
  readonly ofGonePods: readonly GoneHolder[];
};

export type InventoryNode = {
  readonly name: string;
  readonly ready?: boolean;
  readonly mostTenantsPerGpu?: number;
  /** The node's enforcement mode, an upper bound; absent: its agent does not answer. */
  readonly mode?: Mode;
  readonly use: 'known' | Extract<Use, { known: false }>['short'];
  readonly gpus: readonly InventoryGpu[];
  /** Memory that new containers can get: in all, and as one share. */
  readonly free: { readonly bytes: number; readonly largestBytes: number };
};

type PendingPod = {
  readonly namespace: string;
  readonly pod: string;
  readonly createdAt?: string;
  readonly asks: string;
  readonly scheduler?: string;
};

export type Inventory = {
  readonly nodes: readonly InventoryNode[];
  readonly pending: readonly PendingPod[];
  readonly totals: {
    readonly nodes: number;
    readonly gpus: number;
    readonly grantedBytes: number;
    readonly usableBytes: number;
    /** Containers with a grant. */
    readonly containers: number;
  };
  readonly notes: readonly string[];
};

type Granted = { readonly pod: Pod; readonly grant: PodGrant };

/** `shown` selects the pods that are listed; sums are over all pods. */
export function inventoryOf(objects: ClusterObjects, shown?: string): Inventory {
  const notes = [...objects.notes];
  const byNode = new Map<string, Granted[]>();
  for (const pod of objects.pods) {
    const text = pod.metadata.annotations?.[GRANT_ANNOTATION];
    const nodeName = pod.spec.nodeName ?? '';
    if (text === undefined || nodeName === '' || hasEnded(pod)) continue;
    const grant = parsePodGrant(text);
    if (!grant.ok) notes.push(`The grant of ${nameOf(pod)} cannot be read, and is not counted: ${grant.error}.`);
    else byNode.set(nodeName, [...(byNode.get(nodeName) ?? []), { pod, grant: grant.value }]);
  }
  const known = new Map((objects.nodes ?? []).map((node) => [node.metadata.name, node]));
  const names = [...known.values()]
    .filter((node) => node.metadata.annotations?.[GPUS_ANNOTATION] !== undefined)
    .map((node) => node.metadata.name);
  const nodes = [...new Set([...names, ...byNode.keys()])]
    .toSorted((a, b) => a.localeCompare(b, 'en', { numeric: true }))
    .map((name) => {
      const read = { name, node: known.get(name), granted: byNode.get(name) ?? [], use: objects.use.get(name) };
      return nodeOf(read, notes, shown);
    });
  const gpus = nodes.flatMap((node) => node.gpus);
  const sum = (pick: (gpu: InventoryGpu) => number) => gpus.reduce((total, gpu) => total + pick(gpu), 0);
  return {
    nodes,
    pending: pendingOf(objects.pods, notes).filter(({ namespace }) => shown === undefined || namespace === shown),
    totals: {
      nodes: nodes.length,
      gpus: gpus.length,
      grantedBytes: sum((gpu) => gpu.grantedBytes),
      usableBytes: sum((gpu) => gpu.usableBytes ?? 0),
      containers: [...byNode.values()].flat().reduce((total, { grant }) => total + grant.containers.length, 0),
    },
    notes,
  };
}

/** What was read of one node. */
type NodeRead = {
  readonly name: string;
  readonly node: Node | undefined;
  readonly granted: readonly Granted[];
  readonly use: Use | undefined;
};

function nodeOf({ name, node, granted, use }: NodeRead, notes: string[], shown: string | undefined): InventoryNode {
  const text = node?.metadata.annotations?.[GPUS_ANNOTATION];
  const parsed = text === undefined ? undefined : parseNodeGpus(text);
  if (parsed?.ok === false) notes.push(`The GPUs of node ${name} cannot be read: ${parsed.error}.`);
  if (node && text === undefined) notes.push(`Node ${name} has grants, but reports no GPUs.`);
  const list = parsed?.ok ? parsed.value : undefined;
  if (use === undefined) notes.push(`No agent runs on node ${name}.`);
  // Missing rights or an unknown namespace concern all nodes, and have one note.
  else if (!use.known && !['forbidden', 'not asked'].includes(use.short))
    notes.push(`Use on node ${name} is not known: ${use.why}.`);
  const needs = granted.map(({ grant }) => demandOf(grant.containers));
  const uuids = new Set([
    ...(list?.gpus ?? []).map((gpu) => gpu.gpuUuid),
    ...needs.flatMap((need) => [...need.keys()]),
  ]);
  const gpus = [...uuids].map((gpuUuid): InventoryGpu => {
    const { index, model, usableBytes, healthy, fault, mode, others } =
      list?.gpus.find((gpu) => gpu.gpuUuid === gpuUuid) ?? {};
    if (list && index === undefined) notes.push(`Node ${name} has grants on ${gpuUuid}, which is not one of its GPUs.`);
    const isShown = (one: ContainerUse) => one.gpuUuid === gpuUuid && (shown === undefined || one.namespace === shown);
    const of = [...(others ? [others] : []), ...needs.flatMap((need) => need.get(gpuUuid) ?? [])];
    return {
      gpuUuid,
      ...given({ index, model, usableBytes, healthy, fault, mode, others }),
      grantedBytes: of.reduce((total, need) => total + need.memoryBytes, 0),
      grantedCoresPercent: of.reduce((total, need) => total + need.coresPercent, 0),
      tenants: of.reduce((total, need) => total + need.tenants, 0),
      ...given({ usedBytes: use?.known ? use.gpus.get(gpuUuid) : undefined }),
      containers: granted
        .filter(({ pod }) => shown === undefined || pod.metadata.namespace === shown)
        .flatMap((one) => tenantsOf(one, gpuUuid, use)),
      foreign: use?.known ? use.foreign.filter(isShown) : [],
      ofGonePods: use?.known ? use.ofGonePods.filter(isShown) : [],
    };
  });
  const ready = node && conditionOf(node, 'Ready');
  return {
    name,
    ...given({
      ready: ready && ready.status === 'True',
      mostTenantsPerGpu: list?.mostTenantsPerGpu,
      mode: use?.known ? use.mode : undefined,
    }),
    use: use === undefined ? 'no agent' : use.known ? 'known' : use.short,
    gpus: gpus.toSorted((a, b) => (a.index ?? 1000) - (b.index ?? 1000)),
    free: freeOn(gpus, list?.mostTenantsPerGpu ?? 0),
  };
}

function freeOn(gpus: readonly InventoryGpu[], mostTenantsPerGpu: number): InventoryNode['free'] {
  const bytes = gpus
    .filter(({ healthy, fault, mode }) => healthy && (fault ?? mode) === undefined)
    .filter(({ tenants }) => tenants < mostTenantsPerGpu)
    .map(({ usableBytes = 0, grantedBytes }) => Math.max(0, usableBytes - grantedBytes));
  return { bytes: bytes.reduce((sum, one) => sum + one, 0), largestBytes: Math.max(0, ...bytes) };
}

const MOST_NODES = 3;

/** The nodes with the largest free shares, in a sentence: what a request would have to fit into. */
export function largestFree(free: readonly Pick<InventoryNode, 'name' | 'free'>[] = []): readonly string[] {
  const nodes = free.filter((node) => node.free.bytes > 0);
  const largest = nodes.toSorted((a, b) => b.free.largestBytes - a.free.largestBytes).slice(0, MOST_NODES);
  if (largest.length === 0) return free.length > 0 ? ['No node has GPU memory free.'] : [];
  const texts = largest.map(({ name, free: { bytes, largestBytes } }) => {
    const elsewhere = bytes > largestBytes ? ` (of ${mib(bytes)} free there)` : '';
    return `${mib(largestBytes)} on node ${name}${elsewhere}`;
  });
  const more = nodes.length - largest.length;
  return [`Largest free shares: ${texts.join(', ')}${more > 0 ? `, less on ${more} more` : ''}.`];
}

function tenantsOf({ pod, grant }: Granted, gpuUuid: string, use: Use | undefined): Tenant[] {
  const { namespace = '', name } = pod.metadata;
  return grant.containers.flatMap((container) => {
    const gpu = container.gpus.find((one) => one.gpuUuid === gpuUuid);
    if (!gpu) return [];
    const of = { namespace, pod: name, container: container.name };
    const seen = useOn(use, { ...of, gpuUuid });
    return {
      ...of,
      kind: container.kind,
      state: stateOf(pod, container.name),
      memoryBytes: gpu.memoryBytes,
      limitBytes: gpu.limitBytes,
      coresPercent: gpu.coresPercent,
      memoryIsolation: container.memoryIsolation,
      ...given({
        usedBytes: seen?.usedBytes,
        smRatio: seen?.smRatio,
        fence: seen?.fence,
        enforcement: use?.known ? modeOf(use, of, pod.metadata.annotations) : undefined,
      }),
    };
  });
}

function stateOf(pod: Pod, container: string): string {
  if (pod.metadata.deletionTimestamp !== undefined) return 'ending';
  const state = statusesOf(pod).find(({ name }) => name === container)?.state;
  if (state?.running) return 'running';
  if (state?.terminated) return 'ended';
  const reason = state?.waiting?.reason;
  return reason === undefined || reason === 'ContainerCreating' || reason === 'PodInitializing' ? 'starting' : reason;
}

function pendingOf(pods: readonly Pod[], notes: string[]): PendingPod[] {
  return pods.flatMap((pod) => {
    const text = pod.metadata.annotations?.[REQUEST_ANNOTATION];
    if (text === undefined || pod.spec.nodeName || hasEnded(pod)) return [];
    const request = parsePodRequest(text);
    if (!request.ok) notes.push(`What ${nameOf(pod)} asks for cannot be read: ${request.error[0]?.wrong ?? ''}.`);
    const { namespace = '', name, creationTimestamp } = pod.metadata;
    return {
      namespace,
      pod: name,
      asks: request.ok ? askedByPod(request.value) : 'not known',
      ...given({ createdAt: creationTimestamp, scheduler: conditionOf(pod, 'PodScheduled')?.message }),
    };
  });
}
