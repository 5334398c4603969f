// Finds which containers of Docker, Podman or containerd have a grant: those that mount its folder, by the kernel's
// list of each process's mounts, which a container cannot write.
import { closeSync, openSync, readdirSync, readFileSync, readlinkSync, readSync } from 'node:fs';
import { basename, dirname, posix } from 'node:path';
import { attempt } from '../../common/result.ts';
import { isOfContainers } from '../grants/grant.ts';
import type { Registry } from '../grants/registry.ts';
import type { Native } from '../os/addon.ts';

/** A mount as /proc/PID/mountinfo has it: file system, the folder of it that is mounted, and where. */
type Mount = { readonly device: string; readonly root: string; readonly point: string };

export type GrantMounts = {
  /** The grant whose folder this process has mounted. */
  grantOf(pid: number): string | undefined;
  /** Processes of this machine that have it mounted. Reads all of /proc. */
  processesWith(id: string): readonly number[];
  /** Is there any? True also where the mounts of a process cannot all be read. */
  isHeld(id: string): boolean;
};

export type GrantMountsOptions = {
  readonly registry: Pick<Registry, 'list'>;
  readonly native: Pick<Native, 'readProcess' | 'isRunning'>;
  /** The text of /proc/PID/mountinfo. */
  readonly mountsOf?: (pid: number | 'self') => string;
  /** Identifies a process's mount namespace. */
  readonly namespaceOf?: (pid: number | 'self') => string;
  readonly processes?: () => readonly string[];
};

/**
 * Of a process's list: some 10,000 mounts. The kernel allows 100,000 in a mount namespace (`fs.mount-max`), each with two
 * paths of 4 KiB, to a process that may mount in its container.
 */
const MOST_BYTES = 2 * 2 ** 20;

/** Throws EFBIG where it is longer. */
export function readMounts(path: string, mostBytes = MOST_BYTES): string {
  const file = openSync(path, 'r');
  try {
    const parts: Buffer[] = [];
    for (let size = 0; ; ) {
      const part = Buffer.allocUnsafe(65_536);
      const got = readSync(file, part);
      if (got === 0) return Buffer.concat(parts).toString();
      size += got;
      if (size > mostBytes)
        throw Object.assign(new Error(`${path} has more than ${mostBytes} bytes`), { code: 'EFBIG' });
      parts.push(part.subarray(0, got));
    }
  } finally {
    closeSync(file);
  }
}

const ESCAPED = /\\([0-7]{3})/g;
const unescaped = (text: string): string =>
  text.replace(ESCAPED, (_, octal: string) => String.fromCharCode(Number.parseInt(octal, 8)));

/** Pure. `36 35 98:0 /root /point rw - ext4 …`; spaces and the like are octal in it. */
export const parseMounts = (text: string): readonly Mount[] =>
  text.split('\n').flatMap((line) => {
    const [, , device, root, point] = line.split(' ');
    return device === undefined || root === undefined || point === undefined
      ? []
      : [{ device, root: unescaped(root), point: unescaped(point) }];
  });

/** Where a path of this process is on its file system; of mounts on one another the last one is seen. */
export function placeOf(path: string, mounts: readonly Mount[]): Pick<Mount, 'device' | 'root'> | undefined {
  const isBelow = ({ point }: Mount) => point === '/' || path === point || path.startsWith(`${point}/`);
  const best = mounts
    .filter(isBelow)
    .reduce<Mount | undefined>((a, b) => (a && a.point.length > b.point.length ? a : b), undefined);
  return best && { device: best.device, root: posix.join(best.root, posix.relative(best.point, path)) };
}

const readMountsOf = (pid: number | 'self'): string =>
  pid === 'self' ? readFileSync('/proc/self/mountinfo', 'utf8') : readMounts(`/proc/${pid}/mountinfo`);

const readNamespace = (pid: number | 'self'): string => readlinkSync(`/proc/${pid}/ns/mnt`);

export function createGrantMounts(options: GrantMountsOptions): GrantMounts {
  const { registry, native, processes = () => readdirSync('/proc') } = options;
  const { mountsOf = readMountsOf, namespaceOf = readNamespace } = options;
  /** A process that had the grant mounted, so that a search is rare. */
  const holders = new Map<string, { readonly pid: number; readonly startTicks: number }>();
  const folders = () => registry.list().flatMap(({ grant, folder }) => (isOfContainers(grant.owner) ? [folder] : []));

  /**
   * A process of the machine is in no container, whatever is mounted there: a container that shares mounts with the
   * machine could mount its grant into the list of all of the machine's processes, which would be stopped with it.
   */
  const isOfMachine = (pid: number): boolean => {
    const own = namespaceOf(pid);
    if (own === namespaceOf('self')) return true;
    // Where the first process may not be read, neither may its namespace's mounts.
    const first = attempt(() => namespaceOf(1));
    return first.ok && own === first.value;
  };
  const idIn = (mounts: readonly Mount[], folder: string): string | undefined => {
    const place = placeOf(dirname(folder), parseMounts(mountsOf('self')));
    if (place === undefined) return undefined;
    const known = new Set(folders().map((one) => basename(one)));
    for (const { device, root } of mounts) {
      if (device !== place.device || !root.startsWith(`${place.root}/`)) continue;
      const id = root.slice(place.root.length + 1).split('/')[0] ?? '';
      if (known.has(id)) return id;
    }
    return undefined;
  };
  const grantOf = (pid: number): string | undefined => {
    const [folder] = folders();
    if (folder === undefined) return undefined;
    try {
      return isOfMachine(pid) ? undefined : idIn(parseMounts(mountsOf(pid)), folder);
    } catch {
      return undefined; // it has ended, or has too many mounts
    }
  };
  const search = (id: string): { readonly found: readonly number[]; readonly hidden: boolean } => {
    const folder = folders().find((one) => basename(one) === id);
    const found: number[] = [];
    let hidden = false;
    for (const name of folder === undefined ? [] : processes()) {
      if (!/^\d+$/.test(name)) continue;
      try {
        const mounts = mountsOf(Number(name));
        // Most processes have no such mount: their text is not parsed.
        if (!mounts.includes(`/${id}`) || isOfMachine(Number(name))) continue;
        if (idIn(parseMounts(mounts), folder ?? '') === id) found.push(Number(name));
      } catch (error) {
        const { code } = error as NodeJS.ErrnoException;
        hidden ||= code === 'EACCES' || code === 'EPERM' || code === 'EFBIG';
      }
    }
    return { found, hidden };
  };

  return {
    grantOf,
    processesWith: (id) => search(id).found,
    isHeld(id) {
      const holder = holders.get(id);
      if (holder && native.isRunning(holder.pid, holder.startTicks)) return true;
      holders.delete(id);
      const { found, hidden } = search(id);
      for (const pid of found) {
        const facts = native.readProcess(pid);
        if (facts && !facts.ended) {
          holders.set(id, { pid, startTicks: facts.startTicks });
          return true;
        }
      }
      return hidden;
    },
  };
}
