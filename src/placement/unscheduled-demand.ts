// GPU resources that a node's agent granted beyond the annotations of its pods: grants of plain processes, what a
// resize added to a pod, and what pods hold that are gone. The scheduler sees them only where the node advertises them.
// Pure.
import type { GpuDemand } from '../api/gpu.ts';
import type { ContainerGrant } from '../api/grant-annotation.ts';
import { addDemand, demandOf } from './demand.ts';

/** All that the agent granted to one pod, or to one plain process. */
export type AgentGrant = {
  readonly podUid?: string;
  readonly pod?: { readonly namespace: string; readonly name: string };
  readonly containers: readonly Pick<ContainerGrant, 'kind' | 'initIndex' | 'gpus'>[];
};

const NOTHING = new Map<string, GpuDemand>();

type Demands = ReadonlyMap<string, GpuDemand>;

/**
 * By UUID of the GPU. `annotated`: the demand by the annotation of the pod that holds the grant, empty where the pod is
 * gone; where it is undefined nothing is counted for the pod. A pod whose grant was made smaller keeps its annotated
 * amount.
 */
export function unscheduledDemand(
  grants: readonly AgentGrant[],
  annotated: (holder: AgentGrant & { readonly podUid: string }) => Demands | undefined,
): Demands {
  const sums = new Map<string, GpuDemand>();
  for (const grant of grants) {
    const { podUid, containers } = grant;
    const counted = podUid === undefined ? NOTHING : annotated({ ...grant, podUid });
    if (!counted) continue;
    for (const [gpuUuid, demand] of demandOf(containers)) {
      const beyond = demandBeyond(demand, counted.get(gpuUuid));
      if (beyond) sums.set(gpuUuid, addDemand(sums.get(gpuUuid), beyond));
    }
  }
  return sums;
}

function demandBeyond(demand: GpuDemand, annotated: GpuDemand | undefined): GpuDemand | undefined {
  if (!annotated) return demand;
  const memoryBytes = demand.memoryBytes - annotated.memoryBytes;
  return memoryBytes > 0 ? { memoryBytes, coresPercent: 0, tenants: 0 } : undefined;
}
