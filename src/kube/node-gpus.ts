// The GPUs that a Node advertises: those that its agent reads, those that are missing while pods hold grants on them,
// and what the agent granted beyond the annotations of pods.
import { parsePodGrant } from '../api/grant-annotation.ts';
import type { NodeGpus } from '../api/node-annotation.ts';
import { demandOf } from '../placement/demand.ts';
import { type AgentGrant, unscheduledDemand } from '../placement/unscheduled-demand.ts';
import type { HealthState } from '../policy/gpu-health.ts';
import type { FenceState } from '../policy/isolation-check.ts';

/** What the agent of a node knows about its GPUs now. */
export type GpusReading = NodeGpus & {
  /** False: the driver did not answer, and there may be more GPUs. */
  readonly complete: boolean;
  /** NUMA nodes that are near any of the GPUs; absent: unknown of one of them. */
  readonly numaNodes?: readonly number[];
  /** All grants on the node. */
  readonly grants: readonly AgentGrant[];
  /** For the Node's condition; absent: unknown, or not configured. */
  readonly fences?: FenceState | undefined;
  /** Likewise; absent: the driver did not answer. */
  readonly health?: HealthState | undefined;
};

/** What is known of a pod that holds a grant on the node. `unknown`: the pods were not listed yet, or the list is late. */
export type HolderState =
  | { readonly kind: 'unknown' | 'gone' }
  | { readonly kind: 'present'; readonly grantText: string | undefined };
export type HolderStateOf = (holder: AgentGrant & { readonly podUid: string }) => HolderState;

/** Containers that hold a grant, each once per GPU, as the kubelet counts them. */
export function heldSlots(grants: readonly AgentGrant[]): number {
  const demands = grants.flatMap(({ podUid, containers }) =>
    podUid === undefined ? [] : [...demandOf(containers).values()],
  );
  return demands.reduce((sum, { tenants }) => sum + tenants, 0);
}

/**
 * The GPUs to advertise after `shown`: those that were read, a lost GPU with the memory that it had, and, as not
 * healthy, those that are missing while pods hold grants on them or the driver does not answer. When a kubelet
 * restarts, it ends running pods that request more than the node advertises. What a pod holds that is gone counts as
 * granted by the agent: the scheduler no longer knows of it.
 */
export function gpusToAdvertise(reading: GpusReading, shown: NodeGpus | undefined, stateOf: HolderStateOf): NodeGpus {
  const { mostTenantsPerGpu, gpus, complete, grants } = reading;
  const ofPods = new Set(
    grants.flatMap(({ podUid, containers }) =>
      podUid === undefined ? [] : containers.flatMap((one) => one.gpus.map(({ gpuUuid }) => gpuUuid)),
    ),
  );
  const before = new Map(shown?.gpus.map((gpu) => [gpu.gpuUuid, gpu]));
  const read = gpus.map((gpu) =>
    gpu.usableBytes > 0 ? gpu : { ...gpu, usableBytes: before.get(gpu.gpuUuid)?.usableBytes ?? 0 },
  );
  for (const { gpuUuid } of gpus) before.delete(gpuUuid);
  const missing = [...before.values()].filter(({ gpuUuid }) => !complete || ofPods.has(gpuUuid));
  const others = unscheduledDemand(grants, (holder) => {
    const state = stateOf(holder);
    if (state.kind !== 'present') return state.kind === 'gone' ? new Map() : undefined;
    const grant = parsePodGrant(state.grantText ?? '');
    return grant.ok ? demandOf(grant.value.containers) : undefined;
  });
  return {
    mostTenantsPerGpu,
    gpus: [...read, ...missing.map(({ links: _, ...gpu }) => ({ ...gpu, healthy: false }))].map(
      ({ others: _, ...gpu }) => {
        const own = others.get(gpu.gpuUuid);
        return own ? { ...gpu, others: own } : gpu;
      },
    ),
  };
}
