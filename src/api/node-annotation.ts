// The annotation `cotenant.io/cards` of a Node: its cards as its agent sees them, for the extender to choose from and for
// people to look at. Owns the text form.

import { decodeAll, field, isWithin, parseVersioned } from '../common/json.ts';
import { type CardNeed, needOf } from '../placement/demand.ts';
import { type Held, othersOn } from '../placement/unscheduled-demand.ts';
import type { HealthState } from '../policy/gpu-health.ts';
import type { FenceState } from '../policy/isolation-check.ts';
import { GPU_UUID, parsePodGrant } from './grant-annotation.ts';
import { MOST_CARDS, MOST_MEMORY_BYTES } from './request.ts';

export type NodeCard = {
  readonly gpuUuid: string;
  /** The driver's order on that node, which can change over a reboot; for people only. */
  readonly index: number;
  readonly model: string;
  /** What the driver leaves to programs: the sum of all grants on the card is at most this. */
  readonly usableBytes: number;
  readonly healthy: boolean;
  /** Why it is not healthy, where it is no other reason than that the driver lost it. */
  readonly fault?: string;
  /** A limit on it would not hold, and why: it takes nobody new. Absent: as far as is known it holds. */
  readonly unfenced?: string;
  /** Given away by the agent beyond what pods' annotations say (others.ts); absent: nothing. */
  readonly others?: CardNeed;
};

export type NodeCards = {
  /** Containers with a share that one card takes. */
  readonly mostTenantsPerCard: number;
  readonly cards: readonly NodeCard[];
};

/** What the agent of a node knows of its cards now. */
export type CardsReading = NodeCards & {
  /** False: the driver could not be asked, and there may be more cards. */
  readonly complete: boolean;
  /** All grants on the node. */
  readonly held: readonly Held[];
  /** For the Node's condition; absent: not known, or not asked for. */
  readonly fences?: FenceState | undefined;
  /** Likewise; absent: the driver could not be asked. */
  readonly health?: HealthState | undefined;
};

const VERSION = 1;
const LONGEST_MODEL = 128;
const LONGEST_WHY = 256;
const MOST_SUM = Number.MAX_SAFE_INTEGER;

export function formatNodeCards({ mostTenantsPerCard, cards }: NodeCards): string {
  return JSON.stringify({
    version: VERSION,
    mostTenantsPerCard,
    cards: cards.map(({ gpuUuid, index, model, usableBytes, healthy, fault, unfenced, others }) => ({
      gpuUuid,
      index,
      model: model.slice(0, LONGEST_MODEL),
      usableBytes,
      healthy,
      ...(fault !== undefined && { fault: fault.slice(0, LONGEST_WHY) }),
      ...(unfenced !== undefined && { unfenced: unfenced.slice(0, LONGEST_WHY) }),
      ...(others && { others }),
    })),
  });
}

/** The cards, or what is wrong with the text. Keys that a later version adds are passed over. */
export function parseNodeCards(text: string): NodeCards | { readonly wrong: string } {
  const parsed = parseVersioned(text, VERSION);
  if ('wrong' in parsed) return parsed;
  const [mostTenantsPerCard, given] = [field(parsed.value, 'mostTenantsPerCard'), field(parsed.value, 'cards')];
  if (!isWithin(mostTenantsPerCard, 1, 1000)) return { wrong: 'mostTenantsPerCard is not a count' };
  if (!Array.isArray(given) || given.length > MOST_CARDS) return { wrong: 'cards is not a list of cards' };
  const cards = decodeAll(given, decodeCard);
  if ('badIndex' in cards) return { wrong: `cards[${cards.badIndex}] is not a card` };
  if (new Set(cards.map(({ gpuUuid }) => gpuUuid)).size < cards.length) return { wrong: 'it names a card twice' };
  return { mostTenantsPerCard, cards };
}

/**
 * What a Node is to tell when it told `shown` before: the cards that were read, a lost one with the memory that it had, and as
 * not healthy those that are missing while pods hold grants on them, or while nobody can say what is there. A kubelet that
 * starts anew ends pods that run when the node offers less than they ask for. `grantTextOf`: of a pod on this node.
 */
export function cardsToTell(
  reading: CardsReading,
  shown: NodeCards | undefined,
  grantTextOf: (podUid: string) => string | undefined,
): NodeCards {
  const { mostTenantsPerCard, cards, complete, held } = reading;
  const ofPods = new Set(
    held.flatMap(({ podUid, containers }) =>
      podUid === undefined ? [] : containers.flatMap((one) => one.cards.map(({ gpuUuid }) => gpuUuid)),
    ),
  );
  const before = new Map(shown?.cards.map((card) => [card.gpuUuid, card]));
  const read = cards.map((card) =>
    card.usableBytes > 0 ? card : { ...card, usableBytes: before.get(card.gpuUuid)?.usableBytes ?? 0 },
  );
  for (const { gpuUuid } of cards) before.delete(gpuUuid);
  const missing = [...before.values()].filter(({ gpuUuid }) => !complete || ofPods.has(gpuUuid));
  const others = othersOn(held, (podUid) => {
    const grant = parsePodGrant(grantTextOf(podUid) ?? '');
    return 'wrong' in grant ? undefined : needOf(grant.containers);
  });
  return {
    mostTenantsPerCard,
    cards: [...read, ...missing.map((card) => ({ ...card, healthy: false }))].map(({ others: _, ...card }) => {
      const own = others.get(card.gpuUuid);
      return own ? { ...card, others: own } : card;
    }),
  };
}

function decodeCard(value: unknown): NodeCard | undefined {
  const [gpuUuid, index, model] = [field(value, 'gpuUuid'), field(value, 'index'), field(value, 'model')];
  const [usableBytes, healthy] = [field(value, 'usableBytes'), field(value, 'healthy')];
  if (typeof gpuUuid !== 'string' || !GPU_UUID.test(gpuUuid)) return undefined;
  if (!isWithin(index, 0, 1000) || typeof model !== 'string' || typeof healthy !== 'boolean') return undefined;
  if (!isWithin(usableBytes, 0, MOST_MEMORY_BYTES)) return undefined;
  const [fault, unfenced] = [field(value, 'fault'), field(value, 'unfenced')];
  if (fault !== undefined && typeof fault !== 'string') return undefined;
  if (unfenced !== undefined && typeof unfenced !== 'string') return undefined;
  const card = {
    gpuUuid,
    index,
    model: model.slice(0, LONGEST_MODEL),
    usableBytes,
    healthy,
    ...(fault !== undefined && { fault: fault.slice(0, LONGEST_WHY) }),
    ...(unfenced !== undefined && { unfenced: unfenced.slice(0, LONGEST_WHY) }),
  };
  if (field(value, 'others') === undefined) return card;
  const others = decodeNeed(field(value, 'others'));
  return others && { ...card, others };
}

function decodeNeed(value: unknown): CardNeed | undefined {
  const memoryBytes = field(value, 'memoryBytes');
  const [coresPercent, tenants] = [field(value, 'coresPercent'), field(value, 'tenants')];
  if (!isWithin(memoryBytes, 0, MOST_SUM) || !isWithin(coresPercent, 0, MOST_SUM) || !isWithin(tenants, 0, MOST_SUM))
    return undefined;
  return { memoryBytes, coresPercent, tenants };
}
