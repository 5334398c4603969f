// Which containers are judged by their compute, and by which figures: those with a hard limit on a GPU's compute, where
// the arbiter enforces it and the driver reports utilization by process. Pure; the verdict is made in
// src/policy/compute-verdict.ts.
import type { GpuGrant } from '../api/gpu.ts';
import {
  judgeShare,
  type ShareLook,
  type ShareVerdict,
  type ShareWatch,
  watchShare,
} from '../policy/compute-verdict.ts';
import { harder } from '../policy/memory-verdict.ts';
import { hardLimitOf } from './compute/gpu-policy.ts';
import type { ShareState } from './compute/shares.ts';
import { type Totals, totalsKey } from './counters/totals.ts';
import { isUtilizationKnown, type SampledGpu } from './sampling/sample.ts';
import { isMpsClient } from './usage/gpu-processes.ts';
import type { ContainerState, NodeState, ReconciledContainer, ReconciledNode } from './usage/node-usage.ts';

/** By the grant's id and the GPU's UUID. */
export type ComputeWatches = ReadonlyMap<string, ShareWatch>;
export const NO_WATCHES: ComputeWatches = new Map();

type ComputeFacts = {
  readonly totals: Totals;
  readonly stateOf: (grantId: string, gpu: number) => ShareState;
  readonly highCapPercent: number;
  readonly isGateClosed: (grantId: string) => boolean;
  readonly windowSeconds: number;
  /** Processes without a grant use the GPU, as far as their owners are known. */
  readonly isUsedOutside: (gpu: SampledGpu) => boolean;
};

/** Adds verdicts on compute. A container that is not judged now starts a new window when it is judged again. */
export function judgeCompute(
  before: ComputeWatches,
  state: ReconciledNode,
  watching: ComputeFacts,
): { readonly watched: ComputeWatches; readonly state: NodeState } {
  const watched = new Map<string, ShareWatch>();
  // After a gap in the driver's data the total jumps, so what was watched before the gap is not used.
  const gpus = new Map<string, OnGpu>();
  for (const { gpu, processes } of state.devices) {
    if (!isUtilizationKnown(state.sample, gpu)) continue;
    const { mps: mpsClients } = processes;
    gpus.set(gpu.uuid, { gpu, mpsClients, outside: mpsClients > 0 && watching.isUsedOutside(gpu) });
  }
  const containers = state.containers.map((container): ContainerState => {
    let share: ShareVerdict | undefined;
    const mixed: string[] = [];
    for (let position = 0; position < container.grant.gpus.length; position += 1) {
      const { gpuUuid } = container.grant.gpus[position] as GpuGrant;
      const on = gpus.get(gpuUuid);
      const key = totalsKey(container.grant.id, gpuUuid);
      const look = on && lookAt(container, { position, gpu: on.gpu, key, atMs: state.sample.bootNs / 1e6 }, watching);
      if (!look) continue;
      if (isMixed(container, position, on)) {
        mixed.push(gpuUuid);
        continue;
      }
      const watch = watchShare(before.get(key), look, watching.windowSeconds);
      watched.set(key, watch);
      const verdict = judgeShare(gpuUuid, watch, watching.windowSeconds);
      if (verdict.severity === 'hard' ? share?.severity !== 'hard' : verdict.severity === 'soft' && !share)
        share = verdict;
    }
    if (!share && mixed.length === 0) return container;
    return {
      ...container,
      ...(share && { verdict: harder(container.verdict, share) }),
      ...(mixed.length > 0 && { undecidableGpus: mixed }),
    };
  });
  return { watched, state: { ...state, containers } };
}

/** `outside`: a server may be there that is in no container with a grant. */
type OnGpu = { readonly gpu: SampledGpu; readonly mpsClients: number; readonly outside: boolean };

/**
 * The driver attributes concurrent kernels of the clients of one MPS server to one of them, or to the server, which is
 * in the list of compute processes. Utilization is the container's own where none of its processes is a client, where
 * all clients on the GPU are its own, or where no server can be shared between containers: each server is then in the
 * cgroup of the container that started it. Else it may be another container's, for which this one must not be stopped.
 */
function isMixed({ gpus }: ReconciledContainer, position: number, { mpsClients, outside }: OnGpu): boolean {
  const own = gpus[position]?.processes.filter(isMpsClient).length ?? 0;
  return outside && own > 0 && own < mpsClients;
}

function lookAt(
  { grant }: ReconciledContainer,
  { position, gpu, key, atMs }: { position: number; gpu: SampledGpu; key: string; atMs: number },
  { totals, stateOf, highCapPercent, isGateClosed }: ComputeFacts,
): ShareLook | undefined {
  const { policy, use } = stateOf(grant.id, position);
  if (!use) return undefined;
  const limitRatio = hardLimitOf(policy, grant, grant.gpus[position] as GpuGrant, highCapPercent);
  const used = totals.containers.get(key);
  // After a change of the limit the arbiter enforces the former one for a moment: not judged then.
  if (limitRatio === undefined || !used || Math.abs(use.limitRatio - limitRatio) > 1e-3) return undefined;
  return {
    atMs,
    usedSeconds: used.smSeconds,
    chargedSeconds: use.chargedSeconds,
    limitRatio,
    gateClosed: isGateClosed(grant.id),
    gaps: gpu.utilizationGaps,
  };
}
