// Engines of the interposer in a test: which one a limits page names, and which ones processes run and have mapped.
import { closeSync, openSync, readFileSync, readSync, symlinkSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import type { ExecutionContext } from 'ava';
import { engineName, engineNumber, enginesIn } from '../../../src/agent/grants/engine-files.ts';
import { type LedgerReading, loadNative } from '../../../src/agent/os/addon.ts';
import type { GrantFiles } from '../product/grant.ts';
import { BUILD, eventually, type SimulatedNode } from './node.ts';

/** Engines of other builds, by what differs; built by native/Makefile. */
export const OTHER_ENGINES = join(BUILD, 'tests/engines');
export const SAME_AGAIN = 902;
/** Knows limits pages and ledgers of this version and of the next. */
export const NEXT = 903;
/** Knows only those of the next version. */
export const BEYOND = 904;
/** Works on process state of another layout. */
export const OTHER_LAYOUT = 905;
/** The engine of the build. */
export const OWN = enginesIn(BUILD).at(-1) ?? Number.NaN;

type Process = { readonly pid: number };

/** struct cot_limits_page_header of native/shared-memory/limits_page.h. */
const AT = { version: 8, generation: 32, engine: 48, ledgerVersion: 52 };

/** Rewrites fields of the page's header as an agent would: the generation last. */
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

/** The ledger of a grant on one GPU, as the agent reads it. */
export function readLedger(grant: GrantFiles, slots = 64): LedgerReading {
  const fd = openSync(join(grant.folder, 'ledger'), 'r');
  try {
    return loadNative().readLedger(fd, slots, 1);
  } finally {
    closeSync(fd);
  }
}

/** Puts engines of other builds beside the one of the grant. */
export function offer(grant: GrantFiles, ...numbers: readonly number[]): void {
  for (const number of numbers) {
    symlinkSync(join(OTHER_ENGINES, engineName(number)), join(grant.folder, engineName(number)));
  }
}

export const slotOf = (grant: GrantFiles, { pid }: Process) =>
  readLedger(grant).slots.find((slot) => slot.pid === pid && slot.stamp !== 0n);

/** Waits until the process runs that engine and has no other one mapped. */
export const runs = (grant: GrantFiles, { pid }: Process, number: number) =>
  eventually(() => {
    const mapped = mappedEngines(pid);
    return mapped.length === 1 && mapped[0] === number && slotOf(grant, { pid })?.engine === number ? true : undefined;
  }, `process ${pid} runs engine ${number} and no other`);

export const refuses = (grant: GrantFiles, process: Process, number: number) =>
  eventually(
    () => (slotOf(grant, process)?.engineRefused === number ? true : undefined),
    `engine ${number} is refused`,
  );

/** Each process has in the driver's count what its slot says, except for code, which is not charged. */
export function compareWithBooks(
  t: ExecutionContext,
  node: SimulatedNode,
  grant: GrantFiles,
  processes: readonly Process[],
): void {
  const books = node.usage();
  for (const { pid } of processes) {
    const own = books.clients.find((client) => client.pid === pid)?.gpus[0];
    const row = slotOf(grant, { pid })?.gpus[0];
    t.is(row?.heldBytes, (own?.bytes ?? Number.NaN) - (own?.code ?? 0), `process ${pid}`);
    t.is(row?.pendingBytes, 0);
  }
}
