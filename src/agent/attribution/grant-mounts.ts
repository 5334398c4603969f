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
  /** Those of these grants that a process has mounted, with at most one pass over /proc for all. Where the mounts of a
   * process cannot all be read, it may have any of them. */
  held(ids: readonly string[]): ReadonlySet<string>;
};

type GrantMountsOptions = {
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

/** As the kernel writes a path there. */
const escaped = (text: string): string =>
  text.replace(/[ \t\n\\]/g, (one) => `\\${one.charCodeAt(0).toString(8).padStart(3, '0')}`);

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
  /** Finds the grant in the mounts of processes; undefined: no container can have one. */
  const finder = () => {
    const all = folders();
    const place = all[0] === undefined ? undefined : placeOf(dirname(all[0]), parseMounts(mountsOf('self')));
    if (place === undefined) return undefined;
    const known = new Set(all.map((folder) => basename(folder)));
    const parent = `${place.root}/`;
    const written = escaped(parent);
    return (pid: number): string | undefined => {
      const text = mountsOf(pid);
      // Most processes have no such mount: their text is not parsed.
      if (!text.includes(written) || isOfMachine(pid)) return undefined;
      for (const { device, root } of parseMounts(text)) {
        if (device !== place.device || !root.startsWith(parent)) continue;
        const id = root.slice(parent.length).split('/')[0] ?? '';
        if (known.has(id)) return id;
      }
      return undefined;
    };
  };
  const grantOf = (pid: number): string | undefined => {
    try {
      return finder()?.(pid);
    } catch {
      return undefined; // it has ended, or has too many mounts
    }
  };
  /** One pass over /proc: the processes of each grant, and whether the mounts of some could not be read. */
  const search = (): { readonly found: ReadonlyMap<string, readonly number[]>; readonly hidden: boolean } => {
    const found = new Map<string, number[]>();
    let hidden = false;
    const idOf = finder();
    for (const name of idOf === undefined ? [] : processes()) {
      if (!/^\d+$/.test(name)) continue;
      try {
        const id = idOf?.(Number(name));
        if (id !== undefined) found.set(id, [...(found.get(id) ?? []), Number(name)]);
      } catch (error) {
        const { code } = error as NodeJS.ErrnoException;
        hidden ||= code === 'EACCES' || code === 'EPERM' || code === 'EFBIG';
      }
    }
    return { found, hidden };
  };

  return {
    grantOf,
    processesWith: (id) => search().found.get(id) ?? [],
    held(ids) {
      const isKnown = (id: string): boolean => {
        const holder = holders.get(id);
        return holder !== undefined && native.isRunning(holder.pid, holder.startTicks);
      };
      const isFound = new Set(ids.filter(isKnown));
      const rest = ids.filter((id) => !isFound.has(id));
      if (rest.length === 0) return isFound;
      const { found, hidden } = search();
      for (const id of rest) {
        holders.delete(id);
        const pid = found.get(id)?.find((one) => native.readProcess(one)?.ended === false);
        const facts = pid === undefined ? undefined : native.readProcess(pid);
        if (pid !== undefined && facts) holders.set(id, { pid, startTicks: facts.startTicks });
        if (hidden || holders.has(id)) isFound.add(id);
      }
      return isFound;
    },
  };
}
