// GPUs of which bound pods need more than there is, as after two leaders for a while, and which pods have to go: pure. The
// node's agent lets no such pod start; who evicts it, and when, is the scheduler's business.

import type { GpuNeed } from '../api/gpu.ts';
import { GPU, GPU_CORES, GPU_MEMORY } from '../api/names.ts';
import type { NodeGpus } from '../api/node-annotation.ts';
import { MIB } from '../common/quantity.ts';
import { added } from './unscheduled-demand.ts';

/** A bound pod. */
export type Holder = {
  readonly podUid: string;
  /** By UUID of the GPU. */
  readonly need: ReadonlyMap<string, GpuNeed>;
  readonly epoch: number;
  readonly createdMs: number;
  /** `leaves`: it is being deleted and no container has started, so that none will. */
  readonly state: 'waits' | 'started' | 'leaves';
};

export type Excess = {
  readonly gpuUuid: string;
  /** One clause with GPU and numbers. */
  readonly text: string;
};

/**
 * Every GPU of which too much is granted, what its agent has given away itself included, and every one that is granted and not
 * there. What leaves is gone already.
 */
export function excessesOf(
  node: string,
  { gpus, mostTenantsPerGpu }: NodeGpus,
  holders: readonly Holder[],
): readonly Excess[] {
  const sums = new Map<string, GpuNeed>(gpus.flatMap(({ gpuUuid, others }) => (others ? [[gpuUuid, others]] : [])));
  for (const { need, state } of holders) {
    if (state === 'leaves') continue;
    for (const [gpuUuid, own] of need) sums.set(gpuUuid, added(sums.get(gpuUuid), own));
  }
  return [...sums].flatMap(([gpuUuid, { memoryBytes, coresPercent, tenants }]) => {
    const over = (amounts: string) => [{ gpuUuid, text: `${gpuUuid} of node ${node} is overbooked: ${amounts}` }];
    const gpu = gpus.find((one) => one.gpuUuid === gpuUuid);
    if (!gpu) return [{ gpuUuid, text: `${gpuUuid} is granted, and node ${node} does not have it (${GPU})` }];
    const own = gpu.others?.memoryBytes ?? 0;
    const byAgent = own > 0 ? `, ${mib(own)} MiB of them by the agent of the node` : '';
    if (memoryBytes > gpu.usableBytes)
      return over(`${mib(memoryBytes)} MiB of ${GPU_MEMORY} are granted${byAgent}, it has ${mib(gpu.usableBytes)} MiB`);
    if (coresPercent > 100) return over(`${coresPercent} % of ${GPU_CORES} are granted, it has 100 %`);
    if (tenants > mostTenantsPerGpu)
      return over(`${tenants} tenants (${GPU}) are on it, it takes ${mostTenantsPerGpu}`);
    return [];
  });
}

export type Displaced = { readonly podUid: string; readonly because: string };

/**
 * Who has to go from the GPUs in `ripe`, so that what is left fits: the youngest that have not started, by the leader that
 * granted (epoch) and then by age. What has started stays, whatever it needs.
 */
export function displacedOn(
  node: string,
  gpus: NodeGpus,
  holders: readonly Holder[],
  ripe: ReadonlySet<string>,
): readonly Displaced[] {
  const displaced: Displaced[] = [];
  let left = holders;
  for (const youngest of holders.filter(({ state }) => state === 'waits').sort(youngestFirst)) {
    const excess = excessesOf(node, gpus, left).find(({ gpuUuid }) => ripe.has(gpuUuid) && youngest.need.has(gpuUuid));
    if (!excess) continue;
    displaced.push({ podUid: youngest.podUid, because: excess.text });
    left = left.filter((other) => other !== youngest);
  }
  return displaced;
}

const youngestFirst = (a: Holder, b: Holder): number =>
  b.epoch - a.epoch || b.createdMs - a.createdMs || (a.podUid < b.podUid ? 1 : -1);

const mib = (bytes: number): number => Math.floor(bytes / MIB);
