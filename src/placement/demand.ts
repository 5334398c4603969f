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
  const uuids = new Set(containers.flatMap(({ gpus }) => gpus.map(({ gpuUuid }) => gpuUuid)));
  const peak = (amount: (gpu: ContainerGrant['gpus'][number]) => number, gpuUuid: string): number => {
    const sum = (some: readonly Demanding[]) =>
      some
        .flatMap(({ gpus }) => gpus.filter((gpu) => gpu.gpuUuid === gpuUuid))
        .reduce((total, gpu) => total + amount(gpu), 0);
    const sidecars = containers.filter(({ kind }) => kind === 'sidecar');
    const beside = (init: Demanding) => sidecars.filter((sidecar) => !startsAfter(sidecar, init));
    const apps = containers.filter(({ kind }) => kind === 'app');
    const inits = containers.filter(({ kind }) => kind === 'init');
    return Math.max(sum([...sidecars, ...apps]), ...inits.map((init) => sum([...beside(init), init])));
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

/** False where the grant does not say the order. */
const startsAfter = (sidecar: Demanding, init: Demanding): boolean =>
  sidecar.initIndex !== undefined && init.initIndex !== undefined && sidecar.initIndex > init.initIndex;

export const addDemand = (sum: GpuDemand | undefined, own: GpuDemand): GpuDemand => ({
  memoryBytes: (sum?.memoryBytes ?? 0) + own.memoryBytes,
  coresPercent: (sum?.coresPercent ?? 0) + own.coresPercent,
  tenants: (sum?.tenants ?? 0) + own.tenants,
});
