// What the driver does not tell of a card, in words, and what follows from it: said once, for a machine on which something never is
// to be had (unified memory, a guest of vGPU, a card handed through) works less well than it looks. Counts of failed calls are the page's.
import { type Sample, type SampledCard, tellsWho } from './sample.ts';

/** What failed is no property of the machine, and a driver that failed twice is asked again after up to 8 s. */
const SAMPLES = 12;

/** Clauses behind "the driver does not tell", each with what follows. Of a card that is lost nothing is said. */
export function untoldOf(card: SampledCard): readonly string[] {
  if (!card.healthy || card.divided || card.parent !== undefined) return [];
  return [
    ...(card.divisionUntold ? ['whether MIG divides it: nothing can be granted on it'] : []),
    ...(card.totalBytes === undefined ? ['how much memory it has: nothing can be granted on it'] : []),
    ...(tellsWho(card)
      ? []
      : ['which processes use it: who is over a grant is not seen, and only the interposer holds limits']),
    ...(card.useTold ? [] : ['how much compute each process uses: no share is judged, and nobody knows who is idle']),
    ...(card.utilizationPercent === undefined ? ['how busy it is'] : []),
    ...(card.eccUncorrectedVolatile === undefined ? ['errors of its memory: none is counted'] : []),
    ...(card.powerMw === undefined ? ['what power it draws'] : []),
    ...(card.powerLimitMw === undefined ? ['its power limit'] : []),
    ...(card.pcieReceivedBytes === undefined && card.nvlinkReceivedBytes === undefined
      ? ['what goes over its links']
      : []),
    ...(card.tellsEvents ? [] : ['its Xids: they are neither counted nor held against it']),
  ];
}

export function createUntold(onChange: (text: string) => void): { see(sample: Sample): void } {
  const seen = new Map<string, { readonly text: string; readonly samples: number }>();
  return {
    see(sample) {
      if (sample.problem !== undefined) return;
      for (const card of sample.cards) {
        const text = untoldOf(card).join('; ');
        const before = seen.get(card.uuid);
        const samples = before?.text === text ? before.samples + 1 : 1;
        seen.set(card.uuid, { text, samples });
        if (samples === SAMPLES && text !== '') onChange(`${card.uuid}: the driver does not tell ${text}`);
      }
    },
  };
}
