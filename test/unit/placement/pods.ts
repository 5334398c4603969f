// Pods, GPUs and nodes in few words, for the tests of how pods are placed.
import type { PlaceableGpu } from '../../../src/api/gpu.ts';
import type { ContainerGrant } from '../../../src/api/grant-annotation.ts';
import type { ContainerKind, ContainerRequest, GpuShare, MemoryAmount, PodRequest } from '../../../src/api/request.ts';
import { MIB } from '../../../src/common/quantity.ts';
import type { PlaceableNode } from '../../../src/placement/node.ts';
import { placePod } from '../../../src/placement/place-pod.ts';

export const gpu = (name: string, leftMib: number, more: Partial<PlaceableGpu> = {}): PlaceableGpu => ({
  gpuUuid: `GPU-${name}`,
  model: 'NVIDIA L4',
  usableBytes: 16_000 * MIB,
  healthy: true,
  grantedBytes: (16_000 - leftMib) * MIB,
  grantedCoresPercent: 0,
  tenants: 1,
  ...more,
});
export const bytes = (mib: number): MemoryAmount => ({ kind: 'bytes', bytes: mib * MIB });
export const share = (mib: number, coresPercent?: number): GpuShare => ({
  memory: bytes(mib),
  ...(coresPercent === undefined ? {} : { coresPercent }),
});
export const container = (name: string, kind: ContainerKind, ...gpus: GpuShare[]): ContainerRequest => ({
  name,
  kind,
  gpus,
  dialect: 'cotenant',
  memoryIsolation: 'on',
  asked: {},
});
export const pod = (containers: readonly ContainerRequest[], more: Partial<PodRequest> = {}): PodRequest => ({
  containers,
  priority: 'normal',
  gpuModels: [],
  gpuUuids: [],
  ...more,
});
export const nodeOf = (...gpus: readonly PlaceableGpu[]): PlaceableNode => ({ mostTenantsPerGpu: 50, gpus });

/** `a:x,y b:z`: container and its GPUs; or why not. */
export const placed = (request: PodRequest, node: PlaceableNode): string => {
  const found = placePod(request, node, 'binpack');
  const gpusOf = ({ name, gpus }: ContainerGrant) =>
    `${name}:${gpus.map(({ gpuUuid }) => gpuUuid.slice('GPU-'.length)).join(',')}`;
  return found.ok ? found.containers.map(gpusOf).join(' ') : found.reason();
};
