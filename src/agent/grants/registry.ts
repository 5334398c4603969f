// Grants on this node: made, adopted after a restart, changed in place, taken down. Owns the books and the state folder;
// who gets how much is decided elsewhere, what the figures in the files mean by the comparison.
import { randomBytes } from 'node:crypto';
import { closeSync, existsSync, mkdirSync, readdirSync, readFileSync, rmSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import type { GpuGrant } from '../../api/gpu.ts';
import { err } from '../../common/result.ts';
import { prepareFile } from '../../common/state-file.ts';
import { BUILD_FOLDER, type Feedback, type LedgerReading, type Native } from '../os/addon.ts';
import { copyLibrary, engineName, enginesIn, PRELOADED } from './engine-files.ts';
import { createRenewal } from './engine-rollout.ts';
import { allOf, createFileKeeper, type GrantFiles, ratesOf, SLOTS, type Volumes } from './files.ts';
import { formatGrant, type Grant, isOfPod, type PodOwner, parseGrant, podGrantId } from './grant.ts';
import { type Beat, isDue } from './heartbeat.ts';

/** What was measured on a GPU: the driver profile that pages carry. 0: not measured. */
export type GpuProfile = {
  readonly contextBytes: number;
  readonly granuleBytes: number;
  readonly releasesLate: boolean;
};
export const UNMEASURED: GpuProfile = { contextBytes: 0, granuleBytes: 0, releasesLate: false };

export type LiveGrant = GrantFiles & {
  grant: Grant;
  /** State of the grant; of plain ones page and ledger, too. */
  readonly folder: string;
  gateClosed: boolean;
  /** Its launches go by the compute page. */
  leased: boolean;
  /** Grows when its ledger is made anew, and the compute page with it. */
  ledgerTurn: number;
  /** Of its ledger, the last one. */
  reading: LedgerReading | undefined;
  /** What its page was last told. */
  beat: Beat | undefined;
};

/** Of one container of a pod. */
export type PodShare = Omit<Grant, 'id' | 'owner' | 'createdMs'> & { readonly owner: PodOwner };

/** All that a grant's folder needs of the interposer: what is preloaded, and the engines that it may be told to run. */
export const libraries = (build = BUILD_FOLDER): readonly string[] =>
  [...PRELOADED, ...enginesIn(build).map(engineName)].map((name) => join(build, name));

export type Registry = {
  list(): readonly LiveGrant[];
  get(id: string): LiveGrant | undefined;
  create(grant: Omit<Grant, 'id'>): LiveGrant;
  /**
   * All containers with a share of one pod, at the kubelet's word. What is there already is kept, and only put right. `inUse`:
   * the pod has its volume, so its grants are in the books whatever can be done to their files now; else all is made, or
   * nothing is left of what was not.
   */
  createPod(shares: readonly PodShare[], options: { readonly inUse: boolean }): void;
  /** Has each container that the volume was made for its grant? */
  holdsAll(podUid: string, target: string): boolean;
  /** What could not be put right about a grant's files is tried again. */
  repair(): void;
  /**
   * Brings one grant, if there is one left, to the engine that is wanted. Where that cannot be done now the grant goes on with
   * the one that it has; it is told, and tried again after a while.
   */
  renew(): void;
  /** Its page does not name the engine that is wanted. */
  isBehind(live: LiveGrant): boolean;
  /** Gives the grant other amounts on the GPUs that it has; its processes follow at their next request. */
  resize(id: string, gpus: readonly GpuGrant[]): LiveGrant;
  /** The same, what was chosen for its compute, and what was said of its enforcement. */
  change(id: string, change: Partial<Pick<Grant, 'gpus' | 'compute' | 'computeOverride' | 'enforcement'>>): LiveGrant;
  /** Who launches by the arbiter may have changed without anything in the books. */
  reconsider(): void;
  remove(id: string): void;
  /** `locksForMs`: as the native part takes it. */
  readLedger(live: LiveGrant, locksForMs?: number): LedgerReading;
  /** The container starts anew: none of the processes in its ledger is left. */
  clearLedger(live: LiveGrant): void;
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
  readonly profileOf: (gpuUuid: string) => GpuProfile;
  readonly onProblem: (text: string) => void;
  /** A grant was brought to another engine. */
  readonly onChange?: (text: string) => void;
  /** The interposer that this agent brings. */
  readonly build?: string;
  /** Number of the engine that grants shall run; none: the newest of the build. */
  readonly heldEngine?: number | undefined;
  /** Which of these launch by the arbiter; none: nobody does. */
  readonly leasedOf?: (grants: readonly Grant[]) => ReadonlySet<string>;
  /** Who holds a grant, what, or how has changed. */
  readonly onGrants?: () => void;
};

export function openRegistry(options: RegistryOptions): Registry {
  const { stateFolder, native, volumes, profileOf, onProblem, build = BUILD_FOLDER, heldEngine } = options;
  const { leasedOf = () => new Set<string>(), onChange = () => {}, onGrants = () => {} } = options;
  const root = join(stateFolder, 'grants');
  mkdirSync(root, { recursive: true, mode: 0o755 });
  const live = new Map<string, LiveGrant>();
  /** The same lists until who holds a grant, or what, changes. */
  let listed: readonly LiveGrant[] | undefined;

  /** With one that is being made. */
  const leasedNow = (grant?: Grant): ReadonlySet<string> => {
    const others = [...live.values()].flatMap((entry) => (entry.grant.id === grant?.id ? [] : [entry.grant]));
    return leasedOf(grant ? [...others, grant] : others);
  };
  const pageOf = (grant: Grant) => ({
    slots: SLOTS,
    isolateMemory: grant.isolateMemory,
    compute: true,
    leased: leasedNow(grant).has(grant.id),
    gpus: grant.gpus.map((gpu) => ({
      uuid: gpu.gpuUuid,
      memoryBytes: gpu.limitBytes,
      coresPercent: gpu.coresPercent,
      ...profileOf(gpu.gpuUuid),
    })),
  });
  const storedPath = (folder: string): string => join(folder, 'grant.json');
  const prepareStored = (grant: Grant, folder: string): { readonly keep: () => void } => {
    mkdirSync(folder, { recursive: true, mode: 0o755 });
    return { keep: prepareFile(storedPath(folder), formatGrant(grant), { sync: false }) };
  };
  const store = (grant: Grant, folder: string): void => prepareStored(grant, folder).keep();

  const brought = enginesIn(build);
  const wanted = heldEngine ?? brought.at(-1);
  const files = createFileKeeper({ native, volumes, build, wanted, pageOf, onProblem });
  const open = (grant: Grant, folder: string): LiveGrant => ({
    ...files.open(grant, folder),
    grant,
    folder,
    gateClosed: false,
    leased: false,
    ledgerTurn: 0,
    reading: undefined,
    beat: undefined,
  });
  const putRight = (entry: LiveGrant): void =>
    allOf(
      // First on the disk: what the kubelet mounts next must be known after a crash.
      () => {
        if (!existsSync(storedPath(entry.folder))) store(entry.grant, entry.folder);
      },
      () => files.putRight(entry.grant, entry.folder, entry),
    );
  const letGo = (entry: LiveGrant): void => {
    entry.page.close();
    closeSync(entry.ledgerFd);
  };

  /** Of grants in the books whose files are not right, and of those stored that are not in the books: what was said of it. */
  const notRight = new Map<string, string>();
  const unread = new Map<string, string>();
  const trying = (book: Map<string, string>, id: string, what: string, work: () => void): void => {
    try {
      work();
      book.delete(id);
    } catch (error) {
      const text = `${what}, and it is tried again: ${(error as Error).message}`;
      if (book.get(id) !== text) onProblem(text);
      book.set(id, text);
    }
  };
  const tryPutRight = (entry: LiveGrant): void => {
    const { id, namespace, pod, container } = entry.grant;
    trying(notRight, id, `files of ${namespace}/${pod}/${container} (grant ${id}) are not right`, () =>
      putRight(entry),
    );
  };
  /** In the books whatever its files are like: its processes run, and are held to it from outside. */
  const adopt = (grant: Grant, folder: string): void => {
    const entry = open(grant, folder);
    live.set(grant.id, entry);
    listed = undefined;
    tryPutRight(entry);
  };

  const readStored = (id: string): void => {
    const folder = join(root, id);
    const path = storedPath(folder);
    const read = existsSync(path) ? parseGrant(readFileSync(path, 'utf8')) : err('the file is missing');
    const drop = (why: string): void => {
      onProblem(`grant ${id} cannot be adopted and is taken down: ${why}`);
      rmSync(folder, { recursive: true, force: true });
    };
    if (!read.ok) {
      drop(`grant.json: ${read.error}`);
      return;
    }
    const grant = read.value;
    if (!isOfPod(grant.owner)) {
      adopt(grant, folder);
    } else if (!volumes) {
      // Nothing is lost: an agent that serves pods finds it again.
      onProblem(`grant ${id} is of pod ${grant.namespace}/${grant.pod}, and this agent serves no pods`);
    } else if (volumes.isMounted(grant.owner.target)) {
      adopt(grant, folder);
    } else {
      // After a reboot; the kubelet asks again for pods that go on.
      drop(`the volume of pod ${grant.namespace}/${grant.pod} is not mounted any more`);
    }
  };
  const tryRead = (id: string): void => trying(unread, id, `grant ${id} cannot be adopted`, () => readStored(id));
  // Pages and ledgers of running processes are adopted as they are; only the page's own words are written again.
  for (const id of readdirSync(root)) tryRead(id);

  /** Who comes and goes changes whose launches go by the arbiter. */
  const changed = (): void => {
    listed = undefined;
    const leased = leasedNow();
    for (const entry of live.values()) {
      const is = entry.compute && leased.has(entry.grant.id);
      if (is !== entry.leased) {
        entry.leased = is;
        touch(entry);
      }
    }
    onGrants();
  };

  const found = (id: string): LiveGrant => {
    const entry = live.get(id);
    if (!entry) throw new Error(`no grant ${id} on this node`);
    return entry;
  };
  const renewal = createRenewal({ files, brought, wanted, onProblem, onChange });
  /** A page that cannot be written now is written at the next sample; nothing else may suffer for it. */
  const writing = (entry: LiveGrant, use: (fd: number) => void): void => {
    try {
      entry.page.write(use);
    } catch (error) {
      onProblem(`the limits page of ${entry.grant.namespace}/${entry.grant.pod}: ${(error as Error).message}`);
    }
  };
  const touch = (entry: LiveGrant): void => {
    if (!isDue(entry.beat, entry)) return;
    writing(entry, (fd) => {
      native.touchPage(fd, entry.gateClosed, entry.leased);
      entry.beat = { readNs: entry.reading?.readNs, gateClosed: entry.gateClosed, leased: entry.leased };
    });
  };
  const remove = (id: string): void => {
    const entry = found(id);
    live.delete(id);
    listed = undefined;
    notRight.delete(id);
    renewal.forget(id);
    letGo(entry);
    try {
      rmSync(entry.folder, { recursive: true, force: true });
    } catch (error) {
      onProblem(`grant ${id} has ended, and its folder stays behind: ${(error as Error).message}`);
    }
    changed();
  };

  /** In the books with all that belongs to it, or nothing of it is left. */
  const make = (grant: Grant, folder: string, fill = () => {}): LiveGrant => {
    let entry: LiveGrant | undefined;
    try {
      mkdirSync(folder, { recursive: true, mode: 0o755 });
      fill();
      entry = open(grant, folder);
      putRight(entry);
    } catch (error) {
      if (entry) letGo(entry);
      rmSync(folder, { recursive: true, force: true });
      throw error;
    }
    live.set(grant.id, entry);
    changed();
    return entry;
  };
  const change: Registry['change'] = (id, parts) => {
    const before = found(id);
    const grant: Grant = { ...before.grant, ...parts };
    // What can fail for want of room comes first; whatever fails, disk, page and books say the same afterwards.
    const stored = prepareStored(grant, before.folder);
    try {
      files.writePage(grant, before);
      stored.keep();
    } catch (error) {
      tryPutRight(before);
      throw error;
    }
    before.grant = grant;
    changed();
    return before;
  };
  changed(); // those that were adopted

  return {
    list() {
      listed ??= [...live.values()];
      return listed;
    },
    get: (id) => live.get(id),
    create(request) {
      const id = randomBytes(6).toString('hex');
      const folder = join(root, id);
      return make({ ...request, id }, folder, () => {
        for (const name of PRELOADED) symlinkSync(join(build, name), join(folder, name));
        // Copies: the next build has others, and this one may be wanted again.
        for (const name of brought.map(engineName)) copyLibrary(join(build, name), join(folder, name));
      });
    },
    createPod(shares, { inUse }) {
      const [first] = shares;
      if (!first) return;
      if (!volumes) throw new Error('this agent serves no pods');
      const { target } = first.owner;
      const mostGpus = Math.max(...shares.map(({ gpus }) => gpus.length));
      const names = shares.map(({ container }) => container);
      if (!inUse) volumes.mount(target, names, native.ledgerFileBytes(SLOTS, mostGpus), libraries(build));
      for (const share of shares) {
        const id = podGrantId(share.owner.podUid, share.container);
        const before = live.get(id);
        const grant: Grant = { ...share, id, createdMs: Date.now() };
        if (inUse && before) {
          tryPutRight(before);
        } else if (inUse) {
          adopt(grant, join(root, id));
          changed();
        } else {
          // Of a volume that was never given, or is not there any more: what it holds open are files of before.
          if (before) remove(id);
          make(grant, join(root, id));
        }
      }
    },
    holdsAll: (podUid, target) =>
      volumes?.containers(target).every((container) => live.has(podGrantId(podUid, container))) ?? false,
    repair() {
      if (unread.size === 0 && notRight.size === 0) return;
      for (const id of unread.keys()) {
        if (live.has(id)) unread.delete(id);
        else tryRead(id);
      }
      for (const id of notRight.keys()) tryPutRight(found(id));
      changed();
    },
    renew: () => renewal.next([...live.values()].filter(({ grant }) => !notRight.has(grant.id))),
    isBehind: renewal.isBehind,
    resize: (id, gpus) => change(id, { gpus }),
    change,
    reconsider: changed,
    remove,
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
        onGrants();
      } catch (error) {
        notRight.set(entry.grant.id, ''); // cut, and its room taken meanwhile
        throw error;
      }
    },
    writeFeedback(entry, entries) {
      if (entries.length > 0) writing(entry, (fd) => native.writeFeedback(fd, entry.grant.gpus.length, entries));
      touch(entry);
    },
    touch,
    refreshProfiles() {
      for (const entry of live.values()) writing(entry, (fd) => native.writePage(fd, pageOf(entry.grant)));
    },
    close() {
      for (const entry of live.values()) letGo(entry);
      live.clear();
    },
  };
}
