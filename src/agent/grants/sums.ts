// Sums of the grants on a GPU: process grants each by itself, a pod's containers by what they need at one time. Pure.
import type { GpuDemand } from '../../api/gpu.ts';
import { demandOf } from '../../placement/demand.ts';
import type { AgentGrant } from '../../placement/unscheduled-demand.ts';
import { type Grant, isOfPod, podUidOf } from './grant.ts';

/** Grants of one pod together, process grants each by itself. */
export function heldBy(grants: readonly Grant[]): readonly AgentGrant[] {
  const holders = Map.groupBy(grants, (grant) => podUidOf(grant) || grant.id);
  return [...holders.values()].map((own) => {
    const podUid = own[0] && podUidOf(own[0]);
    const containers = own.map(({ owner, gpus }) =>
      isOfPod(owner)
        ? { kind: owner.kind, ...(owner.initIndex !== undefined && { initIndex: owner.initIndex }), gpus }
        : { kind: 'app' as const, gpus },
    );
    const pod = own[0] && { namespace: own[0].namespace, name: own[0].pod };
    return { ...(podUid && pod && { podUid, pod }), containers };
  });
}

const NOTHING: GpuDemand = { memoryBytes: 0, coresPercent: 0, tenants: 0 };

/** Sums over the grants on each GPU that has any; for containers of pods this is less than the sum of their GPUs'
 * figures. */
export function grantedByGpu(grants: readonly Grant[]): ReadonlyMap<string, GpuDemand> {
  const sums = new Map<string, GpuDemand>();
  for (const { containers } of heldBy(grants)) {
    for (const [gpuUuid, need] of demandOf(containers)) {
      const sum = sums.get(gpuUuid) ?? NOTHING;
      sums.set(gpuUuid, {
        memoryBytes: sum.memoryBytes + need.memoryBytes,
        coresPercent: sum.coresPercent + need.coresPercent,
        tenants: sum.tenants + need.tenants,
      });
    }
  }
  return sums;
}

export const grantedOn = (grants: readonly Grant[], gpuUuid: string): GpuDemand =>
  grantedByGpu(grants).get(gpuUuid) ?? NOTHING;
