// Grants on this node and their files: made, adopted after a restart, rewritten in place, taken down. Owns the state folder;
// who gets how much is decided by placement, what the figures in the files mean by the comparison.
import { randomBytes } from 'node:crypto';
import {
  closeSync,
  constants,
  existsSync,
  fchmodSync,
  fstatSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import type { CardGrant } from '../../placement/place.ts';
import { BUILD_FOLDER, type Feedback, type LedgerReading, type Native } from '../native.ts';
import { formatGrant, type Grant, parseGrant } from './grant.ts';

/** What was measured on a card: the driver profile that pages carry. 0: not measured. */
export type CardProfile = {
  readonly contextBytes: number;
  readonly granuleBytes: number;
  readonly releasesLate: boolean;
};
export const UNMEASURED: CardProfile = { contextBytes: 0, granuleBytes: 0, releasesLate: false };

export type LiveGrant = {
  readonly grant: Grant;
  readonly folder: string;
  readonly pageFd: number;
  readonly ledgerFd: number;
  gateClosed: boolean;
};

/** Processes that one container can have on GPUs at a time; more than that cannot start CUDA. */
export const SLOTS = 1024;
const LIBRARIES = ['libcotenant.so', 'libcotenant-nvml.so'];

export type Registry = {
  list(): readonly LiveGrant[];
  get(id: string): LiveGrant | undefined;
  create(grant: Omit<Grant, 'id'>): LiveGrant;
  /** Gives the grant other amounts on the cards that it has; its processes follow at their next request. */
  resize(id: string, cards: readonly CardGrant[]): LiveGrant;
  remove(id: string): void;
  readLedger(live: LiveGrant): LedgerReading;
  /** True when the name in the folder still is the file that the agent holds. */
  isUntouched(live: LiveGrant): boolean;
  writeFeedback(live: LiveGrant, entries: readonly Feedback[]): void;
  touch(live: LiveGrant): void;
  refreshProfiles(): void;
  close(): void;
};

export function openRegistry(
  stateFolder: string,
  native: Native,
  profileOf: (gpuUuid: string) => CardProfile,
  onProblem: (text: string) => void,
): Registry {
  const root = join(stateFolder, 'grants');
  mkdirSync(root, { recursive: true, mode: 0o755 });
  const live = new Map<string, LiveGrant>();

  const pageOf = (grant: Grant) => ({
    slots: SLOTS,
    isolateMemory: grant.isolateMemory,
    cards: grant.cards.map((card) => ({
      uuid: card.gpuUuid,
      memoryBytes: card.limitBytes,
      coresPercent: card.coresPercent,
      ...profileOf(card.gpuUuid),
    })),
  });

  const make = (path: string, mode: number): number => {
    rmSync(path, { force: true, recursive: true });
    const fd = openSync(path, 'wx+', mode);
    fchmodSync(fd, mode); // what the umask took away is meant
    return fd;
  };
  const makePage = (folder: string, grant: Grant): number => {
    const fd = make(join(folder, 'limits'), 0o644);
    native.writePage(fd, pageOf(grant));
    return fd;
  };
  const makeLedger = (folder: string, grant: Grant): number => {
    // Any user of the container writes here; what is written is believed for its own sake only.
    const fd = make(join(folder, 'ledger'), 0o666);
    native.initLedger(fd, SLOTS, grant.cards.length);
    return fd;
  };

  /** A tenant that may write here may have put something else in a file's place: then a new one is made. */
  const adopt = (path: string, id: string, remake: () => number): number => {
    let fd: number | undefined;
    try {
      fd = openSync(path, constants.O_RDWR | constants.O_NOFOLLOW | constants.O_NONBLOCK);
      if (!fstatSync(fd).isFile()) throw new Error('not a file');
      return fd;
    } catch (error) {
      if (fd !== undefined) closeSync(fd);
      onProblem(`grant ${id}: a new file takes the place of ${path}: ${(error as Error).message}`);
      return remake();
    }
  };

  const open = (grant: Grant, folder: string): LiveGrant => {
    const pageFd = adopt(join(folder, 'limits'), grant.id, () => makePage(folder, grant));
    const ledgerFd = adopt(join(folder, 'ledger'), grant.id, () => makeLedger(folder, grant));
    try {
      native.writePage(pageFd, pageOf(grant));
      return { grant, folder, pageFd, ledgerFd, gateClosed: false };
    } catch (error) {
      onProblem(`grant ${grant.id}: a new page is made: ${(error as Error).message}`);
      closeSync(pageFd);
      return { grant, folder, pageFd: makePage(folder, grant), ledgerFd, gateClosed: false };
    }
  };

  const store = (grant: Grant, folder: string): void => {
    const path = join(folder, 'grant.json');
    writeFileSync(`${path}.new`, formatGrant(grant), { mode: 0o644 });
    renameSync(`${path}.new`, path);
  };

  // Pages and ledgers of running processes are adopted as they are; only the page's own words are written again.
  for (const id of readdirSync(root)) {
    const folder = join(root, id);
    const path = join(folder, 'grant.json');
    const grant = existsSync(path) ? parseGrant(readFileSync(path, 'utf8')) : { wrong: 'grant.json is missing' };
    if ('wrong' in grant) {
      onProblem(`grant ${id} cannot be adopted and is taken down: ${grant.wrong}`);
      rmSync(folder, { recursive: true, force: true });
      continue;
    }
    live.set(id, open(grant, folder));
  }

  const found = (id: string): LiveGrant => {
    const entry = live.get(id);
    if (!entry) throw new Error(`no grant ${id} on this node`);
    return entry;
  };

  return {
    list: () => [...live.values()],
    get: (id) => live.get(id),
    create(request) {
      const id = randomBytes(6).toString('hex');
      const grant: Grant = { ...request, id };
      const folder = join(root, id);
      mkdirSync(folder, { mode: 0o755 });
      for (const name of LIBRARIES) symlinkSync(join(BUILD_FOLDER, name), join(folder, name));
      const pageFd = makePage(folder, grant);
      const ledgerFd = makeLedger(folder, grant);
      store(grant, folder);
      const created: LiveGrant = { grant, folder, pageFd, ledgerFd, gateClosed: false };
      live.set(id, created);
      return created;
    },
    resize(id, cards) {
      const before = found(id);
      const grant: Grant = { ...before.grant, cards };
      store(grant, before.folder);
      native.writePage(before.pageFd, pageOf(grant));
      const after: LiveGrant = { ...before, grant };
      live.set(id, after);
      return after;
    },
    remove(id) {
      const entry = found(id);
      live.delete(id);
      closeSync(entry.pageFd);
      closeSync(entry.ledgerFd);
      rmSync(entry.folder, { recursive: true, force: true });
    },
    readLedger: (entry) => native.readLedger(entry.ledgerFd, SLOTS, entry.grant.cards.length),
    isUntouched(entry) {
      const held = fstatSync(entry.ledgerFd);
      const named = statSync(join(entry.folder, 'ledger'), { throwIfNoEntry: false });
      return named !== undefined && named.ino === held.ino && named.dev === held.dev;
    },
    writeFeedback: (entry, entries) => native.writeFeedback(entry.pageFd, entry.grant.cards.length, entries),
    touch: (entry) => native.touchPage(entry.pageFd, entry.gateClosed),
    refreshProfiles() {
      for (const entry of live.values()) native.writePage(entry.pageFd, pageOf(entry.grant));
    },
    close() {
      for (const entry of live.values()) {
        closeSync(entry.pageFd);
        closeSync(entry.ledgerFd);
      }
      live.clear();
    },
  };
}
