// What a pod needs of each GPU at the same time: its containers do not all run at once. Pure.
import { countedBytes, type GpuNeed } from '../api/gpu.ts';
import type { ContainerGrant } from '../api/grant-annotation.ts';

/**
 * Need per GPU (by UUID) of one pod: the larger of its biggest init container and the sum of its containers, sidecars added,
 * since init containers run one after the other before the rest and sidecars beside both.
 */
export function needOf(containers: readonly Pick<ContainerGrant, 'kind' | 'gpus'>[]): ReadonlyMap<string, GpuNeed> {
  const uuids = new Set(containers.flatMap(({ gpus }) => gpus.map(({ gpuUuid }) => gpuUuid)));
  const most = (pick: (gpu: ContainerGrant['gpus'][number]) => number, gpuUuid: string): number => {
    const of = (wanted: ContainerGrant['kind']) =>
      containers.flatMap(({ kind, gpus }) => (kind === wanted ? gpus.filter((gpu) => gpu.gpuUuid === gpuUuid) : []));
    const sum = (gpus: ContainerGrant['gpus']) => gpus.reduce((total, gpu) => total + pick(gpu), 0);
    return sum(of('sidecar')) + Math.max(0, sum(of('app')), ...of('init').map(pick));
  };
  return new Map(
    [...uuids].map((gpuUuid) => [
      gpuUuid,
      {
        memoryBytes: most(countedBytes, gpuUuid),
        coresPercent: most((gpu) => gpu.coresPercent, gpuUuid),
        tenants: most(() => 1, gpuUuid),
      },
    ]),
  );
}
