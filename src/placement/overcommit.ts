// GPUs on which more is granted than there is, as after two schedulers led for a while, and which pods to evict. Pure.
// The node's agent does not start such a pod; the scheduler evicts it.
import type { GpuDemand } from '../api/gpu.ts';
import { GPU, GPU_CORES, GPU_MEMORY } from '../api/names.ts';
import type { NodeGpus } from '../api/node-annotation.ts';
import { MIB } from '../common/quantity.ts';
import { addDemand } from './demand.ts';

/** A bound pod. */
export type GrantedPod = {
  readonly podUid: string;
  /** By UUID of the GPU. */
  readonly demand: ReadonlyMap<string, GpuDemand>;
  readonly epoch: number;
  readonly createdMs: number;
  /** `terminating`: it is being deleted and no container has started, so none will. */
  readonly state: 'waiting' | 'started' | 'terminating';
};

type OvercommittedGpu = {
  readonly gpuUuid: string;
  /** One clause with GPU and numbers. */
  readonly text: string;
};

/** Also GPUs that are granted and that the node does not have. Terminating pods do not count; grants of the agent
 * do. */
export function findOvercommittedGpus(
  node: string,
  { gpus, mostTenantsPerGpu }: NodeGpus,
  pods: readonly GrantedPod[],
): readonly OvercommittedGpu[] {
  const sums = new Map<string, GpuDemand>(gpus.flatMap(({ gpuUuid, others }) => (others ? [[gpuUuid, others]] : [])));
  for (const { demand, state } of pods) {
    if (state === 'terminating') continue;
    for (const [gpuUuid, own] of demand) sums.set(gpuUuid, addDemand(sums.get(gpuUuid), own));
  }
  return [...sums].flatMap(([gpuUuid, { memoryBytes, coresPercent, tenants }]) => {
    const overcommitted = (amounts: string) => [
      { gpuUuid, text: `${gpuUuid} of node ${node} is overcommitted: ${amounts}` },
    ];
    const gpu = gpus.find((one) => one.gpuUuid === gpuUuid);
    if (!gpu) return [{ gpuUuid, text: `${gpuUuid} is granted, but node ${node} does not have it (${GPU})` }];
    const agentBytes = gpu.others?.memoryBytes ?? 0;
    const byAgent = agentBytes > 0 ? `, ${mib(agentBytes)} MiB of them by the agent of the node` : '';
    if (memoryBytes > gpu.usableBytes) {
      const granted = `${mib(memoryBytes)} MiB of ${GPU_MEMORY} are granted${byAgent}`;
      return overcommitted(`${granted}, but it has ${mib(gpu.usableBytes)} MiB`);
    }
    if (coresPercent > 100) return overcommitted(`${coresPercent} % of ${GPU_CORES} are granted, but it has 100 %`);
    if (tenants > mostTenantsPerGpu)
      return overcommitted(`it has ${tenants} containers (${GPU}), but takes ${mostTenantsPerGpu}`);
    return [];
  });
}

export type PodToEvict = { readonly podUid: string; readonly because: string };

/**
 * The pods to evict from the GPUs in `ripe` so that the rest fits: the youngest that have not started, by the epoch of
 * the grant and then by creation. Started pods stay, whatever they demand.
 */
export function choosePodsToEvict(
  node: string,
  gpus: NodeGpus,
  pods: readonly GrantedPod[],
  ripe: ReadonlySet<string>,
): readonly PodToEvict[] {
  const chosen: PodToEvict[] = [];
  let left = pods;
  for (const youngest of pods.filter(({ state }) => state === 'waiting').sort(youngestFirst)) {
    const excess = findOvercommittedGpus(node, gpus, left).find(
      ({ gpuUuid }) => ripe.has(gpuUuid) && youngest.demand.has(gpuUuid),
    );
    if (!excess) continue;
    chosen.push({ podUid: youngest.podUid, because: excess.text });
    left = left.filter((other) => other !== youngest);
  }
  return chosen;
}

const youngestFirst = (a: GrantedPod, b: GrantedPod): number =>
  b.epoch - a.epoch || b.createdMs - a.createdMs || (a.podUid < b.podUid ? 1 : -1);

const mib = (bytes: number): number => Math.floor(bytes / MIB);
