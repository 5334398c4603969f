// What a node's agent has given away beyond the annotations of its pods: grants of plain processes, and what a pod got on top
// of what its annotation says when its grant was resized. Pure. Who places pods sees it only if the node tells of it.

import type { GpuNeed } from '../api/gpu.ts';
import type { ContainerGrant } from '../api/grant-annotation.ts';
import { needOf } from './demand.ts';

/** By the agent's books: one pod, or one plain grant. */
export type Held = {
  readonly podUid?: string;
  readonly containers: readonly Pick<ContainerGrant, 'kind' | 'gpus'>[];
};

type Needs = ReadonlyMap<string, GpuNeed>;

/**
 * By UUID of the GPU. `annotated`: what a pod's annotation says; undefined where that is not known, and then nothing is counted
 * for it. A pod whose grant was made smaller has its annotated amount still, for whoever places others.
 */
export function othersOn(held: readonly Held[], annotated: (podUid: string) => Needs | undefined): Needs {
  const others = new Map<string, GpuNeed>();
  for (const { podUid, containers } of held) {
    for (const [gpuUuid, need] of needOf(containers)) {
      const beyond = podUid === undefined ? need : beyondOf(need, annotated(podUid)?.get(gpuUuid));
      if (beyond) others.set(gpuUuid, added(others.get(gpuUuid), beyond));
    }
  }
  return others;
}

function beyondOf(need: GpuNeed, annotated: GpuNeed | undefined): GpuNeed | undefined {
  const memoryBytes = need.memoryBytes - (annotated?.memoryBytes ?? need.memoryBytes);
  return memoryBytes > 0 ? { memoryBytes, coresPercent: 0, tenants: 0 } : undefined;
}

export const added = (sum: GpuNeed | undefined, own: GpuNeed): GpuNeed => ({
  memoryBytes: (sum?.memoryBytes ?? 0) + own.memoryBytes,
  coresPercent: (sum?.coresPercent ?? 0) + own.coresPercent,
  tenants: (sum?.tenants ?? 0) + own.tenants,
});
