// Which of one node's cards each container of a pod gets: pure, from the node's books and the pod's request. Owns the choice of
// cards on one node; which node it is belongs to rank.ts and the scheduler.

import type { CardGrant, PlaceableCard } from '../api/gpu.ts';
import type { ContainerGrant } from '../api/grant-annotation.ts';
import { GPU } from '../api/names.ts';
import {
  type CardShare,
  type ContainerRequest,
  type Placement,
  type PodRequest,
  resolveLimit,
  resolveShare,
} from '../api/request.ts';
import { type CardNeed, needOf } from './demand.ts';
import { type Obstacle, obstacleOf } from './fit.ts';

/** A node's cards with what is granted on them. */
export type NodeBooks = {
  readonly mostTenantsPerCard: number;
  readonly cards: readonly PlaceableCard[];
};

export type PodRefusal = {
  /** One sentence: the nearest miss with its card and numbers. Made when it is asked for. */
  readonly reason: () => string;
  /** The same without card and numbers: a clause behind "nodes where". */
  readonly general: string;
  /** How far the nearest miss is from fitting; comparable over nodes. */
  readonly distance: number;
  /** Whether it can fit once others leave the node. */
  readonly passing: boolean;
};

export type PodPlaced =
  | { readonly ok: true; readonly containers: readonly ContainerGrant[] }
  | ({ readonly ok: false } & PodRefusal);

/**
 * Containers of a pod may share a card; shares of one container lie on different ones. What fits is judged by the pod's need
 * per card as need.ts has it. A request with one container is placed whenever that is possible at all. Several containers are
 * tried one after the other, in a few orders: a pod that fills a node in one certain way alone may be refused.
 */
export function placePod(request: PodRequest, books: NodeBooks, fallback: Placement): PodPlaced {
  const open = openCards(request, books);
  if ('reason' in open) return { ok: false, ...open };
  const placement = request.placement ?? fallback;
  const [only, ...others] = request.containers;
  const [share, ...more] = only?.cards ?? [];
  if (only && share && others.length === 0 && more.every((one) => isAlike(one, share)))
    return placeAlike(only, share, open, books.mostTenantsPerCard, placement);
  let first: PodRefusal | undefined;
  for (const order of ordersOf(request.containers, open)) {
    for (const preference of [placement, placement === 'spread' ? 'binpack' : 'spread'] as const) {
      const tried = placeInOrder(order, open, books.mostTenantsPerCard, preference);
      if (tried.ok) return { ok: true, containers: tried.containers.toSorted((a, b) => (a.name < b.name ? -1 : 1)) };
      first ??= tried;
      // One container is placed exactly: another way to choose finds nothing.
      if (order.length === 1) break;
    }
  }
  return { ok: false, ...(first ?? shortage('the pod asks for no card', 'no card is asked for', false)) };
}

function openCards({ gpuModels, gpuUuids }: PodRequest, { cards }: NodeBooks): readonly PlaceableCard[] | PodRefusal {
  if (gpuModels.length === 0 && gpuUuids.length === 0 && cards.length > 0) return cards;
  const models = gpuModels.map((name) => name.toLowerCase());
  const ofModel = cards.filter(({ model }) => models.length === 0 || models.includes(model.toLowerCase()));
  const open = ofModel.filter(({ gpuUuid }) => gpuUuids.length === 0 || gpuUuids.includes(gpuUuid));
  if (cards.length === 0) return shortage(`its agent reports no card (${GPU})`, 'no card is there', false);
  if (ofModel.length === 0) {
    const there = [...new Set(cards.map(({ model }) => model))].join(', ');
    return shortage(`no card is a ${gpuModels.join(' or ')}; there is ${there}`, 'no card is of the model', false);
  }
  if (open.length === 0)
    return shortage(`it has none of the cards ${gpuUuids.join(', ')}`, 'none of the named cards is', false);
  return open;
}

const shortage = (reason: string, general: string, passing: boolean): PodRefusal => ({
  reason: () => reason,
  general,
  distance: passing ? 3 : 7,
  passing,
});

/** Init containers last, for they use again what the others have; the rest largest first, then each one first in turn. */
function* ordersOf(
  containers: readonly ContainerRequest[],
  cards: readonly PlaceableCard[],
): Generator<readonly ContainerRequest[]> {
  const biggest = Math.max(...cards.map(({ usableBytes }) => usableBytes));
  const size = ({ cards: shares }: ContainerRequest) =>
    Math.max(...shares.map((share) => resolveShare(share, biggest)));
  const bySize = containers.toSorted((a, b) => size(b) - size(a));
  const [init, others] = [bySize.filter(({ kind }) => kind === 'init'), bySize.filter(({ kind }) => kind !== 'init')];
  const usual = [...others, ...init];
  yield usual;
  for (const container of usual.slice(1)) yield [container, ...usual.filter((other) => other !== container)];
}

type Tried =
  | { readonly ok: true; readonly containers: readonly ContainerGrant[] }
  | ({ readonly ok: false } & PodRefusal);

function placeInOrder(
  order: readonly ContainerRequest[],
  open: readonly PlaceableCard[],
  mostTenantsPerCard: number,
  placement: Placement,
): Tried {
  const placed: ContainerGrant[] = [];
  for (const container of order) {
    const { name, kind, memoryIsolation, cards: shares } = container;
    const before = needOf(placed);
    const grantOn = (share: CardShare, card: PlaceableCard): ContainerGrant => ({
      name,
      kind,
      memoryIsolation,
      cards: [cardGrantOf(share, card)],
    });
    // The first container, which most pods have alone, adds to nothing: what it takes is what is needed.
    const needWith = (share: CardShare, card: PlaceableCard): CardNeed =>
      placed.length === 0
        ? { ...cardGrantOf(share, card), tenants: 1 }
        : (needOf([...placed.map((one) => onCard(one, card)), grantOn(share, card)]).get(card.gpuUuid) ?? NOTHING);
    const options = shares.map((share) => {
      const seen = open.map((card) => {
        const need = needWith(share, card);
        return { card, need, obstacle: obstacleOf(card, need, mostTenantsPerCard) };
      });
      const fitting = seen.filter(({ obstacle }) => obstacle === undefined);
      const key = ({ card, need }: (typeof seen)[number]) => {
        const grown = need.memoryBytes - (before.get(card.gpuUuid)?.memoryBytes ?? 0);
        const left = card.usableBytes - card.grantedBytes - need.memoryBytes;
        return { grown: kind === 'init' ? grown : 0, left: placement === 'spread' ? -left : left };
      };
      return {
        share,
        obstacles: seen.flatMap(({ obstacle }) => obstacle ?? []),
        cards: fitting
          .map((one) => ({ card: one.card, ...key(one) }))
          .sort((a, b) => a.grown - b.grown || a.left - b.left)
          .map(({ card }) => card),
      };
    });
    const chosen = matched(options.map(({ cards }) => cards));
    if ('unmatched' in chosen) {
      return { ok: false, ...refusalOf(options[chosen.unmatched]?.obstacles ?? [], shares.length, open.length) };
    }
    placed.push({
      name,
      kind,
      memoryIsolation,
      cards: shares.flatMap((share, index) => {
        const card = chosen[index];
        return card ? [cardGrantOf(share, card)] : [];
      }),
    });
  }
  return { ok: true, containers: placed };
}

const isAlike = (a: CardShare, b: CardShare): boolean => JSON.stringify(a) === JSON.stringify(b);

/** One container with equal shares, as nearly all pods have: what fits one share fits each, so that counting is enough. */
function placeAlike(
  { name, kind, memoryIsolation, cards: shares }: ContainerRequest,
  share: CardShare,
  open: readonly PlaceableCard[],
  mostTenantsPerCard: number,
  placement: Placement,
): PodPlaced {
  const obstacles: Obstacle[] = [];
  const fitting: { readonly card: PlaceableCard; readonly left: number }[] = [];
  for (const card of open) {
    const memoryBytes = resolveShare(share, card.usableBytes);
    const need = { memoryBytes, coresPercent: share.coresPercent ?? 0, tenants: 1 };
    const obstacle = obstacleOf(card, need, mostTenantsPerCard);
    const left = card.usableBytes - card.grantedBytes - memoryBytes;
    if (obstacle) obstacles.push(obstacle);
    else fitting.push({ card, left: placement === 'spread' ? -left : left });
  }
  if (fitting.length < shares.length) return { ok: false, ...refusalOf(obstacles, shares.length, open.length) };
  const chosen = fitting.sort((a, b) => a.left - b.left).slice(0, shares.length);
  const cards = chosen.map(({ card }) => cardGrantOf(share, card));
  return { ok: true, containers: [{ name, kind, memoryIsolation, cards }] };
}

const NOTHING: CardNeed = { memoryBytes: 0, coresPercent: 0, tenants: 0 };

const onCard = (container: ContainerGrant, { gpuUuid }: PlaceableCard): ContainerGrant => ({
  ...container,
  cards: container.cards.filter((card) => card.gpuUuid === gpuUuid),
});

const cardGrantOf = (share: CardShare, { gpuUuid, usableBytes }: PlaceableCard): CardGrant => ({
  gpuUuid,
  memoryBytes: resolveShare(share, usableBytes),
  limitBytes: resolveLimit(share, usableBytes),
  coresPercent: share.coresPercent ?? 0,
});

/**
 * A card of its own for each share, from its options in order of preference; shares with fewest options choose first. Augmenting
 * paths (Kuhn), so that an assignment is found whenever there is one; else the first share that could get none.
 */
function matched(
  options: readonly (readonly PlaceableCard[])[],
): readonly PlaceableCard[] | { readonly unmatched: number } {
  const holders = new Map<PlaceableCard, number>();
  const assign = (share: number, tried: Set<PlaceableCard>): boolean => {
    const free = options[share]?.find((card) => !holders.has(card));
    if (free) {
      holders.set(free, share);
      return true;
    }
    for (const card of options[share] ?? []) {
      if (tried.has(card)) continue;
      tried.add(card);
      const holder = holders.get(card);
      if (holder === undefined || assign(holder, tried)) {
        holders.set(card, share);
        return true;
      }
    }
    return false;
  };
  const order = options.map((_, index) => index).sort((a, b) => (options[a]?.length ?? 0) - (options[b]?.length ?? 0));
  for (const share of order) if (!assign(share, new Set())) return { unmatched: share };
  const chosen: PlaceableCard[] = [];
  for (const [card, share] of holders) chosen[share] = card;
  return chosen;
}

/** The nearest miss in words. Without obstacles there are simply fewer cards than shares. */
function refusalOf(obstacles: readonly Obstacle[], asked: number, there: number): PodRefusal {
  if (asked > there) {
    const have = there === 1 ? 'one card' : `${there} cards`;
    return shortage(`${have} can be chosen from, ${asked} are asked for (${GPU})`, 'there are too few cards', false);
  }
  let nearest = obstacles[0];
  for (const one of obstacles) if (nearest === undefined || one.distance < nearest.distance) nearest = one;
  const fit = there - obstacles.length;
  if (!nearest) return shortage(`${asked} different cards of ${GPU} are asked for`, 'too few cards have room', true);
  const { text, general, distance } = nearest;
  const reason = () => {
    const few = fit > 0 ? `${fit} of ${asked} cards have room: ` : '';
    const others = obstacles.length - 1;
    const more = others === 0 ? '' : `, and ${others} more ${others === 1 ? 'card does' : 'cards do'} not fit either`;
    return `${few}${text()}${more}`;
  };
  // As many cards as are asked for can fit only if enough of them can be freed.
  const passing = fit + obstacles.filter((one) => one.passing).length >= asked;
  return { reason, general, distance, passing };
}
