// Grants on this node and their files: made, adopted after a restart, rewritten in place, taken down. Owns the state folder;
// who gets how much is decided elsewhere, what the figures in the files mean by the comparison.
import { randomBytes } from 'node:crypto';
import {
  closeSync,
  existsSync,
  fstatSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import type { CardGrant } from '../../placement/place.ts';
import { BUILD_FOLDER, type Feedback, type LedgerReading, type Native } from '../native.ts';
import { heldPage, makeFile, openFile, type PageFile, reopenedPage } from './files.ts';
import { formatGrant, type Grant, isOfPod, type PodOwner, parseGrant, podGrantId, podUidOf } from './grant.ts';

/** What was measured on a card: the driver profile that pages carry. 0: not measured. */
export type CardProfile = {
  readonly contextBytes: number;
  readonly granuleBytes: number;
  readonly releasesLate: boolean;
};
export const UNMEASURED: CardProfile = { contextBytes: 0, granuleBytes: 0, releasesLate: false };

export type LiveGrant = {
  readonly grant: Grant;
  /** State of the grant; of plain ones page and ledger, too. */
  readonly folder: string;
  readonly page: PageFile;
  readonly ledgerPath: string;
  readonly ledgerFd: number;
  gateClosed: boolean;
};

/** Volumes of pods: where the kubelet wants them, and how they are written to. */
export type Volumes = {
  /** Idempotent; what is in a ledger stays. */
  mount(target: string, containers: readonly string[], ledgerBytes: number, libraries: readonly string[]): void;
  isMounted(target: string): boolean;
  withWritable<T>(target: string, write: () => T): T;
  pagePath(target: string, container: string): string;
  ledgerPath(target: string, container: string): string;
};

/** Of one container of a pod. */
export type PodShare = Omit<Grant, 'id' | 'owner' | 'createdMs'> & { readonly owner: PodOwner };

/** Processes that one container can have on GPUs at a time; more than that cannot start CUDA. */
export const SLOTS = 1024;
export const LIBRARIES: readonly string[] = ['libcotenant.so', 'libcotenant-nvml.so'].map((name) =>
  join(BUILD_FOLDER, name),
);

export type Registry = {
  list(): readonly LiveGrant[];
  get(id: string): LiveGrant | undefined;
  create(grant: Omit<Grant, 'id'>): LiveGrant;
  /** All containers with a share of one pod, at the kubelet's word. What is there already is kept, and only written again. */
  createPod(shares: readonly PodShare[]): void;
  removePod(podUid: string): void;
  /** Gives the grant other amounts on the cards that it has; its processes follow at their next request. */
  resize(id: string, cards: readonly CardGrant[]): LiveGrant;
  remove(id: string): void;
  readLedger(live: LiveGrant): LedgerReading;
  /** The container starts anew: none of the processes in its ledger is left. */
  clearLedger(live: LiveGrant): void;
  /** True when the name in the folder still is the file that the agent holds. */
  isUntouched(live: LiveGrant): boolean;
  /** What the driver's truth teaches, and that the agent was here. */
  writeFeedback(live: LiveGrant, entries: readonly Feedback[]): void;
  touch(live: LiveGrant): void;
  refreshProfiles(): void;
  close(): void;
};

export type RegistryOptions = {
  readonly stateFolder: string;
  readonly native: Native;
  /** None: this agent serves no pods. */
  readonly volumes?: Volumes | undefined;
  readonly profileOf: (gpuUuid: string) => CardProfile;
  readonly onProblem: (text: string) => void;
};

export function openRegistry({ stateFolder, native, volumes, profileOf, onProblem }: RegistryOptions): Registry {
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
  const makePage = (path: string, grant: Grant): number => {
    const fd = makeFile(path, 0o644);
    native.writePage(fd, pageOf(grant));
    return fd;
  };
  const makeLedger = (path: string, grant: Grant): number => {
    // Any user of the container writes here; what is written is believed for its own sake only.
    const fd = makeFile(path, 0o666);
    native.initLedger(fd, SLOTS, grant.cards.length);
    return fd;
  };
  const adopt = (path: string, grant: Grant, remake: (path: string, grant: Grant) => number): number => {
    try {
      return openFile(path);
    } catch (error) {
      onProblem(`grant ${grant.id}: a new file takes the place of ${path}: ${(error as Error).message}`);
      return remake(path, grant);
    }
  };

  /** A page of another size or form than the grant's is made anew. */
  const adoptPage = (path: string, grant: Grant): number => {
    const fd = adopt(path, grant, makePage);
    try {
      native.writePage(fd, pageOf(grant));
      return fd;
    } catch (error) {
      onProblem(`grant ${grant.id}: a new page is made: ${(error as Error).message}`);
      closeSync(fd);
      return makePage(path, grant);
    }
  };

  const openPlain = (grant: Grant, folder: string): LiveGrant => {
    const ledgerPath = join(folder, 'ledger');
    const page = heldPage(adoptPage(join(folder, 'limits'), grant));
    return { grant, folder, page, ledgerPath, ledgerFd: adopt(ledgerPath, grant, makeLedger), gateClosed: false };
  };

  /** Files that are there are kept: processes have them mapped, and mounts hold them. */
  const openOfPod = (grant: Grant, owner: PodOwner, files: Volumes): LiveGrant => {
    const folder = join(root, grant.id);
    const { target } = owner;
    const [pagePath, ledgerPath] = [files.pagePath(target, grant.container), files.ledgerPath(target, grant.container)];
    const put = (path: string, make: (path: string, grant: Grant) => number) =>
      existsSync(path) ? adopt(path, grant, make) : make(path, grant);
    const ledgerFd = put(ledgerPath, makeLedger);
    // An agent that ended between the two steps of making it.
    if (fstatSync(ledgerFd).size === 0) native.initLedger(ledgerFd, SLOTS, grant.cards.length);
    files.withWritable(target, () =>
      closeSync(existsSync(pagePath) ? adoptPage(pagePath, grant) : makePage(pagePath, grant)),
    );
    const page = reopenedPage(pagePath, (write) => files.withWritable(target, write));
    return { grant, folder, page, ledgerPath, ledgerFd, gateClosed: false };
  };

  const prepareStored = (grant: Grant, folder: string): { readonly keep: () => void } => {
    mkdirSync(folder, { recursive: true, mode: 0o755 });
    const path = join(folder, 'grant.json');
    writeFileSync(`${path}.new`, formatGrant(grant), { mode: 0o644 });
    return { keep: () => renameSync(`${path}.new`, path) };
  };
  const store = (grant: Grant, folder: string): void => prepareStored(grant, folder).keep();

  const readStored = (id: string): void => {
    const folder = join(root, id);
    const path = join(folder, 'grant.json');
    const grant = existsSync(path) ? parseGrant(readFileSync(path, 'utf8')) : { wrong: 'grant.json is missing' };
    const drop = (why: string): void => {
      onProblem(`grant ${id} cannot be adopted and is taken down: ${why}`);
      rmSync(folder, { recursive: true, force: true });
    };
    if ('wrong' in grant) {
      drop(grant.wrong);
    } else if (!isOfPod(grant.owner)) {
      live.set(id, openPlain(grant, folder));
    } else if (!volumes) {
      // Nothing is lost: an agent that serves pods finds it again.
      onProblem(`grant ${id} is of pod ${grant.namespace}/${grant.pod}, and this agent serves no pods`);
    } else if (volumes.isMounted(grant.owner.target)) {
      live.set(id, openOfPod(grant, grant.owner, volumes));
    } else {
      // After a reboot; the kubelet asks again for pods that go on.
      drop(`the volume of pod ${grant.namespace}/${grant.pod} is not mounted any more`);
    }
  };
  // Pages and ledgers of running processes are adopted as they are; only the page's own words are written again.
  for (const id of readdirSync(root)) {
    try {
      readStored(id);
    } catch (error) {
      onProblem(`grant ${id} cannot be adopted: ${(error as Error).message}`);
    }
  }

  const found = (id: string): LiveGrant => {
    const entry = live.get(id);
    if (!entry) throw new Error(`no grant ${id} on this node`);
    return entry;
  };
  /** A page that cannot be written now is written at the next sample; nothing else may suffer for it. */
  const writing = (entry: LiveGrant, use: (fd: number) => void): void => {
    try {
      entry.page.write(use);
    } catch (error) {
      onProblem(`the limits page of ${entry.grant.namespace}/${entry.grant.pod}: ${(error as Error).message}`);
    }
  };
  const remove = (id: string): void => {
    const entry = found(id);
    live.delete(id);
    entry.page.close();
    closeSync(entry.ledgerFd);
    rmSync(entry.folder, { recursive: true, force: true });
  };

  return {
    list: () => [...live.values()],
    get: (id) => live.get(id),
    create(request) {
      const id = randomBytes(6).toString('hex');
      const grant: Grant = { ...request, id };
      const folder = join(root, id);
      mkdirSync(folder, { mode: 0o755 });
      for (const path of LIBRARIES) symlinkSync(path, join(folder, path.slice(BUILD_FOLDER.length + 1)));
      const ledgerPath = join(folder, 'ledger');
      const page = heldPage(makePage(join(folder, 'limits'), grant));
      const created = { grant, folder, page, ledgerPath, ledgerFd: makeLedger(ledgerPath, grant), gateClosed: false };
      store(grant, folder);
      live.set(id, created);
      return created;
    },
    createPod(shares) {
      const [first] = shares;
      if (!first) return;
      if (!volumes) throw new Error('this agent serves no pods');
      const { target } = first.owner;
      const mostCards = Math.max(...shares.map(({ cards }) => cards.length));
      const names = shares.map(({ container }) => container);
      volumes.mount(target, names, native.ledgerBytes(SLOTS, mostCards), LIBRARIES);
      for (const share of shares) {
        const id = podGrantId(share.owner.podUid, share.container);
        const before = live.get(id);
        if (before) {
          writing(before, (fd) => native.writePage(fd, pageOf(before.grant)));
          continue;
        }
        const grant: Grant = { ...share, id, createdMs: Date.now() };
        // First on the disk: what the kubelet mounts next must be known after a crash.
        store(grant, join(root, id));
        live.set(id, openOfPod(grant, share.owner, volumes));
      }
    },
    removePod(podUid) {
      for (const { grant } of [...live.values()]) if (podUidOf(grant) === podUid) remove(grant.id);
    },
    resize(id, cards) {
      const before = found(id);
      const grant: Grant = { ...before.grant, cards };
      // What can fail for want of room comes first; whatever fails, disk, page and books say the same afterwards.
      const stored = prepareStored(grant, before.folder);
      try {
        before.page.write((fd) => native.writePage(fd, pageOf(grant)));
        stored.keep();
      } catch (error) {
        writing(before, (fd) => native.writePage(fd, pageOf(before.grant)));
        throw error;
      }
      const after: LiveGrant = { ...before, grant };
      live.set(id, after);
      return after;
    },
    remove,
    readLedger: (entry) => native.readLedger(entry.ledgerFd, SLOTS, entry.grant.cards.length),
    clearLedger: (entry) => native.clearLedger(entry.ledgerFd, SLOTS, entry.grant.cards.length),
    isUntouched(entry) {
      const held = fstatSync(entry.ledgerFd);
      // A link in its place is another file, wherever it leads.
      const named = lstatSync(entry.ledgerPath, { throwIfNoEntry: false });
      return named !== undefined && named.ino === held.ino && named.dev === held.dev;
    },
    writeFeedback: (entry, entries) =>
      writing(entry, (fd) => {
        if (entries.length > 0) native.writeFeedback(fd, entry.grant.cards.length, entries);
        native.touchPage(fd, entry.gateClosed);
      }),
    touch: (entry) => writing(entry, (fd) => native.touchPage(fd, entry.gateClosed)),
    refreshProfiles() {
      for (const entry of live.values()) writing(entry, (fd) => native.writePage(fd, pageOf(entry.grant)));
    },
    close() {
      for (const entry of live.values()) {
        entry.page.close();
        closeSync(entry.ledgerFd);
      }
      live.clear();
    },
  };
}
