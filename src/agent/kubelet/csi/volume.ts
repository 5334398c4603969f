// Mounts and files of one pod's volume, below the path that the kubelet names: its layout, to which the containers'
// mounts refer by subPath, and what in it is writable. The registry of grants writes limits pages and usage ledgers
// into it.
//
// The volume is a tmpfs whose superblock is read-only: the flag of a single mount would not be seen by the kubelet's
// binds. Ledgers lie on a tmpfs of their own in it, bounded, for tenants write them. Each pod has copies of the
// libraries, so that an upgrade never rewrites a file that a running pod has mapped; engines of later builds come
// beside them.
//
// No state is stored outside of the mounts: a new agent finds what the previous one created. A file under its final
// name is complete.
import {
  closeSync,
  constants,
  existsSync,
  fchmodSync,
  lstatSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  realpathSync,
  rmSync,
  statSync,
} from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { HOME } from '../../../api/csi-volume.ts';
import { isContainerName } from '../../../api/names.ts';
import { replaceFile } from '../../../common/state-file.ts';
import { copyLibrary, engineNumber } from '../../grants/engine-files.ts';
import type { Volumes } from '../../grants/files.ts';
import type { Native } from '../../os/addon.ts';

/** Volumes as the grant registry uses them. */
export const podVolumes = (native: Native): Volumes => ({
  mount: (target, containers, ledgerBytes, libraries) =>
    mountVolume(native, { target, containers, ledgerBytes, libraries }),
  isMounted,
  containers: containersOf,
  withWritable: (target, write) => withWritable(native, target, write),
  libraryFolder,
  pagePath,
  ledgerPath,
});

export type VolumePlan = {
  readonly target: string;
  readonly containers: readonly string[];
  /** Size of each container's ledger. */
  readonly ledgerBytes: number;
  /** Paths on the host; copied. */
  readonly libraries: readonly string[];
};

const PUBLISHED = 'published';
/** More than the largest limits page has, that of 16 GPUs and 4096 slots. Only the agent writes there. */
const PAGE_BYTES = 5 << 20;
/** A tmpfs takes memory by the page: 4096 bytes, or up to these on arm64. */
const MEMORY_PAGE_BYTES = 64 << 10;
const SLACK_BYTES = 1 << 20;
const SLACK_INODES = 4;
/** Engines of later builds for which a volume has space; only engines that are added take memory. */
const LATER_ENGINES = 16;
const LATER_ENGINE_BYTES = 1 << 20;
/** An SELinux label that every pod may read; with it the kubelet does not try to relabel the read-only volume. */
const SELINUX_CONTEXT = 'system_u:object_r:container_file_t:s0';

export function pagePath(target: string, container: string): string {
  return join(target, 'containers', container, 'limits');
}

/** The folder that is mounted at HOME in the containers. */
function libraryFolder(target: string): string {
  return join(target, 'lib');
}

export function ledgerPath(target: string, container: string): string {
  return join(target, 'ledgers', container, 'ledger');
}

/** Names of the containers that the volume was created for. */
function containersOf(target: string): readonly string[] {
  return readdirSync(join(target, 'containers'));
}

/** Creates all missing parts except pages and ledgers, and leaves the volume read-only. */
export function mountVolume(native: Native, plan: VolumePlan): void {
  const { target, containers } = plan;
  const wrong = containers.find((name) => !isContainerName(name));
  if (wrong !== undefined) throw new Error(`${JSON.stringify(wrong)} is not a container name`);
  mkdirSync(target, { recursive: true, mode: 0o750 });
  const pieces = piecesOf(plan);
  const fill = () => {
    for (const { path, make } of pieces) if (!existsSync(path)) make(path);
  };
  if (!isMounted(target)) {
    const bytes = plan.libraries.reduce((sum, path) => sum + inPages(statSync(path).size), 0);
    const capacity = bytes + containers.length * PAGE_BYTES + LATER_ENGINES * LATER_ENGINE_BYTES + SLACK_BYTES;
    const inodes = pieces.length + containers.length + LATER_ENGINES + SLACK_INODES;
    native.mountTmpfs(target, tmpfsOptions(capacity, inodes), true);
  }
  if (!isReadOnly(target) || pieces.some(({ path }) => !existsSync(path))) withWritable(native, target, fill);
  const ledgers = join(target, 'ledgers');
  if (!isMounted(ledgers)) {
    const bytes = containers.length * inPages(plan.ledgerBytes) + MEMORY_PAGE_BYTES;
    native.mountTmpfs(ledgers, tmpfsOptions(bytes, 2 * containers.length + SLACK_INODES), false);
  }
  for (const container of containers) makeLedgerFolder(join(ledgers, container));
}

/** Marks the volume as published: from now on a publish call for it must never be refused. */
export function markPublished(native: Native, target: string): void {
  withWritable(native, target, () => makeFile(join(target, PUBLISHED), 0o644));
}

/** False also for a volume that an agent had not completed when it ended. */
export function isPublished(target: string): boolean {
  return isMounted(target) && existsSync(join(target, PUBLISHED));
}

/** Descriptors for writing that `write` leaves open keep the volume writable, which is an error. */
export function withWritable<T>(native: Native, target: string, write: () => T): T {
  native.remount(target, false);
  let failed: unknown;
  try {
    return write();
  } catch (error) {
    failed = error;
    throw error;
  } finally {
    seal(native, target, failed);
  }
}

function seal(native: Native, target: string, failed: unknown): void {
  try {
    native.remount(target, true);
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    const why = code === 'EBUSY' ? `EBUSY: a file of it is open or mapped for writing` : message;
    const before = failed === undefined ? '' : `; before that: ${failed instanceof Error ? failed.message : failed}`;
    throw new Error(`the volume at ${target} stays writable: ${why}${before}`, { cause: failed ?? error });
  }
}

/** Unmounts the volume and removes its folder; missing parts are not an error. */
export function unmountVolume(native: Native, target: string): void {
  let failed: unknown;
  for (const { path } of mountsAt(target).toReversed()) {
    try {
      native.unmount(path, false);
    } catch {
      try {
        native.unmount(path, true); // still in use
      } catch (error) {
        failed = error; // a nested mount may be gone with its parent
      }
    }
  }
  const [left] = mountsAt(target);
  if (left) throw failed ?? new Error(`${left.path} is still mounted`);
  rmSync(target, { recursive: true, force: true });
}

export function isMounted(target: string): boolean {
  const root = whereIs(target);
  return mountsAt(target).some(({ path }) => path === root);
}

/** State of the file system itself, not of one of its mounts. */
function isReadOnly(target: string): boolean {
  const root = whereIs(target);
  return mountsAt(target).some(({ path, options }) => path === root && options.includes('ro'));
}

/** The kernel names mounts by where they really are; a kubelet's root may be reached through a link. */
function whereIs(target: string): string {
  const parent = dirname(target);
  return existsSync(parent) ? join(realpathSync(parent), basename(target)) : target;
}

/** Mounts at and below a path, the last one made last. Format: proc_pid_mountinfo(5). */
function mountsAt(target: string): { readonly path: string; readonly options: readonly string[] }[] {
  const root = whereIs(target);
  return readFileSync('/proc/self/mountinfo', 'utf8')
    .split('\n')
    .flatMap((line) => {
      const fields = line.split(' ');
      const path = (fields[4] ?? '').replace(/\\([0-7]{3})/g, (_, octal) =>
        String.fromCharCode(Number.parseInt(octal, 8)),
      );
      if (path !== root && !path.startsWith(`${root}/`)) return [];
      return [{ path, options: (fields.at(-1) ?? '').split(',') }];
    });
}

type Piece = { readonly path: string; make(path: string): void };

/** All folders and files except ledgers, parents before children. */
function piecesOf({ target, containers, libraries }: VolumePlan): readonly Piece[] {
  const folder = (...names: string[]): Piece => ({ path: join(target, ...names), make: makeFolder });
  const file = (make: (path: string) => void, ...names: string[]): Piece => ({ path: join(target, ...names), make });
  const empty = (path: string) => makeFile(path, 0o644);
  const names = libraries.map((path) => basename(path));
  const preload = names
    .filter((name) => engineNumber(name) === undefined)
    .map((name) => `${HOME}/${name}\n`)
    .join('');
  return [
    ...['lib', 'containers', 'ledgers'].map((name) => folder(name)),
    ...libraries.map((from, index) => file((path) => copyLibrary(from, path), 'lib', names[index] ?? '')),
    // The volume is read-only later, so mount points must exist now.
    ...['limits', 'ledger'].map((name) => file(empty, 'lib', name)),
    ...containers.map((name) => folder('containers', name)),
    file((path) => makeFile(path, 0o644, preload), 'ld.so.preload'),
  ];
}

function makeFolder(path: string): void {
  mkdirSync(path);
  const fd = openSync(path, constants.O_DIRECTORY);
  fchmodSync(fd, 0o755); // the umask does not apply
  closeSync(fd);
}

/** The file appears under its name only when it is complete. */
const makeFile = (path: string, mode: number, text = ''): void => replaceFile(path, text, { mode, sync: false });

/** Ledgers have names that tenants cannot change: the folder is not theirs. */
function makeLedgerFolder(path: string): void {
  if (lstatSync(path, { throwIfNoEntry: false })?.isDirectory()) return;
  rmSync(path, { force: true });
  makeFolder(path);
}

const inPages = (bytes: number): number => Math.ceil(bytes / MEMORY_PAGE_BYTES) * MEMORY_PAGE_BYTES;

function tmpfsOptions(bytes: number, inodes: number): string {
  const options = `size=${bytes},nr_inodes=${inodes},mode=0755`;
  return hasSelinux() ? `${options},context="${SELINUX_CONTEXT}"` : options;
}

/** The kernel's list of file systems shows SELinux in every container; the folder of its settings may be hidden. */
function hasSelinux(): boolean {
  return /\bselinuxfs$/m.test(readFileSync('/proc/filesystems', 'utf8'));
}
