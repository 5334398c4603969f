// Bytes of this machine's pages of memory: 4096, or up to 65536 on arm64. Node does not expose it; it is in the
// auxiliary vector that the kernel passes to every program.
import { readFileSync } from 'node:fs';

/** Of getauxval(3). */
const AT_PAGESZ = 6n;

/** In an auxiliary vector of 64-bit words; undefined: it is not there. */
export function pageBytesIn(vector: Buffer): number | undefined {
  for (let at = 0; at + 16 <= vector.length; at += 16) {
    if (vector.readBigUInt64LE(at) === AT_PAGESZ) return Number(vector.readBigUInt64LE(at + 8));
  }
  return undefined;
}

let known: number | undefined;

export function memoryPageBytes(): number {
  known ??= pageBytesIn(readFileSync('/proc/self/auxv'));
  if (known === undefined) throw new Error('/proc/self/auxv has no page size');
  return known;
}
