// As much of ELF as it takes to read what a shared library exports and to give one other exports: 64-bit,
// little-endian. Every offset is checked against the file; what does not fit is an error that says where.

export const DT = { needed: 1, hash: 4, strtab: 5, symtab: 6, rela: 7, relaSize: 8, strSize: 10, soname: 14 } as const;
export const DT_JMPREL = { table: 23, size: 2 } as const;
export const DT_GNU_HASH = 0x6ffffef5;
export const DT_VERSYM = 0x6ffffff0;
export const SYMBOL_BYTES = 24;
const RELOCATION_BYTES = 24;

type Segment = {
  readonly type: number;
  readonly offset: number;
  readonly address: number;
  readonly size: number;
};
type Section = {
  readonly at: number;
  readonly type: number;
  readonly link: number;
};
export type Elf = {
  readonly bytes: Buffer;
  readonly machine: number;
  readonly segments: readonly Segment[];
  readonly sections: readonly Section[];
  /** Tag -> value and where in the file the value stands. */
  readonly dynamic: ReadonlyMap<number, { readonly value: number; readonly at: number }>;
};
/** One entry of the dynamic symbol table. */
export type DynamicSymbol = {
  readonly index: number;
  readonly name: string;
  readonly kind: 'function' | 'data';
  readonly address: number;
};

export class ElfError extends Error {}

const fail = (what: string): never => {
  throw new ElfError(what);
};

function word(bytes: Buffer, at: number): number {
  if (at < 0 || at + 8 > bytes.length) fail(`offset ${at} lies outside of the file`);
  const value = bytes.readBigUInt64LE(at);
  return value <= BigInt(Number.MAX_SAFE_INTEGER) ? Number(value) : fail(`a value too large at ${at}`);
}

function half(bytes: Buffer, at: number): number {
  return at >= 0 && at + 4 <= bytes.length ? bytes.readUInt32LE(at) : fail(`offset ${at} lies outside of the file`);
}

function quarter(bytes: Buffer, at: number): number {
  return at >= 0 && at + 2 <= bytes.length ? bytes.readUInt16LE(at) : fail(`offset ${at} lies outside of the file`);
}

/** Throws ElfError for anything but a 64-bit little-endian shared object. */
export function parseElf(bytes: Buffer): Elf {
  if (bytes.length < 64 || bytes.readUInt32BE(0) !== 0x7f454c46) fail('not an ELF file');
  if (bytes[4] !== 2 || bytes[5] !== 1) fail('not 64-bit little-endian');
  if (quarter(bytes, 16) !== 3) fail('not a shared object');
  const segments = Array.from({ length: quarter(bytes, 56) }, (_, index): Segment => {
    const at = word(bytes, 32) + index * quarter(bytes, 54);
    return {
      type: half(bytes, at),
      offset: word(bytes, at + 8),
      address: word(bytes, at + 16),
      size: word(bytes, at + 32),
    };
  });
  const sections = Array.from({ length: quarter(bytes, 60) }, (_, index): Section => {
    const at = word(bytes, 40) + index * quarter(bytes, 58);
    return { at, type: half(bytes, at + 4), link: half(bytes, at + 40) };
  });
  const place = segments.find((segment) => segment.type === 2) ?? fail('no dynamic segment');
  const dynamic = new Map<number, { value: number; at: number }>();
  for (let at = place.offset; at < place.offset + place.size; at += 16) {
    const tag = word(bytes, at);
    if (tag === 0) break;
    if (at + 16 > bytes.length) fail(`offset ${at + 8} lies outside of the file`);
    if (!dynamic.has(tag)) dynamic.set(tag, { value: Number(bytes.readBigUInt64LE(at + 8)), at: at + 8 });
  }
  return { bytes, machine: quarter(bytes, 18), segments, sections, dynamic };
}

/** Where in the file an address is loaded from. */
export function offsetOf(elf: Elf, address: number): number {
  const segment = elf.segments.find(
    ({ type, address: start, size }) => type === 1 && address >= start && address < start + size,
  );
  return segment ? segment.offset + (address - segment.address) : fail(`no part of the file is loaded at ${address}`);
}

const tableAt = (elf: Elf, tag: number, name: string): number =>
  offsetOf(elf, (elf.dynamic.get(tag) ?? fail(`no ${name}`)).value);

function textAt(elf: Elf, nameOffset: number): string {
  const start = tableAt(elf, DT.strtab, 'string table') + nameOffset;
  const end = elf.bytes.indexOf(0, start);
  return end < 0 ? fail(`a name without an end at ${start}`) : elf.bytes.toString('latin1', start, end);
}

/** First index that the GNU hash table covers, and one past the last. */
export function hashedRange(elf: Elf): { first: number; end: number } {
  const at = tableAt(elf, DT_GNU_HASH, 'GNU hash table');
  const [buckets, first, bloom] = [half(elf.bytes, at), half(elf.bytes, at + 4), half(elf.bytes, at + 8)];
  const bucketsAt = at + 16 + bloom * 8;
  let last = first - 1;
  for (let bucket = 0; bucket < buckets; bucket++) last = Math.max(last, half(elf.bytes, bucketsAt + 4 * bucket));
  if (last >= first) {
    const chainAt = bucketsAt + 4 * buckets;
    while ((half(elf.bytes, chainAt + 4 * (last - first)) & 1) === 0) last++;
  }
  return { first, end: last + 1 };
}

/** What others can bind to, in the order of the table. */
export function exportsOf(elf: Elf): readonly DynamicSymbol[] {
  const table = tableAt(elf, DT.symtab, 'symbol table');
  // The old hash table says how many symbols there are; the GNU one has to be walked.
  const old = elf.dynamic.get(DT.hash);
  const end = elf.dynamic.has(DT_GNU_HASH)
    ? hashedRange(elf).end
    : old
      ? half(elf.bytes, offsetOf(elf, old.value) + 4)
      : 0;
  const found: DynamicSymbol[] = [];
  for (let index = 1; index < end; index++) {
    const at = table + index * SYMBOL_BYTES;
    const info = elf.bytes[at + 4] ?? 0;
    const [binding, type] = [info >> 4, info & 15];
    const hidden = [1, 2].includes((elf.bytes[at + 5] ?? 0) & 3);
    if (quarter(elf.bytes, at + 6) === 0 || hidden || ![1, 2, 10].includes(binding)) continue;
    // Functions, indirect ones, and those of assembly without a type.
    const kind = [0, 2, 10].includes(type) ? 'function' : 'data';
    found.push({ index, name: textAt(elf, half(elf.bytes, at)), kind, address: word(elf.bytes, at + 8) });
  }
  return found;
}

/** Indices of symbols that relocations name. */
export function relocatedSymbols(elf: Elf): ReadonlySet<number> {
  const named = new Set<number>();
  for (const [tag, sizeTag] of [
    [DT.rela, DT.relaSize],
    [DT_JMPREL.table, DT_JMPREL.size],
  ] as const) {
    const table = elf.dynamic.get(tag);
    if (!table) continue;
    const at = offsetOf(elf, table.value);
    const size = elf.dynamic.get(sizeTag)?.value ?? 0;
    for (let entry = at; entry < at + size; entry += RELOCATION_BYTES) named.add(half(elf.bytes, entry + 12));
  }
  return named;
}

export function gnuHash(name: string): number {
  let hash = 5381;
  for (const byte of Buffer.from(name, 'latin1')) hash = (Math.imul(hash, 33) + byte) >>> 0;
  return hash;
}
