// Reads the charge of one process from its ledger file.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { GrantFiles } from './grant.ts';

export type Account = { held: bigint; pending: bigint; freed: bigint; context: bigint; managed: bigint; pool: bigint };

/** Row of the first slot for the first of so many GPUs: 64 bytes of header, 64 of totals per GPU, 64 of slot, then
 * rows. */
export function account(grant: GrantFiles, gpus = 1): Account {
  const bytes = readFileSync(join(grant.folder, 'ledger'));
  const word = (index: number) => bytes.readBigUInt64LE(128 + 64 * gpus + index * 8);
  return { held: word(0), pending: word(1), freed: word(2), context: word(3), managed: word(4), pool: word(5) };
}

/** Bytes charged now, and all bytes ever freed. */
export const charged = ({ freed: _, ...rest }: Account) => rest;
