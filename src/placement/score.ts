// Which of the nodes that can take a pod is best: how they compare, and the scores that kube-scheduler adds up. Pure.

import type { ContainerGrant } from '../api/grant-annotation.ts';
import type { Placement } from '../api/request.ts';
import { needOf } from './demand.ts';
import type { NodeBooks } from './place-pod.ts';

/** What a placement does to its node. */
export type Fit = {
  /** GPUs that were empty and are so no more. */
  readonly opened: number;
  /** Part of the node's memory that is granted afterwards, 0..1. */
  readonly granted: number;
};

export const BEST_SCORE = 10;

export function fitOf(containers: readonly ContainerGrant[], { gpus }: NodeBooks): Fit {
  const need = needOf(containers);
  const usable = gpus.reduce((total, { usableBytes }) => total + usableBytes, 0);
  const granted = gpus.reduce(
    (total, { gpuUuid, grantedBytes }) => total + grantedBytes + (need.get(gpuUuid)?.memoryBytes ?? 0),
    0,
  );
  const opened = gpus.filter(({ gpuUuid, tenants }) => tenants === 0 && need.has(gpuUuid)).length;
  return { opened, granted: usable === 0 ? 1 : granted / usable };
}

/** Negative: the first is better. Binpack keeps whole GPUs free, then fills the fullest node; spread takes the emptiest. */
export function compareFits(a: Fit, b: Fit, placement: Placement): number {
  if (placement === 'spread') return a.granted - b.granted;
  return a.opened - b.opened || b.granted - a.granted;
}

/** Score by place in the order: the best alone has the highest, so that kube-scheduler, which breaks ties by lot, has none. */
export function scoreOf(place: number, of: number): number {
  return place === 0 ? BEST_SCORE : Math.floor(((BEST_SCORE - 1) * (of - place)) / of);
}
