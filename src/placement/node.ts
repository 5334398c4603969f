// A node as placement sees it. Plain values.
import type { PlaceableGpu } from '../api/gpu.ts';
import { PLACEMENT_ANNOTATION } from '../api/names.ts';
import { PLACEMENTS, type Placement } from '../api/request.ts';
import type { ReplicaOf } from './replicas.ts';

/** `replicas`: of the pods with a grant on the GPU; absent: none is known. */
export type NodeGpu = PlaceableGpu & { readonly replicas?: readonly ReplicaOf[] };

/** A node's GPUs with what is granted on them. */
export type PlaceableNode = {
  readonly mostTenantsPerGpu: number;
  readonly gpus: readonly NodeGpu[];
  /** What no pod requests of its CPU cores; absent: unknown. */
  readonly freeCores?: number;
  /** How its GPUs are chosen for pods that choose nothing; absent: as on other nodes. */
  readonly placement?: Placement;
};

/** ACK's label of a node pool, with two of our values. */
const ACK_PLACEMENT_LABEL = 'ack.node.gpu.placement';

/** What a Node's labels say; a value that is not known says nothing. */
export function placementIn(labels: Readonly<Record<string, string>> = {}): Placement | undefined {
  const named = labels[PLACEMENT_ANNOTATION] ?? labels[ACK_PLACEMENT_LABEL];
  return PLACEMENTS.find((one) => one === named);
}
