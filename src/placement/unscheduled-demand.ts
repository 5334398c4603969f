// What a node's agent has given away beyond the annotations of its pods: grants of plain processes, and what a pod got on top
// of what its annotation says when its grant was resized. Pure. Who places pods sees it only if the node tells of it.

import type { ContainerGrant } from '../api/grant-annotation.ts';
import { type CardNeed, needOf } from './demand.ts';

/** By the agent's books: one pod, or one plain grant. */
export type Held = {
  readonly podUid?: string;
  readonly containers: readonly Pick<ContainerGrant, 'kind' | 'cards'>[];
};

type Needs = ReadonlyMap<string, CardNeed>;

/**
 * By UUID of the card. `annotated`: what a pod's annotation says; undefined where that is not known, and then nothing is counted
 * for it. A pod whose grant was made smaller has its annotated amount still, for whoever places others.
 */
export function othersOn(held: readonly Held[], annotated: (podUid: string) => Needs | undefined): Needs {
  const others = new Map<string, CardNeed>();
  for (const { podUid, containers } of held) {
    for (const [gpuUuid, need] of needOf(containers)) {
      const beyond = podUid === undefined ? need : beyondOf(need, annotated(podUid)?.get(gpuUuid));
      if (beyond) others.set(gpuUuid, added(others.get(gpuUuid), beyond));
    }
  }
  return others;
}

function beyondOf(need: CardNeed, annotated: CardNeed | undefined): CardNeed | undefined {
  const memoryBytes = need.memoryBytes - (annotated?.memoryBytes ?? need.memoryBytes);
  return memoryBytes > 0 ? { memoryBytes, coresPercent: 0, tenants: 0 } : undefined;
}

export const added = (sum: CardNeed | undefined, own: CardNeed): CardNeed => ({
  memoryBytes: (sum?.memoryBytes ?? 0) + own.memoryBytes,
  coresPercent: (sum?.coresPercent ?? 0) + own.coresPercent,
  tenants: (sum?.tenants ?? 0) + own.tenants,
});
