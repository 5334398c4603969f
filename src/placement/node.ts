// A node as placement sees it. Plain values.
import type { PlaceableGpu } from '../api/gpu.ts';
import { PLACEMENT_ANNOTATION } from '../api/names.ts';
import { PLACEMENTS, type Placement } from '../api/request.ts';
import type { ReplicaOf } from './replicas.ts';

export type NodeGpu = PlaceableGpu & {
  /** Of the pods with a grant on the GPU; absent: none is known. */
  readonly replicas?: readonly ReplicaOf[];
  /** Levels of the paths to other GPUs, by their `index` (api/node-annotation.ts); absent: unknown. */
  readonly links?: readonly number[];
  readonly index?: number;
};

/** Of the path between two GPUs, as their node advertises it (api/node-annotation.ts); 0: unknown. */
export const levelBetween = (one: NodeGpu, other: NodeGpu): number => one.links?.[other.index ?? -1] ?? 0;

/** Of the worst path between two of them; undefined: there are no two. */
export function worstLevel(gpus: readonly NodeGpu[]): number | undefined {
  const levels = gpus.flatMap((one, at) => gpus.slice(0, at).map((other) => levelBetween(one, other)));
  return levels.length === 0 ? undefined : Math.min(...levels);
}

/** A node's GPUs with what is granted on them. */
export type PlaceableNode = {
  readonly mostTenantsPerGpu: number;
  readonly gpus: readonly NodeGpu[];
  /** What no pod requests of its CPU cores; absent: unknown. */
  readonly freeCores?: number;
  /** How its GPUs are chosen for pods that choose nothing; absent: as on other nodes. */
  readonly placement?: Placement;
};

/** ACK's labels of a node pool: one with two of our values, and one whose mode `topology` is ours. */
const ACK_PLACEMENT_LABEL = 'ack.node.gpu.placement';
const ACK_MODE_LABEL = 'ack.node.gpu.schedule';

/** What a Node's labels say; a value that is not known says nothing. */
export function placementIn(labels: Readonly<Record<string, string>> = {}): Placement | undefined {
  const named = labels[PLACEMENT_ANNOTATION] ?? labels[ACK_PLACEMENT_LABEL];
  return PLACEMENTS.find((one) => one === named) ?? (labels[ACK_MODE_LABEL] === 'topology' ? 'topology' : undefined);
}
