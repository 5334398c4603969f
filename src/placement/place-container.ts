// Which cards one container's request gets: pure, from the inventory and the grants that exist. Owns the choice on one node
// without a cluster; whole pods are placed by place-pod.ts, and writing the choice down belongs to others.

import type { CardGrant, PlaceableCard } from '../api/gpu.ts';
import { type CardShare, type Placement, resolveLimit, resolveShare } from '../api/request.ts';
import { obstacleOf } from './fit.ts';

export type PlacementRules = {
  readonly placement: Placement;
  readonly mostTenantsPerCard: number;
  /** Only these cards; empty: any. */
  readonly gpuUuids: readonly string[];
};

export type Placed =
  | { readonly ok: true; readonly cards: readonly CardGrant[] }
  | { readonly ok: false; readonly reason: string };

/** Shares go to different cards; the largest is placed first. Refusals say, per card, what stood in the way. */
export function place(shares: readonly CardShare[], cards: readonly PlaceableCard[], rules: PlacementRules): Placed {
  const unknown = rules.gpuUuids.filter((uuid) => !cards.some((card) => card.gpuUuid === uuid));
  // A list may name cards of other nodes, too.
  if (unknown.length > 0 && unknown.length === rules.gpuUuids.length) {
    const known = cards.map((card) => card.gpuUuid).join(', ');
    return { ok: false, reason: `no card ${unknown.join(', ')} on this node; there are ${known || 'none'}` };
  }
  const open = cards.filter((card) => rules.gpuUuids.length === 0 || rules.gpuUuids.includes(card.gpuUuid));
  const order = shares
    .map((share, index) => ({ share, index }))
    .toSorted((a, b) => size(b.share, open) - size(a.share, open));
  const grants: (CardGrant & { index: number })[] = [];
  for (const { share, index } of order) {
    const candidates = open.filter((card) => !grants.some((grant) => grant.gpuUuid === card.gpuUuid));
    const refusals: string[] = [];
    const fitting = candidates.filter((card) => {
      const need = {
        memoryBytes: resolveShare(share, card.usableBytes),
        coresPercent: share.coresPercent ?? 0,
        tenants: 1,
      };
      const obstacle = obstacleOf(card, need, rules.mostTenantsPerCard);
      if (obstacle) refusals.push(obstacle.text());
      return obstacle === undefined;
    });
    const chosen = choose(fitting, rules.placement);
    if (!chosen) {
      const seen = refusals.length > 0 ? refusals.join('; ') : 'no card is left to choose from';
      return { ok: false, reason: `card ${index + 1} of ${shares.length} fits nowhere: ${seen}` };
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
    cards: grants.toSorted((a, b) => a.index - b.index).map(({ index: _, ...card }) => card),
  };
}

function size(share: CardShare, cards: readonly PlaceableCard[]): number {
  return resolveShare(share, cards[0]?.usableBytes ?? 0);
}

/** Binpack: the fitting card with the least left. Spread: the one with the most. Ties go to the first in order. */
function choose(cards: readonly PlaceableCard[], placement: Placement): PlaceableCard | undefined {
  const left = (card: PlaceableCard) => card.usableBytes - card.grantedBytes;
  return cards.reduce<PlaceableCard | undefined>((best, card) => {
    if (!best) return card;
    const better = placement === 'spread' ? left(card) > left(best) : left(card) < left(best);
    return better ? card : best;
  }, undefined);
}
