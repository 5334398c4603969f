// Which of the nodes that can take a pod is best: how they compare, and the scores that kube-scheduler adds up. Pure.
import type { ContainerGrant } from '../api/grant-annotation.ts';
import type { Placement } from '../api/request.ts';
import { demandOf } from './demand.ts';
import type { PlaceableNode } from './place-pod.ts';

/** What a placement does to its node. */
export type Fit = {
  /** GPUs that were empty before. */
  readonly opened: number;
  /** Part of the node's memory that is granted afterwards, 0..1. */
  readonly granted: number;
};

export const BEST_SCORE = 10;

export function assessFit(containers: readonly ContainerGrant[], { gpus }: PlaceableNode): Fit {
  const demand = demandOf(containers);
  const usable = gpus.reduce((total, { usableBytes }) => total + usableBytes, 0);
  const granted = gpus.reduce(
    (total, { gpuUuid, grantedBytes }) => total + grantedBytes + (demand.get(gpuUuid)?.memoryBytes ?? 0),
    0,
  );
  const opened = gpus.filter(({ gpuUuid, tenants }) => tenants === 0 && demand.has(gpuUuid)).length;
  return { opened, granted: usable === 0 ? 1 : granted / usable };
}

/** Negative: `a` is better. Binpack keeps whole GPUs free, then fills the fullest node; spread takes the emptiest
 * node. */
export function compareFits(a: Fit, b: Fit, placement: Placement): number {
  if (placement === 'spread') return a.granted - b.granted;
  return a.opened - b.opened || b.granted - a.granted;
}

/** Only the best node gets the highest score: kube-scheduler breaks ties at random. */
export function scoreOfRank(rank: number, nodes: number): number {
  return rank === 0 ? BEST_SCORE : Math.floor(((BEST_SCORE - 1) * (nodes - rank)) / nodes);
}
