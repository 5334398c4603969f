// The account of one process as its ledger holds it, read from the file.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { GrantFiles } from './grant.ts';

export type Account = { held: bigint; pending: bigint; freed: bigint; context: bigint; managed: bigint; pool: bigint };

/** The first slot's row of the first of so many GPUs: 64 bytes of header, 64 of totals for each, 64 of slot, then rows. */
export function account(grant: GrantFiles, gpus = 1): Account {
  const bytes = readFileSync(join(grant.folder, 'ledger'));
  const word = (index: number) => bytes.readBigUInt64LE(128 + 64 * gpus + index * 8);
  return { held: word(0), pending: word(1), freed: word(2), context: word(3), managed: word(4), pool: word(5) };
}

/** What is charged, beside what ever was freed. */
export const charged = ({ freed: _, ...rest }: Account) => rest;
