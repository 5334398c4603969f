// Which GPUs one container's request gets: pure, from the inventory and the grants that exist. Owns the choice on one node
// without a cluster; whole pods are placed by place-pod.ts, and writing the choice down belongs to others.

import type { GpuGrant, PlaceableGpu } from '../api/gpu.ts';
import { type GpuShare, type Placement, resolveLimit, resolveShare } from '../api/request.ts';
import { obstacleOf } from './fit.ts';

export type PlacementRules = {
  readonly placement: Placement;
  readonly mostTenantsPerGpu: number;
  /** Only these GPUs; empty: any. */
  readonly gpuUuids: readonly string[];
};

export type Placed =
  | { readonly ok: true; readonly gpus: readonly GpuGrant[] }
  | { readonly ok: false; readonly reason: string };

/** Shares go to different GPUs; the largest is placed first. Refusals say, per GPU, what stood in the way. */
export function place(shares: readonly GpuShare[], gpus: readonly PlaceableGpu[], rules: PlacementRules): Placed {
  const unknown = rules.gpuUuids.filter((uuid) => !gpus.some((gpu) => gpu.gpuUuid === uuid));
  // A list may name GPUs of other nodes, too.
  if (unknown.length > 0 && unknown.length === rules.gpuUuids.length) {
    const known = gpus.map((gpu) => gpu.gpuUuid).join(', ');
    return { ok: false, reason: `no GPU ${unknown.join(', ')} on this node; there are ${known || 'none'}` };
  }
  const open = gpus.filter((gpu) => rules.gpuUuids.length === 0 || rules.gpuUuids.includes(gpu.gpuUuid));
  const order = shares
    .map((share, index) => ({ share, index }))
    .toSorted((a, b) => size(b.share, open) - size(a.share, open));
  const grants: (GpuGrant & { index: number })[] = [];
  for (const { share, index } of order) {
    const candidates = open.filter((gpu) => !grants.some((grant) => grant.gpuUuid === gpu.gpuUuid));
    const refusals: string[] = [];
    const fitting = candidates.filter((gpu) => {
      const need = {
        memoryBytes: resolveShare(share, gpu.usableBytes),
        coresPercent: share.coresPercent ?? 0,
        tenants: 1,
      };
      const obstacle = obstacleOf(gpu, need, rules.mostTenantsPerGpu);
      if (obstacle) refusals.push(obstacle.text());
      return obstacle === undefined;
    });
    const chosen = choose(fitting, rules.placement);
    if (!chosen) {
      const seen = refusals.length > 0 ? refusals.join('; ') : 'no GPU is left to choose from';
      return { ok: false, reason: `GPU ${index + 1} of ${shares.length} fits nowhere: ${seen}` };
    }
    const coresPercent = share.coresPercent ?? 0;
    grants.push({
      index,
      gpuUuid: chosen.gpuUuid,
      memoryBytes: resolveShare(share, chosen.usableBytes),
      limitBytes: resolveLimit(share, chosen.usableBytes),
      coresPercent,
      ...(share.coresLimitPercent !== undefined && { coresLimitPercent: share.coresLimitPercent }),
    });
  }
  return {
    ok: true,
    gpus: grants.toSorted((a, b) => a.index - b.index).map(({ index: _, ...gpu }) => gpu),
  };
}

function size(share: GpuShare, gpus: readonly PlaceableGpu[]): number {
  return resolveShare(share, gpus[0]?.usableBytes ?? 0);
}

/** Binpack: the fitting GPU with the least left. Spread: the one with the most. Ties go to the first in order. */
function choose(gpus: readonly PlaceableGpu[], placement: Placement): PlaceableGpu | undefined {
  const left = (gpu: PlaceableGpu) => gpu.usableBytes - gpu.grantedBytes;
  return gpus.reduce<PlaceableGpu | undefined>((best, gpu) => {
    if (!best) return gpu;
    const better = placement === 'spread' ? left(gpu) > left(best) : left(gpu) < left(best);
    return better ? gpu : best;
  }, undefined);
}
