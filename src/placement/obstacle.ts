// Why a card cannot take what is needed of it: the one place that compares, and the words that people read. Pure.
import { GPU_CORES, GPU_MEMORY } from '../request/names.ts';
import { MIB } from '../request/quantity.ts';
import type { CardNeed } from './need.ts';
import type { PlaceableCard } from './place.ts';

export type Obstacle = {
  /** One clause that names the card and the numbers. */
  readonly text: string;
  /** The same of a whole node, without card and numbers: a clause behind "nodes where". */
  readonly general: string;
  /** How far it is from fitting; smaller is nearer. Comparable over cards and kinds of obstacles. */
  readonly distance: number;
  /** Whether it can fit once others leave the card. */
  readonly passing: boolean;
};

/** What stands in the way; undefined: nothing. */
export function obstacleOf(card: PlaceableCard, need: CardNeed, mostTenantsPerCard: number): Obstacle | undefined {
  const { gpuUuid, usableBytes } = card;
  const leftBytes = Math.max(0, usableBytes - card.grantedBytes);
  const leftCores = Math.max(0, 100 - card.grantedCoresPercent);
  if (!card.healthy) return lasting(`${gpuUuid} is not healthy`, 'no card is healthy', 5);
  if (card.closed !== undefined) return passing(`${gpuUuid} is closed: ${card.closed}`, 'no card is open', 4);
  if (need.memoryBytes > usableBytes) {
    const text = `${gpuUuid} has ${mib(usableBytes)} MiB in all, ${mib(need.memoryBytes)} MiB are asked for`;
    return lasting(text, `no card has that much ${GPU_MEMORY}`, 6);
  }
  if (need.coresPercent > 100) {
    const text = `${gpuUuid} has 100 % of ${GPU_CORES} in all, ${need.coresPercent} % are asked for`;
    return lasting(text, `no card has that much ${GPU_CORES}`, 6);
  }
  if (card.tenants + need.tenants > mostTenantsPerCard) {
    const text =
      need.tenants === 1
        ? `${gpuUuid} has ${card.tenants} tenants, which is its limit`
        : `${gpuUuid} has ${card.tenants} tenants of at most ${mostTenantsPerCard}, ${need.tenants} more are asked for`;
    return passing(text, 'no card takes another tenant', 3);
  }
  if (need.memoryBytes > leftBytes) {
    const text = `${gpuUuid} has ${mib(leftBytes)} MiB of ${GPU_MEMORY} left, ${mib(need.memoryBytes)} MiB are asked for`;
    return passing(text, `no card has enough ${GPU_MEMORY} left`, (need.memoryBytes - leftBytes) / usableBytes);
  }
  if (need.coresPercent > leftCores) {
    const text = `${gpuUuid} has ${leftCores} % of ${GPU_CORES} left, ${need.coresPercent} % are asked for`;
    return passing(text, `no card has enough ${GPU_CORES} left`, (need.coresPercent - leftCores) / 100);
  }
  return undefined;
}

const lasting = (text: string, general: string, distance: number): Obstacle => ({
  text,
  general,
  distance,
  passing: false,
});
const passing = (text: string, general: string, distance: number): Obstacle => ({
  text,
  general,
  distance,
  passing: true,
});

const mib = (bytes: number): number => Math.floor(bytes / MIB);
