// What a node tells the scheduler that it may choose from: its cards, and what is gone of them. A plain value in, a plain value out.
import type { CardsReading } from '../placement/node-cards.ts';
import type { FenceState } from '../quota/canary.ts';
import type { NodeState } from './compare.ts';
import type { Grant } from './grants/grant.ts';
import { heldBy } from './grants/granted.ts';
import { usableBytes } from './grants/plain.ts';
import { isShareable } from './sample.ts';

export type Offer = {
  /** The sample is too old: no card is healthy for all that is known. */
  readonly isStale: boolean;
  readonly mostTenantsPerCard: number;
  readonly grants: readonly Grant[];
  /** Why limits do not hold on a card; undefined: they do, or nobody knows. */
  readonly unfencedOf: (gpuUuid: string) => string | undefined;
  /** None: that is not tried. */
  readonly fencesOf: ((gpuUuids: readonly string[]) => FenceState | undefined) | undefined;
};

export function offeredCards({ sample, devices }: NodeState, offer: Offer): CardsReading {
  const shareable = devices.flatMap(({ card }) => (isShareable(card) ? [card] : []));
  const healthy = shareable.flatMap((card) => (card.healthy ? [card.uuid] : []));
  return {
    mostTenantsPerCard: offer.mostTenantsPerCard,
    cards: shareable.map((card) => {
      const unfenced = offer.unfencedOf(card.uuid);
      return {
        ...(unfenced !== undefined && { unfenced }),
        gpuUuid: card.uuid,
        index: card.index,
        model: card.name,
        usableBytes: usableBytes(card),
        healthy: card.healthy && !offer.isStale,
      };
    }),
    ...(offer.fencesOf && { fences: offer.fencesOf(healthy) }),
    complete: sample.problem === undefined && devices.length > 0,
    held: heldBy(offer.grants),
  };
}
