// Entries of process lists that are no process's, for none can have their pid or it has changed hands, added up over all cards. The
// sampler counts them card by card from its own start: a card that a sample has not keeps what it had, and a sampler that began
// again adds to it. So the sum only grows.
import type { SampledCard } from './sample.ts';

export type Nobodys = {
  /** With each sample; the sum up to then. undefined: no card has been seen yet. */
  see(cards: readonly Pick<SampledCard, 'uuid' | 'nobodysEntries'>[]): number | undefined;
};

export function createNobodys(): Nobodys {
  /** By the card's UUID, as its sampler has counted them. */
  const counted = new Map<string, number>();
  let sum: number | undefined;
  return {
    see(cards) {
      for (const { uuid, nobodysEntries = 0 } of cards) {
        const before = counted.get(uuid) ?? 0;
        sum = (sum ?? 0) + (nobodysEntries < before ? nobodysEntries : nobodysEntries - before);
        counted.set(uuid, nobodysEntries);
      }
      return sum;
    },
  };
}
