// Engines of the interposer in a test: which one a page names, which ones processes run and have mapped.
import { closeSync, openSync, readFileSync, readSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { engineNumber } from '../../src/agent/engines.ts';
import { type LedgerReading, loadNative } from '../../src/agent/native.ts';
import type { GrantFiles } from './grant.ts';
import { BUILD } from './node.ts';

/** Engines of other builds, by what they differ in; native/Makefile makes them. */
export const OTHER_ENGINES = join(BUILD, 'tests/engines');
export const SAME_AGAIN = 2;
/** Knows pages and ledgers of this version and of the next. */
export const NEXT = 3;
/** Knows those of the next version only. */
export const BEYOND = 4;
/** Works on states of another layout. */
export const OTHER_LAYOUT = 5;

/** struct cot_page_header of native/format/page.h. */
const AT = { version: 8, generation: 32, engine: 48, ledgerVersion: 52 };

/** Rewrites words of the page's header as an agent would: the generation last. */
export function writeHeader(grant: GrantFiles, words: { engine?: number; version?: number; ledgerVersion?: number }) {
  const fd = openSync(join(grant.folder, 'limits'), 'r+');
  try {
    for (const [name, value] of Object.entries(words)) {
      const bytes = Buffer.alloc(4);
      bytes.writeUInt32LE(value);
      writeSync(fd, bytes, 0, 4, AT[name as keyof typeof AT]);
    }
    const generation = Buffer.alloc(8);
    readSync(fd, generation, 0, 8, AT.generation);
    generation.writeBigUInt64LE(generation.readBigUInt64LE() + 1n);
    writeSync(fd, generation, 0, 8, AT.generation);
  } finally {
    closeSync(fd);
  }
}

/** Numbers of the engines that a process has mapped. */
export function mappedEngines(pid: number): readonly number[] {
  const paths = readFileSync(`/proc/${pid}/maps`, 'utf8').matchAll(/\S+\/(\S+?)( \(deleted\))?$/gm);
  return [...new Set([...paths].flatMap(([, name = '']) => engineNumber(name) ?? []))].toSorted((a, b) => a - b);
}

/** What the agent reads of the ledger of a grant on one card. */
export function readLedger(grant: GrantFiles, slots = 64): LedgerReading {
  const fd = openSync(join(grant.folder, 'ledger'), 'r');
  try {
    return loadNative().readLedger(fd, slots, 1);
  } finally {
    closeSync(fd);
  }
}
