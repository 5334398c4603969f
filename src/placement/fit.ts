// Whether a GPU can take what a pod demands of it: the one place that compares, and the sentences that people read.
// Pure.
import type { GpuDemand, PlaceableGpu } from '../api/gpu.ts';
import { GPU_CORES, GPU_MEMORY } from '../api/names.ts';
import { MIB } from '../common/quantity.ts';

export type Obstacle = {
  /** One clause with the GPU and the numbers. */
  readonly text: () => string;
  /** The same for a whole node, without GPU and numbers: a clause behind "node(s) where". */
  readonly summary: string;
  /** How far it is from fitting; smaller is nearer. Comparable over GPUs and kinds of obstacles. */
  readonly distance: number;
  /** Whether it can fit once other pods leave the GPU. */
  readonly temporary: boolean;
};

/** Undefined: it fits. Texts are made when they are read, which most are not. */
export function findObstacle(gpu: PlaceableGpu, demand: GpuDemand, mostTenantsPerGpu: number): Obstacle | undefined {
  const { gpuUuid, usableBytes, tenants, blocked, unfenced, mode } = gpu;
  const { memoryBytes, coresPercent } = demand;
  const freeBytes = Math.max(0, usableBytes - gpu.grantedBytes);
  const freeCores = Math.max(0, 100 - gpu.grantedCoresPercent);
  const cause = gpu.fault === undefined ? '' : `: ${gpu.fault}`;
  if (cause !== '' || !gpu.healthy)
    return obstacle('no GPU is healthy', 5, false, () => `${gpuUuid} is not healthy${cause}`);
  if (unfenced !== undefined)
    return obstacle('no GPU enforces limits', 5, false, () => `limits are not enforced on ${gpuUuid}: ${unfenced}`);
  if (mode === 'none')
    return obstacle(
      'no GPU is for containers with a share',
      5,
      false,
      () => `${gpuUuid} is left to other software by its node's agent`,
    );
  if (mode === 'exclusive' && memoryBytes < usableBytes)
    return obstacle('no GPU is shared', 5, false, () => `${gpuUuid} is for a container that asks for all its memory`);
  if (blocked !== undefined)
    return obstacle('no GPU takes new pods', 4, true, () => `${gpuUuid} takes no new pods: ${blocked}`);
  if (memoryBytes > usableBytes) {
    const text = () =>
      usableBytes === 0
        ? `the driver does not report how much memory ${gpuUuid} has`
        : `${gpuUuid} has ${mib(usableBytes)} MiB of ${GPU_MEMORY}, but ${mib(memoryBytes)} MiB are requested (it lacks ${lacking({ bytes: memoryBytes - usableBytes, cores: 0 })})`;
    return obstacle(`no GPU has that much ${GPU_MEMORY}`, 6, false, text);
  }
  if (coresPercent > 100) {
    const text = () =>
      `${gpuUuid} has 100 % of ${GPU_CORES}, but ${coresPercent} % are requested (it lacks ${coresPercent - 100} %)`;
    return obstacle(`no GPU has that much ${GPU_CORES}`, 6, false, text);
  }
  if (tenants + demand.tenants > mostTenantsPerGpu) {
    const text = () => `${gpuUuid} has ${tenants} of at most ${mostTenantsPerGpu} containers, ${requested(demand)}`;
    return obstacle('no GPU takes another container', 3, true, text);
  }
  const lacks = { bytes: Math.max(0, memoryBytes - freeBytes), cores: Math.max(0, coresPercent - freeCores) };
  const distance = lacks.bytes / usableBytes + lacks.cores / 100;
  if (lacks.bytes > 0) {
    const text = () =>
      `${gpuUuid} has ${mib(freeBytes)} MiB of ${GPU_MEMORY} free, but ${mib(memoryBytes)} MiB are requested (it lacks ${lacking(lacks)})`;
    return obstacle(`no GPU has enough ${GPU_MEMORY} free`, distance, true, text);
  }
  if (lacks.cores > 0) {
    const text = () =>
      `${gpuUuid} has ${freeCores} % of ${GPU_CORES} free, but ${coresPercent} % are requested (it lacks ${lacks.cores} %)`;
    return obstacle(`no GPU has enough ${GPU_CORES} free`, distance, true, text);
  }
  return undefined;
}

const requested = ({ tenants }: GpuDemand): string =>
  tenants === 1 ? 'and this would be one more' : `and these would be ${tenants} more`;

const obstacle = (summary: string, distance: number, temporary: boolean, text: () => string): Obstacle => ({
  text,
  summary,
  distance,
  temporary,
});

const lacking = ({ bytes, cores }: { readonly bytes: number; readonly cores: number }): string =>
  `${Math.ceil(bytes / MIB)} MiB${cores > 0 ? `, and ${cores} % of ${GPU_CORES}` : ''}`;

const mib = (bytes: number): number => Math.floor(bytes / MIB);
