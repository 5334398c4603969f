// What a pod demands of each GPU at the same time: its containers do not all run at once. Pure.
import { countedBytes, type GpuDemand } from '../api/gpu.ts';
import type { ContainerGrant } from '../api/grant-annotation.ts';

/**
 * By UUID of the GPU: the larger of the biggest init container and the sum of the containers, sidecars added to both. Init
 * containers run one after the other before the rest, and sidecars beside both.
 */
export function demandOf(containers: readonly Pick<ContainerGrant, 'kind' | 'gpus'>[]): ReadonlyMap<string, GpuDemand> {
  const uuids = new Set(containers.flatMap(({ gpus }) => gpus.map(({ gpuUuid }) => gpuUuid)));
  const peak = (amount: (gpu: ContainerGrant['gpus'][number]) => number, gpuUuid: string): number => {
    const grantsOf = (wanted: ContainerGrant['kind']) =>
      containers.flatMap(({ kind, gpus }) => (kind === wanted ? gpus.filter((gpu) => gpu.gpuUuid === gpuUuid) : []));
    const sum = (gpus: ContainerGrant['gpus']) => gpus.reduce((total, gpu) => total + amount(gpu), 0);
    return sum(grantsOf('sidecar')) + Math.max(0, sum(grantsOf('app')), ...grantsOf('init').map(amount));
  };
  return new Map(
    [...uuids].map((gpuUuid) => [
      gpuUuid,
      {
        memoryBytes: peak(countedBytes, gpuUuid),
        coresPercent: peak((gpu) => gpu.coresPercent, gpuUuid),
        tenants: peak(() => 1, gpuUuid),
      },
    ]),
  );
}

export const addDemand = (sum: GpuDemand | undefined, own: GpuDemand): GpuDemand => ({
  memoryBytes: (sum?.memoryBytes ?? 0) + own.memoryBytes,
  coresPercent: (sum?.coresPercent ?? 0) + own.coresPercent,
  tenants: (sum?.tenants ?? 0) + own.tenants,
});
