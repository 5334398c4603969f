// cnvrg.io MetaGPU: 100 units are one card, 150 are one whole card and half of a second one.
// Owns this name's meaning. A remainder is never split over two cards, which MetaGPU did silently when none fitted.

import { type CardShare, type MemoryAmount, MOST_CARDS } from '../../api/request.ts';
import { textAt } from '../../common/json.ts';
import { failed, forbidden, invalid, keyPath, type Result } from '../../common/problem.ts';
import { parseWhole } from '../../common/quantity.ts';
import type { Rules } from '../rules/namespace-rules.ts';
import type { Answer, Asked, Dialect } from './dialect.ts';

const UNITS = 'cnvrg.io/metagpu';
const LIMIT_ANNOTATION = 'gpu-mem-limit.cnvrg.io/metagpu';

export const metagpu: Dialect = {
  name: 'metagpu',
  resources: [UNITS],
  environment: [],
  schedulers: [],
  zeroIsNothing: true,
  read,
};

function read(asked: Asked, rules: Rules): Result<Answer> {
  const text = asked.amounts.get(UNITS);
  const units = parseWhole(text, 1, 100 * MOST_CARDS);
  if (!units.ok) return failed(invalid(asked.amountPath(UNITS), text, units.wrong, `${units.right}: 100 is one card`));
  const cards = Math.ceil(units.value / 100);
  const reserved = percentPerCard(units.value, cards);
  const limitText = textAt(asked.annotations, LIMIT_ANNOTATION);
  if (limitText === undefined)
    return { ok: true, value: { cards: reserved.map((percent) => share(percent)), warnings: [] } };

  const path = keyPath('metadata.annotations', LIMIT_ANNOTATION);
  const limit = parseWhole(limitText, units.value, 100 * cards);
  if (!limit.ok) {
    const right = `${limit.right}: from what is reserved up to all memory of ${cards === 1 ? 'the card' : `${cards} cards`}`;
    return failed(invalid(path, limitText, limit.wrong, right));
  }
  if (limit.value > units.value && !rules.allowMemoryOvercommit) {
    const wrong = `is more than the ${units.value} units that ${UNITS} reserves, and overcommit is not allowed here`;
    return failed(forbidden(path, limitText, wrong, `write ${units.value}, or have allowMemoryOvercommit switched on`));
  }
  const limits = percentPerCard(limit.value, cards);
  return { ok: true, value: { cards: reserved.map((percent, card) => share(percent, limits[card])), warnings: [] } };
}

/** Full cards first, the remainder on the last one. */
function percentPerCard(units: number, cards: number): number[] {
  return Array.from({ length: cards }, (_, card) => (card < cards - 1 ? 100 : units - 100 * (cards - 1)));
}

function share(percent: number, limit: number = percent): CardShare {
  const memory = amount(percent);
  return limit === percent ? { memory } : { memory, memoryLimit: amount(limit) };
}

function amount(percent: number): MemoryAmount {
  return percent === 100 ? { kind: 'whole' } : { kind: 'percent', percent };
}
