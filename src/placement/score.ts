// Which GPUs of a node, and which of the nodes that can take a pod, are best by the placement policy: what a placement
// costs there, and the scores that kube-scheduler adds up. Pure.
import type { GpuDemand } from '../api/gpu.ts';
import type { ContainerGrant } from '../api/grant-annotation.ts';
import { MOST_LEVEL } from '../api/node-annotation.ts';
import type { Placement } from '../api/request.ts';
import { MIB } from '../common/quantity.ts';
import { demandOf } from './demand.ts';
import type { Fragmentation } from './fragmentation.ts';
import { type NodeGpu, type PlaceableNode, worstLevel } from './node.ts';
import { countReplicas, type ReplicaOf } from './replicas.ts';

/** The smaller the better; `second` decides between equal `first`. */
export type Cost = { readonly first: number; readonly second: number };

/** What the costs of a pod depend on besides its demand. */
export type Preference = {
  readonly placement: Placement;
  /** For `spread`. */
  readonly replicaOf?: ReplicaOf;
  /** For `fragmentation`; absent: it places like binpack. */
  readonly loss?: Loss;
};

/** What it costs the node when these GPUs, by UUID, are left with so much free, in thousandths. */
type Loss = (left: ReadonlyMap<string, number>) => number;

export const BEST_SCORE = 10;
/** More memory than any GPU has: bytes over it decide between equal MiB. */
const MOST_BYTES = 2 ** 45;
/** More replicas on a GPU or node than this count as this many. */
const MOST_REPLICAS = 999;

/**
 * Of one GPU, when a container of the pod is put there. `isOpen`: another container of the pod was. Binpack opens no
 * GPU while a share fits on one that has containers, however much larger that one is, and leaves the least room;
 * spread avoids replicas of the pod, and leaves the most; fragmentation loses least of what is free for other pods;
 * topology, of GPUs that reach one another equally well (topology.ts), is as binpack. Memory on a GPU whose compute is
 * granted counts as little as compute without memory: most pods can use neither.
 */
export function costOnGpu(
  gpu: NodeGpu,
  demand: Omit<GpuDemand, 'tenants'>,
  { placement, replicaOf, loss }: Preference,
  isOpen: boolean,
): Cost {
  const left =
    Math.floor(roomBytes(gpu, demand) / MIB) + (gpu.usableBytes - gpu.grantedBytes - demand.memoryBytes) / MOST_BYTES;
  if (loss) return { first: loss(new Map([[gpu.gpuUuid, freeMilli(gpu, demand)]])), second: left };
  if (placement !== 'spread') return { first: opens(gpu) && !isOpen ? 1 : 0, second: left };
  const { owner, labels } = countReplicas(replicaOf, [gpu]);
  return { first: inOrder(owner, labels), second: opens(gpu) ? -left : -left - 1 };
}

/** Whether the first container on it takes room from shares; an exclusive GPU has none for them. */
const opens = ({ tenants, mode }: NodeGpu): boolean => tenants === 0 && mode !== 'exclusive';

/**
 * Of a node, when a pod is placed like this. Binpack keeps whole GPUs free, then fills the fullest node. Spread shares a
 * GPU with a replica only where every GPU has one, and then a node; replicas by owner weigh more than those by labels;
 * then it takes the emptiest node. Topology takes the node whose GPUs of a container reach one another best, then is as
 * binpack.
 */
export function costOnNode(
  containers: readonly ContainerGrant[],
  { gpus }: PlaceableNode,
  preference: Preference,
): Cost {
  const { placement, replicaOf, loss } = preference;
  const demand = demandOf(containers);
  const usable = gpus.reduce((total, { usableBytes }) => total + usableBytes, 0);
  const room = gpus.reduce((total, gpu) => total + roomBytes(gpu, demand.get(gpu.gpuUuid)), 0);
  const granted = usable === 0 ? 1 : (usable - room) / usable;
  const used = gpus.filter(({ gpuUuid }) => demand.has(gpuUuid));
  if (loss) {
    const left = new Map(used.map((gpu) => [gpu.gpuUuid, freeMilli(gpu, demand.get(gpu.gpuUuid))]));
    // Equal nodes, but for rounding, are taken in a fixed order: to fill one after the other loses least.
    return { first: Math.round(loss(left) * 1e6) / 1e6, second: 0 };
  }
  const opened = used.filter(opens).length;
  if (placement === 'topology') {
    const worst = containers.map((one) => worstLevel(gpusOf(one, used)) ?? MOST_LEVEL);
    return { first: inOrder(MOST_LEVEL - Math.min(...worst), opened), second: -granted };
  }
  if (placement !== 'spread') return { first: opened, second: -granted };
  const [gpu, node] = [countReplicas(replicaOf, used), countReplicas(replicaOf, gpus)];
  return { first: inOrder(gpu.owner, node.owner, gpu.labels, node.labels), second: granted };
}

const gpusOf = ({ gpus }: ContainerGrant, among: readonly NodeGpu[]) =>
  among.filter(({ gpuUuid }) => gpus.some((granted) => granted.gpuUuid === gpuUuid));

/** What is left of a GPU for pods that ask for memory and compute: of its memory as much as it has of both. */
function roomBytes(gpu: NodeGpu, demand?: Omit<GpuDemand, 'tenants'>): number {
  const { usableBytes, grantedBytes, grantedCoresPercent } = gpu;
  const memory = usableBytes - grantedBytes - (demand?.memoryBytes ?? 0);
  const compute = (usableBytes / 100) * (100 - grantedCoresPercent - (demand?.coresPercent ?? 0));
  return Math.max(0, Math.min(memory, compute));
}

/** What a GPU has free, of memory or of compute, whichever is less, once this is granted, too. */
function freeMilli(gpu: NodeGpu, demand?: Omit<GpuDemand, 'tenants'>): number {
  const { healthy, fault, unfenced, mode, blocked, usableBytes, grantedBytes, grantedCoresPercent } = gpu;
  if (!healthy || (fault ?? unfenced ?? mode ?? blocked) !== undefined || usableBytes === 0) return 0;
  const memory = (1000 * (usableBytes - grantedBytes - (demand?.memoryBytes ?? 0))) / usableBytes;
  const compute = 10 * (100 - grantedCoresPercent - (demand?.coresPercent ?? 0));
  return Math.max(0, Math.floor(Math.min(memory, compute)));
}

/** For `fragmentation`: by what a node's free parts are worth before and after. */
export function lossOn({ gpus, freeCores }: PlaceableNode, cores: number, worth: Fragmentation): Loss {
  const model = gpus[0]?.model.toLowerCase() ?? '';
  const free = gpus.map((gpu) => freeMilli(gpu));
  const node = { model, free, cores: freeCores };
  const before = worth.valueOf(node) + worth.costOfUse(node);
  const leftCores = freeCores === undefined ? undefined : freeCores - cores;
  const lossOf = (left: ReadonlyMap<string, number>): number => {
    const after = gpus.map(({ gpuUuid }, at) => left.get(gpuUuid) ?? free[at] ?? 0);
    return before - worth.valueOf({ model, free: after, cores: leftCores });
  };
  const index = new Map(gpus.map(({ gpuUuid }, at) => [gpuUuid, at]));
  /** Of one GPU, by what it has free before and after: many GPUs of a node are alike. */
  const known = new Map<number, number>();
  return (left) => {
    const [only, ...more] = left;
    if (!only || more.length > 0) return lossOf(left);
    const key = (free[index.get(only[0]) ?? 0] ?? 0) * 2048 + only[1];
    const loss = known.get(key) ?? lossOf(left);
    known.set(key, loss);
    return loss;
  };
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
