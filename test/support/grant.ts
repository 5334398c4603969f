// A container's files without an agent: page, ledger and the interposer beside them, as a mount would bring them.
import { execFileSync } from 'node:child_process';
import { mkdirSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import { BUILD, type SimulatedNode, type Teardown, temporaryFolder } from './node.ts';

export const MIB = 1024 * 1024;

export type GrantFiles = {
  readonly folder: string;
  /** For LD_PRELOAD: the CUDA object, and both. */
  readonly cuda: string;
  readonly both: string;
  /** Rewrites the amounts in place. */
  rewrite(cards: readonly GrantCard[]): void;
};
export type GrantCard = {
  readonly card: number;
  readonly memoryBytes: number;
  readonly contextBytes?: number;
  readonly granuleBytes?: number;
  readonly late?: boolean;
};

/** `contextBytes` and `granuleBytes` default to what the node's books say: what an agent would have measured. */
export function makeGrant(
  t: Teardown,
  node: Pick<SimulatedNode, 'books' | 'uuidHex'>,
  cards: readonly GrantCard[],
  slots = 64,
  isolate = true,
): GrantFiles {
  const folder = join(temporaryFolder(t), 'grant');
  mkdirSync(folder);
  for (const name of ['libcotenant.so', 'libcotenant-nvml.so']) symlinkSync(join(BUILD, name), join(folder, name));
  const write = (list: readonly GrantCard[]) => {
    const books = node.books();
    const words = list.map((entry) => {
      const facts = books.cards[entry.card];
      const context = entry.contextBytes ?? facts?.contextBytes ?? 0;
      const granule = entry.granuleBytes ?? facts?.granuleBytes ?? 0;
      return `${node.uuidHex(entry.card)}:${entry.memoryBytes}:${context}:${granule}:${entry.late ? 1 : 0}`;
    });
    execFileSync(join(BUILD, 'tests/grant'), [folder, String(slots), isolate ? '1' : '0', ...words]);
  };
  write(cards);
  const cuda = join(folder, 'libcotenant.so');
  return { folder, cuda, both: `${cuda} ${join(folder, 'libcotenant-nvml.so')}`, rewrite: write };
}
