// The files of a grant: the limits page, written in place, and the usage ledger, read through a descriptor. Creates,
// reopens and repairs them; a tenant may have replaced a file or used up the disk space. Engines that the page may name
// lie beside them: files are added and never changed.
import { closeSync, constants, existsSync, fchmodSync, fstatSync, lstatSync, openSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import type { Logger } from '../../common/logger.ts';
import { type Native, PAGE_SIZE_MISMATCH } from '../os/addon.ts';
import { copyLibrary, engineName, enginesIn } from './engine-files.ts';
import { type Grant, isOfPod } from './grant.ts';

/** A limits page to write. A pod's page is opened for each write: its file system is read-only at all other times. */
type PageFile = {
  write<T>(use: (fd: number) => T): T;
  close(): void;
};

export type GrantFiles = {
  page: PageFile;
  readonly ledgerPath: string;
  /** While the ledger is missing: a descriptor that always reads as empty. */
  ledgerFd: number;
  /** Numbers of the engines in its folder. */
  engines: readonly number[];
  /** The engine that its limits page is to name; undefined: the one that it names. */
  engine: number | undefined;
  /** The ledger's file has a lease page. Files of older builds have none. */
  compute: boolean;
};

/** Volumes of pods: at the kubelet's target, writable only for the time of a call. */
export type Volumes = {
  /** Idempotent; ledgers keep their content. */
  mount(target: string, containers: readonly string[], ledgerBytes: number, libraries: readonly string[]): void;
  isMounted(target: string): boolean;
  /** Names of the containers that it was made for. */
  containers(target: string): readonly string[];
  withWritable<T>(target: string, write: () => T): T;
  /** Where its containers' processes find the interposer and its engines. */
  libraryFolder(target: string): string;
  pagePath(target: string, container: string): string;
  ledgerPath(target: string, container: string): string;
};

/** Processes that one container can have on GPUs at a time; more than that cannot start CUDA. */
export const SLOTS = 1024;

/** A new file of that mode, regardless of the umask and of an existing file. */
export function makeFile(path: string, mode: number): number {
  rmSync(path, { force: true, recursive: true });
  const fd = openSync(path, 'wx+', mode);
  fchmodSync(fd, mode); // the umask does not apply
  return fd;
}

/** An ordinary file, opened for reading and writing; throws where it is something else. */
function openFile(path: string): number {
  const fd = openSync(path, constants.O_RDWR | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  if (fstatSync(fd).isFile()) return fd;
  closeSync(fd);
  throw new Error('not a file');
}

export const heldPage = (fd: number): PageFile => ({ write: (use) => use(fd), close: () => closeSync(fd) });

/** `within` makes the file system writable for the time of one call. */
function reopenedPage(path: string, within: <T>(write: () => T) => T): PageFile {
  return {
    write: (use) =>
      within(() => {
        const fd = openFile(path);
        try {
          return use(fd);
        } finally {
          closeSync(fd); // an open descriptor would keep the file system from becoming read-only again
        }
      }),
    close: () => {},
  };
}

/** Runs every step, then throws the first failure, if there was one. */
export function allOf(...steps: readonly (() => void)[]): void {
  const failures = steps.flatMap((step) => {
    try {
      step();
      return [];
    } catch (error) {
      return [error];
    }
  });
  if (failures.length > 0) throw failures[0];
}

/** Compute shares that hold while no arbiter runs, in parts per million of each GPU; 0: no limit. */
export const ratesOf = ({ gpus }: Pick<Grant, 'gpus'>): readonly number[] =>
  gpus.map(({ coresPercent }) => coresPercent * 10_000);

export type GrantFileStore = {
  /** Opens the files as they are, because processes have them mapped. What is missing or wrong is repaired later. */
  open(grant: Grant, folder: string): GrantFiles;
  /**
   * Makes what is missing, gives an empty ledger its size, and writes the page. Throws where that cannot be done now;
   * what is open stays open, and it can be tried again.
   */
  putRight(grant: Grant, folder: string, files: GrantFiles): void;
  writePage(grant: Grant, files: GrantFiles): void;
  /** Copies this build's engine to the grant's folder if it is missing there, and names it in the limits page. */
  changeEngine(grant: Grant, folder: string, files: GrantFiles, number: number): void;
};

type GrantFilesOptions = {
  readonly native: Native;
  readonly volumes: Volumes | undefined;
  /** This build's folder of engines. */
  readonly build: string;
  /** The engine that pages are to name. */
  readonly wanted: number | undefined;
  readonly pageOf: (grant: Grant) => Omit<Parameters<Native['writePage']>[1], 'engine'>;
  readonly log: Pick<Logger, 'warn'>;
};

type GrantPlaces = {
  readonly pagePath: string;
  readonly ledgerPath: string;
  readonly libraryFolder: string;
  /** Makes the file system of the page writable for the time of a call; undefined: it always is. */
  readonly within: (<T>(write: () => T) => T) | undefined;
};

function placesOf({ owner, container }: Grant, folder: string, volumes: Volumes | undefined): GrantPlaces {
  if (!isOfPod(owner)) {
    const [pagePath, ledgerPath] = [join(folder, 'limits'), join(folder, 'ledger')];
    return { pagePath, ledgerPath, libraryFolder: folder, within: undefined };
  }
  if (!volumes) throw new Error('this agent serves no pods');
  const { target } = owner;
  return {
    pagePath: volumes.pagePath(target, container),
    ledgerPath: volumes.ledgerPath(target, container),
    libraryFolder: volumes.libraryFolder(target),
    within: (write) => volumes.withWritable(target, write),
  };
}

/** The descriptor, where `use` accepts it. */
function opened(fd: number, use: (fd: number) => void): number {
  try {
    use(fd);
    return fd;
  } catch (error) {
    closeSync(fd);
    throw error;
  }
}

/** The file under that name, if `use` accepts it; else a new one, which replaces whatever has the name. */
function openOrMake(path: string, mode: number, use: (fd: number) => void, onReplaced: (text: string) => void): number {
  const there = lstatSync(path, { throwIfNoEntry: false });
  let wrong = 'it was not a file';
  if (there?.isFile()) {
    try {
      return opened(openFile(path), use);
    } catch (error) {
      // Any other error may be temporary, and processes have the file mapped: it stays.
      if ((error as { code?: unknown }).code !== PAGE_SIZE_MISMATCH) throw error;
      wrong = (error as Error).message;
    }
  }
  if (there) onReplaced(`${path} is replaced by a new file: ${wrong}`);
  return opened(makeFile(path, mode), use);
}

/** The file as it is; where it is missing or none, as if it were empty. */
function openAsIs(path: string): number {
  try {
    return openFile(path);
  } catch {
    return openSync('/dev/null', constants.O_RDWR); // reads as a truncated ledger, and accepts no page
  }
}

export function createGrantFiles({ native, volumes, build, wanted, pageOf, log }: GrantFilesOptions): GrantFileStore {
  const onReplaced =
    ({ id }: Grant) =>
    (text: string) =>
      log.warn(`grant ${id}: ${text}`);

  const writePage = (grant: Grant, { page, engine }: GrantFiles): void => {
    page.write((fd) => native.writePage(fd, { ...pageOf(grant), engine }));
  };

  const putLedgerRight = (grant: Grant, files: GrantFiles): void => {
    if (!fstatSync(files.ledgerFd).isFile()) {
      const fd = openOrMake(files.ledgerPath, 0o666, () => {}, onReplaced(grant)); // any user of the container writes here
      closeSync(files.ledgerFd);
      files.ledgerFd = fd;
    }
    // New, or truncated by a tenant.
    if (fstatSync(files.ledgerFd).size === 0)
      native.initLedger(files.ledgerFd, SLOTS, grant.gpus.length, files.compute ? ratesOf(grant) : undefined);
  };

  const putPageRight = (grant: Grant, folder: string, files: GrantFiles): void => {
    const { pagePath, within } = placesOf(grant, folder, volumes);
    const write = (fd: number) => {
      native.writePage(fd, { ...pageOf(grant), engine: files.engine });
      files.compute = native.hasCompute(fd);
    };
    const make = () => openOrMake(pagePath, 0o644, write, onReplaced(grant));
    if (within) {
      within(() => closeSync(make()));
      return;
    }
    try {
      files.page.write(write);
    } catch {
      const fd = make();
      files.page.close();
      files.page = heldPage(fd);
    }
  };

  return {
    open(grant, folder) {
      const { pagePath, ledgerPath, libraryFolder, within } = placesOf(grant, folder, volumes);
      const engines = existsSync(libraryFolder) ? enginesIn(libraryFolder) : [];
      const engine = wanted !== undefined && engines.includes(wanted) ? wanted : undefined;
      const page = within ? reopenedPage(pagePath, within) : heldPage(openAsIs(pagePath));
      return { page, ledgerPath, ledgerFd: openAsIs(ledgerPath), engines, engine, compute: false };
    },
    putRight(grant, folder, files) {
      // The page first: it limits the container.
      allOf(
        () => putPageRight(grant, folder, files),
        () => putLedgerRight(grant, files),
      );
    },
    writePage,
    changeEngine(grant, folder, files, number) {
      const { libraryFolder, within } = placesOf(grant, folder, volumes);
      const path = join(libraryFolder, engineName(number));
      const put = () => copyLibrary(join(build, engineName(number)), path);
      if (!existsSync(path)) within ? within(put) : put();
      files.engines = enginesIn(libraryFolder);
      const before = files.engine;
      files.engine = number;
      try {
        writePage(grant, files);
      } catch (error) {
        files.engine = before;
        throw error;
      }
    },
  };
}
