// The addon, typed. Loads without a driver and without rights; a build that is missing is said in words, with the remedy.
import { createRequire } from 'node:module';
import { join } from 'node:path';

export type PageGpu = {
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
  /** As the process sees itself. */
  readonly pid: number;
  readonly startTicks: number;
  readonly pidNamespace: number;
  /** A debugger was attached, a profiler was in it, when it took the slot. */
  readonly debugged: boolean;
  readonly profiled: boolean;
  /** The number of the engine that it runs; 0: unknown. */
  readonly engine: number;
  /** Of the one that its page named and that it could not run; 0: none. */
  readonly engineRefused: number;
  /** Its process, or a relative that took over its lock, lives. */
  readonly locked: boolean;
  /** Nothing but its end drops its lock. */
  readonly lockedForLife: boolean;
  readonly gpus: readonly LedgerRow[];
};

export type LedgerReading = {
  /** False: shorter than it was made, its header was overwritten, or it has too many locks to find all slots without one. */
  readonly whole: boolean;
  /** False: the path that was given leads to another file, or to none. */
  readonly untouched: boolean;
  /** Refusals per GPU since the ledger was made. */
  readonly denied: readonly number[];
  /** Entry points that its processes looked up and the interposer does not know, since the ledger was made. */
  readonly unknown: number;
  readonly slots: readonly LedgerSlot[];
  /** CLOCK_BOOTTIME when all of it had been read. */
  readonly readNs: number;
  /** CLOCK_BOOTTIME when its locks were asked for; absent: with it. */
  readonly locksNs?: number;
  /** The bytes behind it, by which the next reading knows what has changed. */
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
  /** It is a zombie, and no thread of it goes on. */
  readonly ended: boolean;
  /** Its first thread has ended, and others go on. */
  readonly leaderless: boolean;
  readonly command: string;
  readonly cgroup: string;
  readonly pidNamespace: number;
  /** As it sees itself; absent: it could not be read. */
  readonly namespacePid?: number;
};

/** `code` of the error with which `writePage` refuses a file that is the page of another number of slots or GPUs. */
export const PAGE_SIZE_MISMATCH = 'PAGE_SIZE_MISMATCH';

export type Native = {
  /**
   * `engine`: the engine of the interposer that processes are to run; 0: the one in their own library; absent: unchanged. `compute`:
   * a lease page follows the ledger (new pages only). `leased`: launches wait for the lease page, if there is one.
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
  /** `ratesPpm`: adds a lease page that holds each GPU's processes to this share until the arbiter runs; 0: no limit. */
  initLedger(fd: number, slots: number, gpuCount: number, ratesPpm?: readonly number[]): void;
  ledgerBytes(slots: number, gpuCount: number): number;
  /** Size of a ledger with a lease page. */
  ledgerFileBytes(slots: number, gpuCount: number): number;
  /** Frees all slots in place and keeps what counts for the container as a whole. */
  clearLedger(fd: number, slots: number, gpuCount: number, ratesPpm?: readonly number[]): void;
  /**
   * What has not changed since `before`, an earlier reading of it, is the same object in both: all but times. `path`: the name
   * that should lead to it. `locksForMs`: so long are the locks of `before` believed, where nothing else has changed and each
   * slot in use had one; absent: locks are asked for.
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
  /** Is there a process with that pid and start time, and has it not ended? Cheaper than all of its facts. */
  isRunning(pid: number, startTicks: number): boolean;
  /** 'sent', 'gone', 'reused', 'moved' or 'refused: ...' */
  signalExact(pid: number, startTicks: number, cgroup: string, signal: number): string;
  becomeSubreaper(): boolean;
  dieWithParent(): boolean;
  /**
   * Gives back what is resident of the program's own file, code and constants, and returns how many bytes that were. What is used
   * again comes back from the kernel's cache, some 50 us for a MiB; where the kernel does not list mappings, 0.
   */
  trimProgramMemory(): number;
  /** On an existing folder, never through a link; `options` are those of tmpfs, nosuid and nodev come by themselves. */
  mountTmpfs(folder: string, options: string, mayExecute: boolean): void;
  /** The file system mounted there, in every mount of it. EBUSY: something is open for writing. */
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
