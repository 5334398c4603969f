// Why a GPU cannot take what is needed of it: the one place that compares, and the words that people read. Pure.

import type { GpuNeed, PlaceableGpu } from '../api/gpu.ts';
import { GPU_CORES, GPU_MEMORY } from '../api/names.ts';
import { MIB } from '../common/quantity.ts';

export type Obstacle = {
  /** One clause that names the GPU and the numbers. */
  readonly text: () => string;
  /** The same of a whole node, without GPU and numbers: a clause behind "nodes where". */
  readonly general: string;
  /** How far it is from fitting; smaller is nearer. Comparable over GPUs and kinds of obstacles. */
  readonly distance: number;
  /** Whether it can fit once others leave the GPU. */
  readonly passing: boolean;
};

/** What stands in the way; undefined: nothing. Words are made when they are read: of most obstacles nobody is told. */
export function obstacleOf(gpu: PlaceableGpu, need: GpuNeed, mostTenantsPerGpu: number): Obstacle | undefined {
  const { gpuUuid, usableBytes, tenants, closed, unfenced } = gpu;
  const { memoryBytes, coresPercent } = need;
  const leftBytes = Math.max(0, usableBytes - gpu.grantedBytes);
  const leftCores = Math.max(0, 100 - gpu.grantedCoresPercent);
  const why = gpu.fault === undefined ? '' : `: ${gpu.fault}`;
  if (why !== '' || !gpu.healthy)
    return obstacle('no GPU is healthy', 5, false, () => `${gpuUuid} is not healthy${why}`);
  if (unfenced !== undefined)
    return obstacle('limits hold on no GPU', 5, false, () => `limits do not hold on ${gpuUuid}: ${unfenced}`);
  if (closed !== undefined) return obstacle('no GPU is open', 4, true, () => `${gpuUuid} is closed: ${closed}`);
  if (memoryBytes > usableBytes) {
    const text = () =>
      usableBytes === 0
        ? `the driver does not tell how much memory ${gpuUuid} has`
        : `${gpuUuid} has ${mib(usableBytes)} MiB in all, ${mib(memoryBytes)} MiB are asked for`;
    return obstacle(`no GPU has that much ${GPU_MEMORY}`, 6, false, text);
  }
  if (coresPercent > 100) {
    const text = () => `${gpuUuid} has 100 % of ${GPU_CORES} in all, ${coresPercent} % are asked for`;
    return obstacle(`no GPU has that much ${GPU_CORES}`, 6, false, text);
  }
  if (tenants + need.tenants > mostTenantsPerGpu) {
    const text = () =>
      need.tenants === 1
        ? `${gpuUuid} has ${tenants} tenants, which is its limit`
        : `${gpuUuid} has ${tenants} tenants of at most ${mostTenantsPerGpu}, ${need.tenants} more are asked for`;
    return obstacle('no GPU takes another tenant', 3, true, text);
  }
  if (memoryBytes > leftBytes) {
    const text = () =>
      `${gpuUuid} has ${mib(leftBytes)} MiB of ${GPU_MEMORY} left, ${mib(memoryBytes)} MiB are asked for`;
    return obstacle(`no GPU has enough ${GPU_MEMORY} left`, (memoryBytes - leftBytes) / usableBytes, true, text);
  }
  if (coresPercent > leftCores) {
    const text = () => `${gpuUuid} has ${leftCores} % of ${GPU_CORES} left, ${coresPercent} % are asked for`;
    return obstacle(`no GPU has enough ${GPU_CORES} left`, (coresPercent - leftCores) / 100, true, text);
  }
  return undefined;
}

const obstacle = (general: string, distance: number, passing: boolean, text: () => string): Obstacle => ({
  text,
  general,
  distance,
  passing,
});

const mib = (bytes: number): number => Math.floor(bytes / MIB);
