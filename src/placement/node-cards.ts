// The annotation `cotenant.io/cards` of a Node: its cards as its agent sees them, for the extender to choose from and for
// people to look at. Owns the text form.
import { field, isWithin } from '../request/json.ts';
import { MOST_CARDS, MOST_MEMORY_BYTES } from '../request/request.ts';
import { GPU_UUID } from './pod-grant.ts';

export type NodeCard = {
  readonly gpuUuid: string;
  /** The driver's order on that node, which can change over a reboot; for people only. */
  readonly index: number;
  readonly model: string;
  /** What the driver leaves to programs: the sum of all grants on the card is at most this. */
  readonly usableBytes: number;
  readonly healthy: boolean;
};

export type NodeCards = {
  /** Containers with a share that one card takes. */
  readonly mostTenantsPerCard: number;
  readonly cards: readonly NodeCard[];
};

const VERSION = 1;
const LONGEST_MODEL = 128;

export function formatNodeCards({ mostTenantsPerCard, cards }: NodeCards): string {
  return JSON.stringify({
    version: VERSION,
    mostTenantsPerCard,
    cards: cards.map(({ gpuUuid, index, model, usableBytes, healthy }) => ({
      gpuUuid,
      index,
      model: model.slice(0, LONGEST_MODEL),
      usableBytes,
      healthy,
    })),
  });
}

/** The cards, or what is wrong with the text. Keys that a later version adds are passed over. */
export function parseNodeCards(text: string): NodeCards | { readonly wrong: string } {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    return { wrong: 'it is not JSON' };
  }
  if (field(value, 'version') !== VERSION) return { wrong: `it is not of version ${VERSION}` };
  const [mostTenantsPerCard, given] = [field(value, 'mostTenantsPerCard'), field(value, 'cards')];
  if (!isWithin(mostTenantsPerCard, 1, 1000)) return { wrong: 'mostTenantsPerCard is not a count' };
  if (!Array.isArray(given) || given.length > MOST_CARDS) return { wrong: 'cards is not a list of cards' };
  const cards = given.map(decodeCard);
  const bad = cards.findIndex((card) => card === undefined);
  if (bad >= 0) return { wrong: `cards[${bad}] is not a card` };
  const good = cards.filter((card) => card !== undefined);
  if (new Set(good.map(({ gpuUuid }) => gpuUuid)).size < good.length) return { wrong: 'it names a card twice' };
  return { mostTenantsPerCard, cards: good };
}

function decodeCard(value: unknown): NodeCard | undefined {
  const [gpuUuid, index, model] = [field(value, 'gpuUuid'), field(value, 'index'), field(value, 'model')];
  const [usableBytes, healthy] = [field(value, 'usableBytes'), field(value, 'healthy')];
  if (typeof gpuUuid !== 'string' || !GPU_UUID.test(gpuUuid)) return undefined;
  if (!isWithin(index, 0, 1000) || typeof model !== 'string' || typeof healthy !== 'boolean') return undefined;
  if (!isWithin(usableBytes, 0, MOST_MEMORY_BYTES)) return undefined;
  return { gpuUuid, index, model: model.slice(0, LONGEST_MODEL), usableBytes, healthy };
}
