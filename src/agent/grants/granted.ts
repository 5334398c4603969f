// What a card has given away on this node: plain grants each for itself, a pod's containers by what they need at a time. Pure.
import { type CardNeed, needOf } from '../../placement/need.ts';
import type { Held } from '../../placement/others.ts';
import { type Grant, isOfPod, podUidOf } from './grant.ts';

/** Grants of one pod together, plain ones each for itself. */
export function heldBy(grants: readonly Grant[]): readonly Held[] {
  const holders = Map.groupBy(grants, (grant) => podUidOf(grant) || grant.id);
  return [...holders.values()].map((own) => {
    const podUid = own[0] && podUidOf(own[0]);
    const containers = own.map(({ owner, cards }) => ({ kind: isOfPod(owner) ? owner.kind : ('app' as const), cards }));
    return { ...(podUid && { podUid }), containers };
  });
}

/** Sum over the grants on a card; for containers of pods this is less than the sum of their cards' figures. */
export function grantedOn(grants: readonly Grant[], gpuUuid: string): CardNeed {
  const sum = { memoryBytes: 0, coresPercent: 0, tenants: 0 };
  for (const { containers } of heldBy(grants)) {
    if (!containers.some(({ cards }) => cards.some((card) => card.gpuUuid === gpuUuid))) continue;
    const need = needOf(containers).get(gpuUuid);
    sum.memoryBytes += need?.memoryBytes ?? 0;
    sum.coresPercent += need?.coresPercent ?? 0;
    sum.tenants += need?.tenants ?? 0;
  }
  return sum;
}
