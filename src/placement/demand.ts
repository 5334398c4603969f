// What a pod demands of each GPU at the same time: its containers do not all run at once. Pure.
import { countedBytes, type GpuDemand } from '../api/gpu.ts';
import type { ContainerGrant } from '../api/grant-annotation.ts';

type Demanding = Pick<ContainerGrant, 'kind' | 'initIndex' | 'gpus'>;

/**
 * By UUID of the GPU: the sum of containers and sidecars, or what runs beside an init container, if that is more. Init
 * containers run one after the other, before the containers; a sidecar runs beside those that follow it in the pod (the
 * formula of Kubernetes' KEP-753).
 */
export function demandOf(containers: readonly Demanding[]): ReadonlyMap<string, GpuDemand> {
  const most = new Map<string, GpuDemand>();
  for (const { kind, gpus } of containers) if (kind !== 'init') addGpus(most, gpus);
  for (const init of containers) {
    if (init.kind !== 'init') continue;
    const during = new Map<string, GpuDemand>();
    for (const one of containers)
      if (one === init || (one.kind === 'sidecar' && !startsAfter(one, init))) addGpus(during, one.gpus);
    for (const [gpuUuid, own] of during) most.set(gpuUuid, largest(most.get(gpuUuid), own));
  }
  return most;
}

function addGpus(sums: Map<string, GpuDemand>, gpus: Demanding['gpus']): void {
  for (const gpu of gpus) {
    const own = { memoryBytes: countedBytes(gpu), coresPercent: gpu.coresPercent, tenants: 1 };
    sums.set(gpu.gpuUuid, addDemand(sums.get(gpu.gpuUuid), own));
  }
}

const largest = (one: GpuDemand | undefined, other: GpuDemand): GpuDemand => ({
  memoryBytes: Math.max(one?.memoryBytes ?? 0, other.memoryBytes),
  coresPercent: Math.max(one?.coresPercent ?? 0, other.coresPercent),
  tenants: Math.max(one?.tenants ?? 0, other.tenants),
});

/** False where the grant does not say the order. */
const startsAfter = (sidecar: Demanding, init: Demanding): boolean =>
  sidecar.initIndex !== undefined && init.initIndex !== undefined && sidecar.initIndex > init.initIndex;

export const addDemand = (sum: GpuDemand | undefined, own: GpuDemand): GpuDemand => ({
  memoryBytes: (sum?.memoryBytes ?? 0) + own.memoryBytes,
  coresPercent: (sum?.coresPercent ?? 0) + own.coresPercent,
  tenants: (sum?.tenants ?? 0) + own.tenants,
});
