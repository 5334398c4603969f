// A grant that is made smaller while it is in use. What its holder has already is not taken away and not held against it: it
// stays allowed, and counted on the card, until it is given back. Pure; who stores and writes it is the registry's.
import type { CardGrant } from '../../api/gpu.ts';
import { type Sample, type SampledProcess, toldCard } from '../sampling/sample.ts';

/** What it may hold without being over its grant. New requests are refused above `limitBytes` all the same. */
export const allowedBytes = (card: CardGrant): number => Math.max(card.limitBytes, card.heldBytes ?? 0);

/** The grant with `bytes`; all that it could hold until now may be held still. */
export function resized(card: CardGrant, bytes: number): CardGrant {
  const { heldBytes: _, ...rest } = card;
  const before = allowedBytes(card);
  return { ...rest, memoryBytes: bytes, limitBytes: bytes, ...(before > bytes && { heldBytes: before }) };
}

/**
 * Bytes that its processes hold on a card by the driver's word; undefined where this sample does not tell. A list that was
 * not answered is no proof of anything given back: whoever holds it still would be stopped for it.
 */
export function toldBytes(gpuUuid: string, sample: Sample, own: readonly SampledProcess[]): number | undefined {
  const card = toldCard(sample, gpuUuid);
  if (!card) return undefined;
  const uses = own.flatMap((process) => process.cards.filter((use) => use.card === card.index && use.listed));
  return uses.reduce<number | undefined>(
    (sum, { bytes }) => (sum === undefined || bytes === undefined ? undefined : sum + bytes),
    0,
  );
}

/** After a sample in which it held `bytes`: what is given back stays given back. The same object where nothing changed. */
export function givenBack(card: CardGrant, bytes: number): CardGrant {
  if (card.heldBytes === undefined || bytes >= card.heldBytes) return card;
  const { heldBytes: _, ...rest } = card;
  return bytes > card.limitBytes ? { ...rest, heldBytes: bytes } : rest;
}
