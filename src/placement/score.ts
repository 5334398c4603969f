// Which GPUs of a node, and which of the nodes that can take a pod, are best by the placement policy: what a placement
// costs there, and the scores that kube-scheduler adds up. Pure.
import type { GpuDemand } from '../api/gpu.ts';
import type { ContainerGrant } from '../api/grant-annotation.ts';
import type { Placement } from '../api/request.ts';
import { demandOf } from './demand.ts';
import type { NodeGpu, PlaceableNode } from './node.ts';
import { countReplicas, type ReplicaOf } from './replicas.ts';

/** The smaller the better; `second` decides between equal `first`. */
export type Cost = { readonly first: number; readonly second: number };

/** What the costs of a pod depend on besides its demand. */
export type Preference = {
  readonly placement: Placement;
  /** For `spread`. */
  readonly replicaOf?: ReplicaOf;
};

export const BEST_SCORE = 10;
/** More replicas on a GPU or node than this count as this many. */
const MOST_REPLICAS = 999;

/**
 * Of one GPU, when a container of the pod is put there. `isOpen`: another container of the pod was. Binpack opens no
 * GPU while a share fits on one that has containers, however much larger that one is, and leaves the least memory free;
 * spread avoids replicas of the pod, and leaves the most.
 */
export function costOnGpu(
  gpu: NodeGpu,
  { memoryBytes }: Pick<GpuDemand, 'memoryBytes'>,
  { placement, replicaOf }: Preference,
  isOpen: boolean,
): Cost {
  const left = gpu.usableBytes - gpu.grantedBytes - memoryBytes;
  if (placement !== 'spread') return { first: gpu.tenants === 0 && !isOpen ? 1 : 0, second: left };
  const { owner, labels } = countReplicas(replicaOf, gpu.replicas);
  return { first: inOrder(owner, labels), second: -left };
}

/**
 * Of a node, when a pod is placed like this. Binpack keeps whole GPUs free, then fills the fullest node. Spread shares a
 * GPU with a replica only where every GPU has one, and then a node; replicas by owner weigh more than those by labels;
 * then it takes the emptiest node.
 */
export function costOnNode(
  containers: readonly ContainerGrant[],
  { gpus }: PlaceableNode,
  preference: Preference,
): Cost {
  const { placement, replicaOf } = preference;
  const demand = demandOf(containers);
  const usable = gpus.reduce((total, { usableBytes }) => total + usableBytes, 0);
  const bytes = gpus.reduce(
    (total, { gpuUuid, grantedBytes }) => total + grantedBytes + (demand.get(gpuUuid)?.memoryBytes ?? 0),
    0,
  );
  const granted = usable === 0 ? 1 : bytes / usable;
  const used = gpus.filter(({ gpuUuid }) => demand.has(gpuUuid));
  if (placement !== 'spread') return { first: used.filter(({ tenants }) => tenants === 0).length, second: -granted };
  const replicasOn = (some: readonly NodeGpu[]) =>
    countReplicas(
      replicaOf,
      some.flatMap(({ replicas = [] }) => replicas),
    );
  const [gpu, node] = [replicasOn(used), replicasOn(gpus)];
  return { first: inOrder(gpu.owner, node.owner, gpu.labels, node.labels), second: granted };
}

/** One number that compares like the counts one after the other. */
const inOrder = (...counts: readonly number[]): number =>
  counts.reduce((sum, count) => sum * (MOST_REPLICAS + 1) + Math.min(count, MOST_REPLICAS), 0);

/** Negative: `a` is better. */
export const compareCosts = (a: Cost, b: Cost): number => a.first - b.first || a.second - b.second;

/** Only the best node gets the highest score: kube-scheduler breaks ties at random. */
export function scoreOfRank(rank: number, nodes: number): number {
  return rank === 0 ? BEST_SCORE : Math.floor(((BEST_SCORE - 1) * (nodes - rank)) / nodes);
}
