// Entries of process lists that are no process's, for none can have their pid or it has changed hands, added up over all cards. The
// sampler counts them card by card: a card that a sample has not keeps what it had. So the sum only grows.
import type { SampledCard } from '../sampling/sample.ts';
import { createGrowing } from './reset-safe-counter.ts';

export type Nobodys = {
  /** With each sample; the sum up to then. undefined: no card has been seen yet. */
  see(sample: {
    readonly round: number;
    readonly cards: readonly Pick<SampledCard, 'uuid' | 'nobodysEntries'>[];
  }): number | undefined;
};

export function createNobodys(): Nobodys {
  const ofCards = createGrowing();
  return {
    see({ round, cards }) {
      ofCards.at(round);
      for (const { uuid, nobodysEntries = 0 } of cards) ofCards.see(uuid, nobodysEntries);
      const sums = ofCards.sums();
      return sums.length === 0 ? undefined : sums.reduce((all, [, sum]) => all + sum, 0);
    },
  };
}
