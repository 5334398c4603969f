// GPU resources that a node's agent granted beyond the annotations of its pods: grants of plain processes, and what a
// resize added to a pod. The scheduler sees them only where the node advertises them. Pure.
import type { GpuDemand } from '../api/gpu.ts';
import type { ContainerGrant } from '../api/grant-annotation.ts';
import { addDemand, demandOf } from './demand.ts';

/** All that the agent granted to one pod, or to one plain process. */
export type AgentGrant = {
  readonly podUid?: string;
  readonly containers: readonly Pick<ContainerGrant, 'kind' | 'initIndex' | 'gpus'>[];
};

type Demands = ReadonlyMap<string, GpuDemand>;

/**
 * By UUID of the GPU. `annotated`: the demand by a pod's annotation; where it is undefined nothing is counted for the
 * pod. A pod whose grant was made smaller keeps its annotated amount.
 */
export function unscheduledDemand(
  grants: readonly AgentGrant[],
  annotated: (podUid: string) => Demands | undefined,
): Demands {
  const sums = new Map<string, GpuDemand>();
  for (const { podUid, containers } of grants) {
    for (const [gpuUuid, demand] of demandOf(containers)) {
      const beyond = podUid === undefined ? demand : demandBeyond(demand, annotated(podUid)?.get(gpuUuid));
      if (beyond) sums.set(gpuUuid, addDemand(sums.get(gpuUuid), beyond));
    }
  }
  return sums;
}

function demandBeyond(demand: GpuDemand, annotated: GpuDemand | undefined): GpuDemand | undefined {
  const memoryBytes = demand.memoryBytes - (annotated?.memoryBytes ?? demand.memoryBytes);
  return memoryBytes > 0 ? { memoryBytes, coresPercent: 0, tenants: 0 } : undefined;
}
