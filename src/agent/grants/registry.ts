// The grants of this node: created for processes and pods, adopted from the state folder after a restart, changed in
// place, removed. Keeps them with their open files; src/placement and src/agent/allocation decide amounts.
import { randomBytes } from 'node:crypto';
import { closeSync, mkdirSync, rmSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import type { GpuGrant } from '../../api/gpu.ts';
import type { Logger } from '../../common/logger.ts';
import { attempt, err, ok, type Result } from '../../common/result.ts';
import { BUILD_FOLDER, type Feedback, type LedgerReading, type Native } from '../os/addon.ts';
import { copyLibrary, engineName, enginesIn, PRELOADED } from './engine-files.ts';
import { createRenewal } from './engine-rollout.ts';
import { allOf, createGrantFiles, ratesOf, SLOTS, type Volumes } from './files.ts';
import { type Grant, isOfContainers, isOfPod, type PodOwner, podGrantId } from './grant.ts';
import { createGrantStore, type GrantStore } from './grant-store.ts';
import { createPageWriter, pageContent } from './limits-page.ts';
import type { GpuProfile, LiveGrant } from './live-grant.ts';
import { createRetries } from './retries.ts';

/** Of one container of a pod. */
export type PodShare = Omit<Grant, 'id' | 'owner' | 'createdMs'> & { readonly owner: PodOwner };

/** All that a grant's folder needs of the interposer: the preloaded objects and the engines. */
export const libraries = (build = BUILD_FOLDER): readonly string[] =>
  [...PRELOADED, ...enginesIn(build).map(engineName)].map((name) => join(build, name));

export type Registry = {
  list(): readonly LiveGrant[];
  get(id: string): LiveGrant | undefined;
  create(grant: Omit<Grant, 'id'>): LiveGrant;
  /**
   * Creates the grants of a pod's containers. `inUse`: the pod has its volume and may run, so its grants are registered
   * even if their files cannot be repaired now, and existing ones are kept; else all grants are created again, or none
   * of them.
   */
  createPod(shares: readonly PodShare[], options: { readonly inUse: boolean }): void;
  /** Does each container of the volume have its grant? */
  holdsAll(podUid: string, target: string): boolean;
  /** Repairs files of grants where that failed before. */
  repair(): void;
  /**
   * Changes the next grant with another engine to the wanted one. If that fails, the grant keeps its present engine,
   * the problem is reported, and a later call tries again.
   */
  renew(): void;
  /** Its limits page does not name the wanted engine. */
  isBehind(live: LiveGrant): boolean;
  /** Changes the grant's amounts on its GPUs; its processes follow at their next request. */
  resize(id: string, gpus: readonly GpuGrant[]): LiveGrant;
  /** The same with its compute choice and its enforcement mode. */
  change(id: string, change: Partial<Pick<Grant, 'gpus' | 'compute' | 'computeOverride' | 'enforcement'>>): LiveGrant;
  /** Called when other grants get a lease page although no grant has changed. */
  updateLeases(): void;
  remove(id: string): void;
  /** `locksForMs`: as `Native.readLedger` takes it. */
  readLedger(live: LiveGrant, locksForMs?: number): LedgerReading;
  /** Called when the container restarts: all processes in its ledger have ended. */
  clearLedger(live: LiveGrant): void;
  /** Corrections by the driver's figures, and a heartbeat. */
  writeFeedback(live: LiveGrant, entries: readonly Feedback[]): void;
  touch(live: LiveGrant): void;
  refreshProfiles(): void;
  /** Calls `listener` after each change of grants, amounts, leases or ledgers. */
  subscribe(listener: () => void): void;
  close(): void;
};

type RegistryOptions = {
  readonly stateFolder: string;
  readonly native: Native;
  /** Absent: this agent serves no pods. */
  readonly volumes?: Volumes | undefined;
  readonly profileOf: (gpuUuid: string) => GpuProfile;
  readonly log: Pick<Logger, 'info' | 'warn'>;
  /** Folder of this build's interposer. */
  readonly build?: string;
  /** Number of the engine that grants shall run; absent: the newest of the build. */
  readonly heldEngine?: number | undefined;
  /** Ids of the grants whose launches the arbiter schedules; absent: none. */
  readonly leasedOf?: (grants: readonly Grant[]) => ReadonlySet<string>;
};

export function openRegistry(options: RegistryOptions): Registry {
  const { volumes, native } = options;
  const live = createLiveGrants(options);
  const { entries, files, store, pages, renewal, broken, unread } = live;
  const { list, get, entryOf, updateLeases } = entries;
  for (const id of store.ids()) live.adoptStored(id);
  updateLeases();

  const change = (id: string, parts: Partial<Grant>): LiveGrant => {
    const entry = entryOf(id);
    const grant: Grant = { ...entry.grant, ...parts };
    // What needs disk space comes first; whatever fails, disk, page and registry agree afterwards.
    const replaceStored = store.prepare(grant);
    try {
      files.writePage(grant, entry);
      replaceStored();
    } catch (error) {
      live.tryRepair(entry);
      throw error;
    }
    entry.grant = grant;
    updateLeases();
    return entry;
  };

  return {
    list,
    get,
    create: (request) => createProcessGrant(live, options, request),
    createPod: (shares, { inUse }) => createPodGrants(live, options, shares, inUse),
    holdsAll: (podUid, target) =>
      volumes?.containers(target).every((container) => get(podGrantId(podUid, container)) !== undefined) ?? false,
    repair() {
      if (unread.size() === 0 && broken.size() === 0) return;
      for (const id of unread.ids()) {
        if (get(id)) unread.forget(id);
        else live.adoptStored(id);
      }
      for (const id of broken.ids()) live.tryRepair(entryOf(id));
      updateLeases();
    },
    renew: () => renewal.next(list().filter(({ grant }) => !broken.has(grant.id))),
    isBehind: renewal.isBehind,
    resize: (id, gpus) => change(id, { gpus }),
    change,
    updateLeases,
    remove: live.remove,
    readLedger(entry, locksForMs) {
      const { ledgerFd, ledgerPath, grant, reading } = entry;
      entry.reading = native.readLedger(ledgerFd, SLOTS, grant.gpus.length, reading, ledgerPath, locksForMs);
      return entry.reading;
    },
    clearLedger(entry) {
      try {
        const rates = entry.compute ? ratesOf(entry.grant) : undefined;
        native.clearLedger(entry.ledgerFd, SLOTS, entry.grant.gpus.length, rates);
        entry.ledgerTurn += 1;
        entries.emitChanged();
      } catch (error) {
        broken.add(entry.grant.id); // the file was truncated, and the disk is full
        throw error;
      }
    },
    writeFeedback: pages.writeFeedback,
    touch: pages.touch,
    refreshProfiles() {
      for (const entry of list()) pages.rewrite(entry);
    },
    subscribe: entries.subscribe,
    close() {
      for (const entry of list()) closeFiles(entry);
      entries.clear();
    },
  };
}

function createProcessGrant(live: LiveGrants, options: RegistryOptions, request: Omit<Grant, 'id'>): LiveGrant {
  const { build = BUILD_FOLDER } = options;
  const grant: Grant = { ...request, id: randomBytes(6).toString('hex') };
  return live.make(grant, (folder) => {
    // In containers the objects are mounted over the driver's own.
    const preloaded = isOfContainers(grant.owner) ? [] : PRELOADED;
    for (const name of preloaded) symlinkSync(join(build, name), join(folder, name));
    // Copies: the next build has other engines, and this one may be needed again.
    for (const name of enginesIn(build).map(engineName)) copyLibrary(join(build, name), join(folder, name));
  });
}

function createPodGrants(
  live: LiveGrants,
  { volumes, native, build }: RegistryOptions,
  shares: readonly PodShare[],
  inUse: boolean,
): void {
  const [first] = shares;
  if (!first) return;
  if (!volumes) throw new Error('this agent serves no pods');
  const { target } = first.owner;
  const mostGpus = Math.max(...shares.map(({ gpus }) => gpus.length));
  const names = shares.map(({ container }) => container);
  if (!inUse) volumes.mount(target, names, native.ledgerFileBytes(SLOTS, mostGpus), libraries(build));
  for (const share of shares) {
    const id = podGrantId(share.owner.podUid, share.container);
    const before = live.entries.get(id);
    const grant: Grant = { ...share, id, createdMs: Date.now() };
    if (inUse && before) {
      live.tryRepair(before);
    } else if (inUse) {
      live.adopt(grant);
      live.entries.updateLeases();
    } else {
      // Of a volume that was never published, or is not mounted any more: its open files are of the former one.
      if (before) live.remove(id);
      live.make(grant);
    }
  }
}

/** The registered grants, and which of them have a lease page. */
function createEntries(leasedOf: NonNullable<RegistryOptions['leasedOf']>, onLease: (entry: LiveGrant) => void) {
  const live = new Map<string, LiveGrant>();
  /** The same list until a grant comes, goes or changes. */
  let listed: readonly LiveGrant[] | undefined;
  const listeners: (() => void)[] = [];
  const list = (): readonly LiveGrant[] => {
    listed ??= [...live.values()];
    return listed;
  };
  const emitChanged = (): void => {
    for (const listener of listeners) listener();
  };
  /** With a grant that is being made. */
  const leasedNow = (grant?: Grant): ReadonlySet<string> => {
    const others = list().flatMap((entry) => (entry.grant.id === grant?.id ? [] : [entry.grant]));
    return leasedOf(grant ? [...others, grant] : others);
  };
  return {
    list,
    leasedNow,
    emitChanged,
    subscribe: (listener: () => void): void => void listeners.push(listener),
    get: (id: string): LiveGrant | undefined => live.get(id),
    entryOf(id: string): LiveGrant {
      const entry = live.get(id);
      if (!entry) throw new Error(`no grant ${id} on this node`);
      return entry;
    },
    add(entry: LiveGrant): void {
      live.set(entry.grant.id, entry);
      listed = undefined;
    },
    delete(id: string): void {
      live.delete(id);
      listed = undefined;
    },
    clear(): void {
      live.clear();
      listed = undefined;
    },
    updateLeases(): void {
      listed = undefined;
      const leased = leasedNow();
      for (const entry of live.values()) {
        const isLeased = entry.compute && leased.has(entry.grant.id);
        if (isLeased === entry.leased) continue;
        entry.leased = isLeased;
        onLease(entry);
      }
      emitChanged();
    },
  };
}

/** What becomes of a stored grant when an agent starts. Limits pages and ledgers of running processes are kept as they
 * are; only the page's own fields are written again. */
function readStored(store: GrantStore, id: string, volumes: Volumes | undefined): Result<Grant, StoredProblem> {
  const read = store.read(id);
  if (!read.ok) return err({ why: `grant.json: ${read.error}`, isOver: true });
  const { owner, namespace, pod } = read.value;
  if (!isOfPod(owner) || volumes?.isMounted(owner.target)) return ok(read.value);
  // Kept: an agent that serves pods finds it again.
  if (!volumes)
    return err({ why: `it belongs to pod ${namespace}/${pod}, and this agent serves no pods`, isOver: false });
  // After a reboot: the kubelet publishes the volumes of pods that go on again.
  return err({ why: `the volume of pod ${namespace}/${pod} is not mounted any more`, isOver: true });
}
type StoredProblem = { readonly why: string; readonly isOver: boolean };

const NEW_ENTRY = { gateClosed: false, leased: false, ledgerTurn: 0, reading: undefined, beat: undefined } as const;

/** The files of the registered grants, and how grants come and go. */
type LiveGrants = ReturnType<typeof createLiveGrants>;

function createLiveGrants(options: RegistryOptions) {
  const { stateFolder, native, volumes, profileOf, log, build = BUILD_FOLDER, heldEngine } = options;
  const store = createGrantStore(stateFolder);
  const entries = createEntries(options.leasedOf ?? (() => new Set()), (entry) => pages.touch(entry));
  const pageOf = (grant: Grant) => pageContent(grant, entries.leasedNow(grant).has(grant.id), profileOf);
  const brought = enginesIn(build);
  const wanted = heldEngine ?? brought.at(-1);
  const files = createGrantFiles({ native, volumes, build, wanted, pageOf, log });
  const pages = createPageWriter({ native, pageOf, log });
  const renewal = createRenewal({ files, brought, wanted, log });
  /** Registered grants whose files are not repaired, and stored ones that could not be adopted. */
  const broken = createRetries(log);
  const unread = createRetries(log);

  const open = (grant: Grant): LiveGrant => {
    const folder = store.folderOf(grant.id);
    return { ...files.open(grant, folder), grant, folder, ...NEW_ENTRY };
  };
  const repairFiles = (entry: LiveGrant): void =>
    allOf(
      () => store.ensure(entry.grant),
      () => files.putRight(entry.grant, entry.folder, entry),
    );
  const tryRepair = (entry: LiveGrant): void => {
    const { id, namespace, pod, container } = entry.grant;
    const what = `cannot repair the files of ${namespace}/${pod}/${container} (grant ${id})`;
    broken.run(id, what, () => repairFiles(entry));
  };
  /** Registered even where its files are broken: its processes run, and the agent holds them to the grant from
   * outside. */
  const adopt = (grant: Grant): void => {
    const entry = open(grant);
    entries.add(entry);
    tryRepair(entry);
  };

  return {
    ...{ entries, files, store, pages, renewal, broken, unread },
    ...{ adopt, tryRepair },

    adoptStored: (id: string): void =>
      unread.run(id, `grant ${id} cannot be adopted`, () => {
        const read = readStored(store, id, volumes);
        if (read.ok) return adopt(read.value);
        const { why, isOver } = read.error;
        log.warn(`grant ${id} cannot be adopted${isOver ? ' and is removed' : ''}: ${why}`);
        if (isOver) store.remove(id);
      }),

    /** Registered with all of its files, or nothing of it is left. `fill` puts more into its folder. */
    make(grant: Grant, fill: (folder: string) => void = () => {}): LiveGrant {
      const folder = store.folderOf(grant.id);
      let entry: LiveGrant | undefined;
      try {
        mkdirSync(folder, { recursive: true, mode: 0o755 });
        fill(folder);
        entry = open(grant);
        repairFiles(entry);
      } catch (error) {
        if (entry) closeFiles(entry);
        rmSync(folder, { recursive: true, force: true });
        throw error;
      }
      entries.add(entry);
      entries.updateLeases();
      return entry;
    },

    remove(id: string): void {
      const entry = entries.entryOf(id);
      entries.delete(id);
      broken.forget(id);
      renewal.forget(id);
      closeFiles(entry);
      const removed = attempt(() => store.remove(id));
      if (!removed.ok) log.warn(`grant ${id} has ended, and its folder cannot be removed: ${removed.error}`);
      entries.updateLeases();
    },
  };
}

function closeFiles({ page, ledgerFd }: LiveGrant): void {
  page.close();
  closeSync(ledgerFd);
}
