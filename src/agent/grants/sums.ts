// What a card has given away on this node: plain grants each for itself, a pod's containers by what they need at a time. Pure.
import { type CardNeed, needOf } from '../../placement/demand.ts';
import type { Held } from '../../placement/unscheduled-demand.ts';
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

const NOTHING: CardNeed = { memoryBytes: 0, coresPercent: 0, tenants: 0 };

/** Sums over the grants on each card that has any; for containers of pods this is less than the sum of their cards' figures. */
export function grantedByCard(grants: readonly Grant[]): ReadonlyMap<string, CardNeed> {
  const sums = new Map<string, CardNeed>();
  for (const { containers } of heldBy(grants)) {
    for (const [gpuUuid, need] of needOf(containers)) {
      const sum = sums.get(gpuUuid) ?? NOTHING;
      sums.set(gpuUuid, {
        memoryBytes: sum.memoryBytes + need.memoryBytes,
        coresPercent: sum.coresPercent + need.coresPercent,
        tenants: sum.tenants + need.tenants,
      });
    }
  }
  return sums;
}

export const grantedOn = (grants: readonly Grant[], gpuUuid: string): CardNeed =>
  grantedByCard(grants).get(gpuUuid) ?? NOTHING;
