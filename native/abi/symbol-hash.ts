// Hash tables of names that the interposer searches (shim_index_of and cuGetProcAddress): open addressing, each slot a
// tag and an index, so that they need neither memory nor relocation. native/interposer/symbols/symbols.h has the same
// hash.
import type { VersionRow } from './extract.ts';

const MASK = (1n << 64n) - 1n;

/** As shim_hash of native/interposer/symbols/symbols.h: words of eight bytes, the last of which ends with the name. */
export function nameHash(name: string): number {
  const bytes = Buffer.from(name);
  let hash = BigInt(bytes.length);
  const mix = (word: bigint) => {
    hash = ((hash ^ word) * 0x9e3779b97f4a7c15n) & MASK;
  };
  if (bytes.length < 8) for (const byte of bytes) mix(BigInt(byte));
  else {
    for (let at = 0; at < bytes.length - 8; at += 8) mix(bytes.readBigUInt64LE(at));
    mix(bytes.readBigUInt64LE(bytes.length - 8));
  }
  return Number(hash >> 32n);
}

/** SHIM_SLOT_BITS of native/interposer/symbols/symbols.h. */
export const SLOT_BITS = 11;

/** Lines of C for `struct shim_slot[]`: a name takes the first free slot from the top bits of its hash on. */
export function slotTable(names: readonly string[]): string[] {
  if (names.length > 2 ** SLOT_BITS / 2) throw new Error(`${names.length} names are too many for 2^${SLOT_BITS} slots`);
  const slots = new Map<number, string>();
  for (const [index, name] of names.entries()) {
    const hash = nameHash(name);
    let at = hash >>> (32 - SLOT_BITS);
    while (slots.has(at)) at = (at + 1) % 2 ** SLOT_BITS;
    slots.set(at, `    [${at}] = {0x${(hash & 0xffff).toString(16)}, ${index + 1}}, /* ${name} */`);
  }
  return [...slots].toSorted(([a], [b]) => a - b).map(([, line]) => line);
}

/** Lines of C for `struct version_row[]`, sorted by base name, and the first row of each base name. A base name is the
 * beginning of its symbols. */
export function versionRows(
  rows: readonly VersionRow[],
  symbols: readonly string[],
): { lines: string[]; bases: { base: string; first: number }[] } {
  const bases: { base: string; first: number }[] = [];
  const lines = rows.map((row, index) => {
    if (!row.symbol.startsWith(row.base) || row.version > 0xffff || row.base.length > 0xff)
      throw new Error(`cuda-driver.facts: no room for ${row.base} ${row.version} ${row.symbol}`);
    const before = rows[index - 1];
    if (before?.base === row.base) {
      if (before.version > row.version || (before.version === row.version && before.perThread))
        throw new Error(`cuda-driver.facts: ${row.symbol} belongs before ${before.symbol}`);
    } else {
      if (bases.some(({ base }) => base === row.base)) throw new Error(`cuda-driver.facts: ${row.base} stands apart`);
      bases.push({ base: row.base, first: index });
    }
    const last = rows[index + 1]?.base !== row.base;
    const numbers = [symbols.indexOf(row.symbol), row.version, row.base.length, Number(row.perThread), Number(last)];
    return `    {${numbers.join(', ')}}, /* ${row.symbol} */`;
  });
  return { lines, bases };
}
