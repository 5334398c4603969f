// A node as placement sees it. Plain values.
import type { PlaceableGpu } from '../api/gpu.ts';
import type { ReplicaOf } from './replicas.ts';

/** `replicas`: of the pods with a grant on the GPU; absent: none is known. */
export type NodeGpu = PlaceableGpu & { readonly replicas?: readonly ReplicaOf[] };

/** A node's GPUs with what is granted on them. */
export type PlaceableNode = {
  readonly mostTenantsPerGpu: number;
  readonly gpus: readonly NodeGpu[];
  /** What no pod requests of its CPU cores; absent: unknown. */
  readonly freeCores?: number;
};
