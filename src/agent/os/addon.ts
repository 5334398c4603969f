// Types of the native addon, and its loader. Loads without a driver and without privileges; the error for a missing
// build names the remedy.
import { createRequire } from 'node:module';
import { join } from 'node:path';

type PageGpu = {
  readonly uuid: string;
  readonly memoryBytes: number;
  readonly contextBytes: number;
  readonly granuleBytes: number;
  readonly coresPercent: number;
  readonly releasesLate: boolean;
};

export type LedgerRow = {
  readonly heldBytes: number;
  readonly pendingBytes: number;
  readonly freedBytes: number;
  readonly contextBytes: number;
  readonly managedBytes: number;
  readonly poolBytes: number;
  readonly signature: bigint;
};

export type LedgerSlot = {
  readonly index: number;
  readonly stamp: bigint;
  /** In the process's own PID namespace. */
  readonly pid: number;
  readonly startTicks: number;
  readonly pidNamespace: number;
  /** When it took the slot, a debugger was attached or a profiler was loaded. */
  readonly debugged: boolean;
  readonly profiled: boolean;
  /** The number of the engine that it runs; 0: unknown. */
  readonly engine: number;
  /** The number of the engine that its limits page named and it could not run; 0: none. */
  readonly engineRefused: number;
  /** Its process, or a relative that took over its lock, lives. */
  readonly locked: boolean;
  /** Only the end of the process releases its lock. */
  readonly lockedForLife: boolean;
  readonly gpus: readonly LedgerRow[];
};

export type LedgerReading = {
  /** False: the file was truncated, its header was overwritten, or it has too many locks to find all slots without
   * one. */
  readonly whole: boolean;
  /** False: the path that was given leads to another file, or to none. */
  readonly untouched: boolean;
  /** Refusals per GPU since the ledger was created. */
  readonly denied: readonly number[];
  /** Entry points that its processes looked up and the interposer does not know, since the ledger was created. */
  readonly unknown: number;
  readonly slots: readonly LedgerSlot[];
  /** CLOCK_BOOTTIME when all of it had been read. */
  readonly readNs: number;
  /** CLOCK_BOOTTIME when its locks were tested; absent: at `readNs`. */
  readonly locksNs?: number;
  /** The file's content, with which the next reading finds what has changed. */
  readonly seen?: Uint8Array;
};

export type Feedback = {
  readonly slot: number;
  readonly gpu: number;
  readonly stamp: bigint;
  readonly residualBytes: number;
  readonly releasedBytes: number;
  readonly signature: bigint;
  readonly deadStamp: bigint;
};

export type ProcessFacts = {
  readonly startTicks: number;
  readonly parent: number;
  /** It is a zombie without running threads. */
  readonly ended: boolean;
  /** Its first thread has ended, and other threads run. */
  readonly leaderless: boolean;
  readonly command: string;
  readonly cgroup: string;
  readonly pidNamespace: number;
  /** Its PID in its own PID namespace; absent: it could not be read. */
  readonly namespacePid?: number;
};

/** `code` of the error of `writePage` for a file with another number of slots or GPUs. */
export const PAGE_SIZE_MISMATCH = 'PAGE_SIZE_MISMATCH';

export type Native = {
  /**
   * `engine`: the engine of the interposer that processes are to run; 0: the one in their own library; absent:
   * unchanged. `compute`: a lease page follows the ledger (new pages only). `leased`: launches wait for the lease page,
   * if there is one.
   */
  writePage(
    fd: number,
    page: {
      slots: number;
      isolateMemory: boolean;
      engine?: number | undefined;
      compute?: boolean;
      leased?: boolean;
      gpus: readonly PageGpu[];
    },
  ): number;
  touchPage(fd: number, gateClosed: boolean, leased?: boolean): void;
  /** Does this limits page announce a lease page? */
  hasCompute(fd: number): boolean;
  writeFeedback(fd: number, gpuCount: number, entries: readonly Feedback[]): void;
  /** `ratesPpm`: adds a lease page that holds each GPU's processes to this share until the arbiter runs; 0: no
   * limit. */
  initLedger(fd: number, slots: number, gpuCount: number, ratesPpm?: readonly number[]): void;
  ledgerBytes(slots: number, gpuCount: number): number;
  /** Size of a ledger with a lease page. */
  ledgerFileBytes(slots: number, gpuCount: number): number;
  /** Frees all slots in place and keeps what counts for the container as a whole. */
  clearLedger(fd: number, slots: number, gpuCount: number, ratesPpm?: readonly number[]): void;
  /**
   * Parts that have not changed since `before`, an earlier reading, are the same objects, except times. `path`: the
   * name that should lead to this file. `locksForMs`: for this long the locks in `before` are reused, if nothing else
   * has changed and each slot in use was locked; absent: locks are tested.
   */
  readLedger(
    fd: number,
    slots: number,
    gpuCount: number,
    before?: LedgerReading,
    path?: string,
    locksForMs?: number,
  ): LedgerReading;
  readProcess(pid: number): ProcessFacts | undefined;
  /** Does a process with this PID and start time run? Cheaper than `readProcess`. */
  isRunning(pid: number, startTicks: number): boolean;
  /** 'sent', 'gone', 'reused', 'moved' or 'refused: ...' */
  signalExact(pid: number, startTicks: number, cgroup: string, signal: number): string;
  becomeSubreaper(): boolean;
  /**
   * Releases resident pages of the program's own file (code and constants) and returns their bytes; 0 if the kernel
   * does not list mappings. Pages that are used again come from the page cache, about 50 us per MiB.
   */
  trimProgramMemory(): number;
  /** On an existing folder, never through a link; `options` are those of tmpfs; nosuid and nodev are always set. */
  mountTmpfs(folder: string, options: string, mayExecute: boolean): void;
  /** Changes the file system itself, and so all of its mounts. EBUSY: a file is open for writing. */
  remount(folder: string, readOnly: boolean): void;
  unmount(folder: string, lazy: boolean): void;
};

/** Where `make -C native` puts its results. */
export const BUILD_FOLDER = join(import.meta.dirname, '../../../native/build');

let loaded: Native | undefined;

/** Throws with the remedy when the addon was not built or does not fit this Node. */
export function loadNative(): Native {
  if (loaded) return loaded;
  const path = join(BUILD_FOLDER, 'cotenant.node');
  try {
    loaded = createRequire(import.meta.url)(path) as Native;
  } catch (error) {
    throw new Error(`${path} cannot be loaded (build it with "make -C native"): ${(error as Error).message}`);
  }
  return loaded;
}
