// Our own names: totals over the container's cards, split equally, so that scheduler and quota can add them up.
// Owns how the three amounts become shares; the pod's annotations are read in choices.ts.
import { GPU, GPU_CORES, GPU_MEMORY, OWN_RESOURCES } from '../../api/names.ts';
import { type CardShare, type MemoryAmount, MOST_CARDS, MOST_MEMORY_BYTES } from '../../api/request.ts';
import { failed, invalid, type Problem, type Result } from '../../common/problem.ts';
import { floorUnits, formatBytes, MIB, parseQuantity, parseWhole, wholeUnits } from '../../common/quantity.ts';
import type { Answer, Asked, Dialect } from './dialect.ts';

export const cotenant: Dialect = {
  name: 'cotenant',
  resources: OWN_RESOURCES,
  environment: [],
  schedulers: [],
  zeroIsNothing: false,
  read,
};

function read(asked: Asked): Result<Answer> {
  const cardsText = asked.amounts.get(GPU);
  const cards = parseWhole(cardsText ?? '1', 1, MOST_CARDS);
  if (!cards.ok) {
    const right = `${cards.right}, or leave ${GPU} out where the container needs no GPU`;
    return failed(invalid(asked.amountPath(GPU), cardsText, cards.wrong, right));
  }
  const problems: Problem[] = [];
  const memoryText = asked.amounts.get(GPU_MEMORY);
  const coresText = asked.amounts.get(GPU_CORES);
  const bytes = memoryText === undefined ? undefined : perCardBytes(memoryText, cards.value, asked, problems);
  const cores = coresText === undefined ? undefined : perCardCores(coresText, cards.value, asked, problems);
  if (problems.length > 0) return { ok: false, problems };
  // Without an amount the whole card is meant: a share of a size that nobody named could only be a guess.
  const memory: MemoryAmount = bytes === undefined ? { kind: 'whole' } : { kind: 'bytes', bytes };
  const share: CardShare = cores === undefined ? { memory } : { memory, coresPercent: cores };
  const warnings =
    bytes === undefined && cores !== undefined
      ? [`${GPU_MEMORY} is not given, so all memory of the card is reserved and nobody else fits on it`]
      : [];
  return { ok: true, value: { cards: Array.from({ length: cards.value }, () => share), warnings } };
}

/** Whole MiB for each card, or undefined with the problem noted. */
function perCardBytes(text: string, cards: number, asked: Asked, problems: Problem[]): number | undefined {
  const path = asked.amountPath(GPU_MEMORY);
  const refuse = (wrong: string, right: string) => {
    problems.push(invalid(path, text, wrong, right));
    return undefined;
  };
  const parsed = parseQuantity(text);
  if (!parsed.ok) return refuse(parsed.why, 'write an amount such as "4Gi" or "1536Mi"');
  const step = cards * MIB;
  const most = `at most ${formatBytes(MOST_MEMORY_BYTES)}`;
  const least = `write at least ${formatBytes(step)}${cards > 1 ? ` (1Mi on each of ${cards} cards)` : ''}`;
  if (parsed.quantity.numerator <= 0n) return refuse('is not more than nothing', `${least}, or leave it out`);
  const steps = wholeUnits(parsed.quantity, BigInt(step));
  const below = floorUnits(parsed.quantity, BigInt(step));
  if (below * BigInt(step) > BigInt(MOST_MEMORY_BYTES)) return refuse('is more than any node has', `write ${most}`);
  if (steps !== undefined) return Number(steps) * MIB;
  const wrong =
    cards > 1 ? `is not a whole number of MiB on each of ${cards} cards` : 'is not a whole number of MiB on the card';
  const near = [below, below + 1n].filter((count) => count > 0n).map((count) => `"${mebibytes(count, cards)}"`);
  return refuse(wrong, `write ${near.join(' or ')}${binaryTwin(text)}`);
}

/** Said in Mi, so that both neighbours are in the same unit. */
function mebibytes(steps: bigint, cards: number): string {
  return `${steps * BigInt(cards)}Mi`;
}

/** "4G" is most often meant as "4Gi". */
function binaryTwin(text: string): string {
  return /^\d+[kMGTP]$/.test(text) ? ` (or "${text.replace('k', 'K')}i", if binary units were meant)` : '';
}

/** Whole percent for each card, or undefined with the problem noted. */
function perCardCores(text: string, cards: number, asked: Asked, problems: Problem[]): number | undefined {
  const path = asked.amountPath(GPU_CORES);
  const whole = parseWhole(text, cards, 100 * cards);
  const meaning = `${100 * cards} is all compute of ${cards === 1 ? 'the card' : `${cards} cards`}`;
  if (!whole.ok) {
    problems.push(invalid(path, text, whole.wrong, `${whole.right} (${meaning}), or leave it out`));
    return undefined;
  }
  const share = Math.floor(whole.value / cards);
  if (share * cards === whole.value) return share;
  const right = `write ${share * cards} or ${(share + 1) * cards}, the total over all cards`;
  problems.push(invalid(path, text, `cannot be split equally over ${cards} cards in whole percent`, right));
  return undefined;
}
