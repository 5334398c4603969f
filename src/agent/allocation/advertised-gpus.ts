// What a node tells the scheduler that it may choose from: its cards, and what is gone of them. A plain value in, a plain value out.

import type { CardStanding } from '../../api/gpu.ts';
import type { CardsReading } from '../../api/node-annotation.ts';
import { healthState, LOST_WORDS } from '../../policy/gpu-health.ts';
import type { FenceState } from '../../policy/isolation-check.ts';
import type { Grant } from '../grants/grant.ts';
import { heldBy } from '../grants/sums.ts';
import { isShareable, type SampledCard } from '../sampling/sample.ts';
import type { NodeState } from '../usage/node-usage.ts';
import { usableBytes } from './process-grants.ts';

export type Offer = {
  /** The sample is too old: no card is healthy for all that is known. */
  readonly isStale: boolean;
  readonly mostTenantsPerCard: number;
  readonly grants: readonly Grant[];
  readonly standingOf: (gpuUuid: string) => CardStanding;
  /** None: that is not tried. */
  readonly fencesOf: ((gpuUuids: readonly string[]) => FenceState | undefined) | undefined;
};

export function offeredCards({ sample, devices }: NodeState, offer: Offer): CardsReading {
  const shareable = devices.flatMap(({ card }) => (isShareable(card) ? [card] : []));
  const isHealthy = (card: SampledCard) => card.healthy && offer.standingOf(card.uuid).fault === undefined;
  const healthy = shareable.flatMap((card) => (isHealthy(card) ? [card.uuid] : []));
  const complete = sample.problem === undefined && devices.length > 0;
  const health = healthState(
    devices.map(({ card: { uuid, healthy: had } }) => ({
      gpuUuid: uuid,
      why: offer.standingOf(uuid).fault ?? (had ? undefined : LOST_WORDS),
    })),
  );
  return {
    mostTenantsPerCard: offer.mostTenantsPerCard,
    cards: shareable.map((card) => ({
      ...offer.standingOf(card.uuid),
      gpuUuid: card.uuid,
      index: card.index,
      model: card.name,
      usableBytes: usableBytes(card),
      healthy: isHealthy(card) && !offer.isStale,
    })),
    ...(offer.fencesOf && { fences: offer.fencesOf(healthy) }),
    ...(complete && !offer.isStale && health && { health }),
    complete,
    held: heldBy(offer.grants),
  };
}
