// Makes the interposer that is mounted over the driver's library file (CUDA or NVML): its object with the symbol table
// of the host's library. Symbols that the host lacks are hidden, and symbols that the interposer does not know are
// forwarded, so that a program finds exactly the symbols of the host's library.
//
//   node src/agent/containers/mounted-object.ts OBJECT HOST-LIBRARY LIBRARY FILES OUT
//
// LIBRARY and FILES are paths as the container sees them: the real library, and the folder of limits and ledger.
import { readFileSync, writeFileSync } from 'node:fs';
import { pathToFileURL } from 'node:url';
import {
  DT,
  DT_GNU_HASH,
  DT_VERSYM,
  type DynamicSymbol,
  type Elf,
  ElfError,
  exportsOf,
  gnuHash,
  hashedRange,
  offsetOf,
  parseElf,
  relocatedSymbols,
  SYMBOL_BYTES,
} from './elf.ts';

type MountedObject = {
  readonly bytes: Buffer;
  /** Names of ours that the host's library lacks. */
  readonly hidden: readonly string[];
  /** Names of the host's that this build does not know: they pass. */
  readonly passed: readonly string[];
  /** Data that the host's library exports: a debugger finds it in the library itself. */
  readonly left: readonly string[];
};

const MARKERS = ['cotenant_interposer', 'cotenant_nvml'];
const MAGIC = 'COTFORM1';
/** struct shim_form of native/interposer/symbols/symbols.h. */
const FORM = { spares: 12, spareCode: 16, tables: 20, tableBytes: 24, used: 28, library: 32, files: 1056, names: 2080 };
const PATH_BYTES = 1024;
const SPARE_BYTES = 32;
const GLOBAL_FUNCTION = 0x12;
const VERSION_GLOBAL = 1;

type Entry = { readonly name: string; readonly record: Buffer };

/** The GNU hash table over entries that are already in the order of their buckets. */
function hashTable(names: readonly string[], first: number, bucketCount: number): Buffer {
  const bloomWords = 2 ** Math.max(0, Math.ceil(Math.log2(Math.max(1, (names.length * 12) / 64))));
  const shift = 6;
  const bloom = new BigUint64Array(bloomWords);
  const buckets = new Uint32Array(bucketCount);
  const chain = new Uint32Array(names.length);
  for (const [index, name] of names.entries()) {
    const hash = gnuHash(name);
    const slot = Math.floor(hash / 64) % bloomWords;
    bloom[slot] = (bloom[slot] ?? 0n) | (1n << BigInt(hash % 64)) | (1n << BigInt((hash >>> shift) % 64));
    const bucket = hash % bucketCount;
    if (buckets[bucket] === 0) buckets[bucket] = first + index;
    const next = names[index + 1];
    const last = next === undefined || gnuHash(next) % bucketCount !== bucket;
    chain[index] = ((hash & ~1) | (last ? 1 : 0)) >>> 0;
  }
  const head = Uint32Array.of(bucketCount, first, bloomWords, shift);
  return Buffer.concat([head, bloom, buckets, chain].map((part) => Buffer.from(part.buffer)));
}

function writePath(bytes: Buffer, at: number, what: string, path: string): void {
  if (!path.startsWith('/') || path.includes('\0')) throw new ElfError(`${what}: want an absolute path, not "${path}"`);
  if (Buffer.byteLength(path) >= PATH_BYTES)
    throw new ElfError(`${what}: longer than ${PATH_BYTES - 1} bytes: ${path}`);
  bytes.write(path, at);
}

/** Points the sections at the new tables, for tools that read these and not the dynamic segment. */
function moveSections(elf: Elf, tables: ReadonlyMap<number, Table>): void {
  const dynsym = elf.sections.find((section) => section.type === 11);
  for (const [index, section] of elf.sections.entries()) {
    const tag =
      section === dynsym
        ? DT.symtab
        : index === dynsym?.link
          ? DT.strtab
          : section.type === 0x6ffffff6
            ? DT_GNU_HASH
            : section.type === 0x6fffffff
              ? DT_VERSYM
              : undefined;
    const table = tag === undefined ? undefined : tables.get(tag);
    if (!table) continue;
    elf.bytes.writeBigUInt64LE(BigInt(table.address), section.at + 16);
    elf.bytes.writeBigUInt64LE(BigInt(table.offset), section.at + 24);
    elf.bytes.writeBigUInt64LE(BigInt(table.size), section.at + 32);
  }
}

type Table = { readonly address: number; readonly offset: number; readonly size: number };

/** The object as built, with its marker symbol, and the place of the form that it leaves free for the tables. */
function readObject(object: Buffer) {
  const elf = parseElf(Buffer.from(object));
  const own = new Map(exportsOf(elf).map((symbol): [string, DynamicSymbol] => [symbol.name, symbol]));
  const marker = MARKERS.flatMap((name) => own.get(name) ?? [])[0];
  const formAt = marker ? offsetOf(elf, marker.address) : 0;
  if (!marker || elf.bytes.toString('latin1', formAt, formAt + 8) !== MAGIC)
    throw new ElfError('not an object of this build');
  const { first } = hashedRange(elf);
  if ([...relocatedSymbols(elf)].some((index) => index >= first))
    throw new ElfError('the object was not bound to its own names');
  return { elf, own, marker, formAt, first };
}
type BuiltObject = ReturnType<typeof readObject>;

const tableOffset = ({ elf }: BuiltObject, tag: number): number => offsetOf(elf, elf.dynamic.get(tag)?.value ?? 0);

/** The symbols of the result, in the order of the hash table's buckets: ours under the host's names, then forwarding
 * code for the names in `passed`. */
function symbolsOf(built: BuiltObject, functions: readonly string[], passed: readonly string[], buckets: number) {
  const { elf, own, marker, formAt } = built;
  const symbolsAt = tableOffset(built, DT.symtab);
  const recordOf = ({ index }: DynamicSymbol) =>
    Buffer.from(elf.bytes.subarray(symbolsAt + index * SYMBOL_BYTES, symbolsAt + (index + 1) * SYMBOL_BYTES));
  const known = [...own.values()].find(({ kind }) => kind === 'function');
  const codeSection = known ? recordOf(known).readUInt16LE(6) : 0;
  const spareRecord = (spare: number) => {
    const record = Buffer.alloc(SYMBOL_BYTES);
    const code = marker.address + elf.bytes.readInt32LE(formAt + FORM.spareCode) + spare * SPARE_BYTES;
    record.writeUInt8(GLOBAL_FUNCTION, 4);
    record.writeUInt16LE(codeSection, 6);
    record.writeBigUInt64LE(BigInt(code), 8);
    record.writeBigUInt64LE(BigInt(SPARE_BYTES), 16);
    return record;
  };
  const entries: Entry[] = functions.map((name) => {
    const symbol = own.get(name);
    return { name, record: symbol ? recordOf(symbol) : spareRecord(passed.indexOf(name)) };
  });
  return [{ name: marker.name, record: recordOf(marker) }, ...entries].toSorted(
    (a, b) => (gnuHash(a.name) % buckets) - (gnuHash(b.name) % buckets),
  );
}

/** The names with their offsets, which are written into the symbols. Names in use keep theirs, for versions and needed
 * libraries speak of them, too. */
function stringTable(built: BuiltObject, entries: readonly Entry[]) {
  const { elf, own } = built;
  const stringBytes = elf.dynamic.get(DT.strSize)?.value ?? 0;
  let end = stringBytes;
  const offsets = new Map<string, number>();
  for (const { name, record } of entries) {
    const at = own.has(name) ? record.readUInt32LE(0) : end;
    if (at === end) end += name.length + 1;
    record.writeUInt32LE(at, 0);
    offsets.set(name, at);
  }
  const strings = Buffer.alloc(end);
  const stringsAt = tableOffset(built, DT.strtab);
  elf.bytes.copy(strings, 0, stringsAt, stringsAt + stringBytes);
  for (const [name, at] of offsets) strings.write(name, at, 'latin1');
  return { strings, offsets };
}

/** The tables of the result by tag. */
function tablesOf(built: BuiltObject, entries: readonly Entry[], strings: Buffer, buckets: number) {
  const { elf, first } = built;
  const symbolsAt = tableOffset(built, DT.symtab);
  const versionsAt = tableOffset(built, DT_VERSYM);
  const names = entries.map(({ name }) => name);
  const symbols = [
    elf.bytes.subarray(symbolsAt, symbolsAt + first * SYMBOL_BYTES),
    ...entries.map((one) => one.record),
  ];
  const versions = Buffer.alloc(2 * (first + entries.length));
  elf.bytes.copy(versions, 0, versionsAt, versionsAt + 2 * first);
  for (let index = first; index < first + entries.length; index++) versions.writeUInt16LE(VERSION_GLOBAL, 2 * index);
  return [
    [DT_GNU_HASH, hashTable(names, first, buckets)],
    [DT.symtab, Buffer.concat(symbols)],
    [DT_VERSYM, versions],
    [DT.strtab, strings],
  ] as const;
}

/** Writes the tables into the space that the build left for them, and points the dynamic segment at them. */
function placeTables({ elf, marker, formAt }: BuiltObject, parts: ReturnType<typeof tablesOf>): Map<number, Table> {
  const base = marker.address + elf.bytes.readInt32LE(formAt + FORM.tables);
  const space = elf.bytes.readUInt32LE(formAt + FORM.tableBytes);
  const tables = new Map<number, Table>();
  let used = 0;
  for (const [tag, content] of parts) {
    const address = base + used;
    used += Math.ceil(content.length / 8) * 8;
    if (used > space) throw new ElfError(`the tables need more than the ${space} bytes that this build has for them`);
    const offset = offsetOf(elf, address);
    content.copy(elf.bytes, offset);
    tables.set(tag, { address, offset, size: content.length });
    elf.bytes.writeBigUInt64LE(BigInt(address), elf.dynamic.get(tag)?.at ?? 0);
  }
  const strings = tables.get(DT.strtab)?.size ?? 0;
  elf.bytes.writeBigUInt64LE(BigInt(strings), elf.dynamic.get(DT.strSize)?.at ?? 0);
  moveSections(elf, tables);
  return tables;
}

/** `object` is libcotenant.so or libcotenant-nvml.so as built, `host` the file that the result is mounted over. */
export function mountedObject(object: Buffer, host: Buffer, library: string, files: string): MountedObject {
  const built = readObject(object);
  const { elf, own, marker, formAt } = built;
  const other = parseElf(host);
  if (elf.machine !== other.machine) throw new ElfError(`the host's library is for machine ${other.machine}`);
  const theirs = exportsOf(other);
  if (theirs.some(({ name }) => MARKERS.includes(name)))
    throw new ElfError("the host's library is a copy of this object: mount over the real one");
  const namesOf = (kind: DynamicSymbol['kind']) => [
    ...new Set(theirs.flatMap((symbol) => (symbol.kind === kind ? [symbol.name] : []))),
  ];
  const functions = namesOf('function').toSorted();
  const passed = functions.filter((name) => !own.has(name));
  const spares = elf.bytes.readUInt32LE(formAt + FORM.spares);
  if (passed.length > spares)
    throw new ElfError(`${passed.length} entry points are unknown to this build, which can pass ${spares}`);

  const buckets = Math.max(1, Math.floor(functions.length / 4));
  const entries = symbolsOf(built, functions, passed, buckets);
  const { strings, offsets } = stringTable(built, entries);
  const tables = placeTables(built, tablesOf(built, entries, strings, buckets));
  const base = marker.address + elf.bytes.readInt32LE(formAt + FORM.tables);
  const stringsFrom = (tables.get(DT.strtab)?.address ?? base) - base;
  for (const [spare, name] of passed.entries())
    elf.bytes.writeUInt32LE(stringsFrom + (offsets.get(name) ?? 0), formAt + FORM.names + 4 * spare);
  elf.bytes.writeUInt32LE(passed.length, formAt + FORM.used);
  writePath(elf.bytes, formAt + FORM.library, 'the real library', library);
  writePath(elf.bytes, formAt + FORM.files, 'the folder of limits and ledger', files);
  const there = new Set(functions);
  const hidden = [...own.keys()].filter((name) => !there.has(name) && name !== marker.name);
  return { bytes: elf.bytes, hidden, passed, left: namesOf('data') };
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  const [object, host, library, files, out, ...rest] = process.argv.slice(2);
  if (!object || !host || !library || !files || !out || rest.length > 0) {
    console.error('usage: mounted-object.ts OBJECT HOST-LIBRARY LIBRARY FILES OUT');
    process.exit(2);
  }
  const made = mountedObject(readFileSync(object), readFileSync(host), library, files);
  writeFileSync(out, made.bytes, { mode: 0o755 });
  console.log(`${out}: ${made.hidden.length} names hidden, ${made.passed.length} passed, ${made.left.length} left`);
}
