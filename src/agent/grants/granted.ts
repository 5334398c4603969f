// What a card has given away on this node: plain grants each for itself, a pod's containers by what they need at a time. Pure.
import { type CardNeed, needOf } from '../../placement/need.ts';
import { type Grant, isOfPod } from './grant.ts';

/** Sum over the grants on a card; for containers of pods this is less than the sum of their cards' figures. */
export function grantedOn(grants: readonly Grant[], gpuUuid: string): CardNeed {
  const pods = Map.groupBy(grants, ({ id, owner }) => (isOfPod(owner) ? owner.podUid : id));
  const sum = { memoryBytes: 0, coresPercent: 0, tenants: 0 };
  for (const containers of pods.values()) {
    const need = needOf(
      containers.map(({ container, owner, cards, isolateMemory }) => ({
        name: container,
        kind: isOfPod(owner) ? owner.kind : 'app',
        memoryIsolation: isolateMemory ? 'on' : 'off',
        cards,
      })),
    ).get(gpuUuid);
    sum.memoryBytes += need?.memoryBytes ?? 0;
    sum.coresPercent += need?.coresPercent ?? 0;
    sum.tenants += need?.tenants ?? 0;
  }
  return sum;
}
