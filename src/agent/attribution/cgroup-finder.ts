// Finds the cgroup of the unified hierarchy that has exactly the processes of a grant: from the sample, or from /proc for a container
// that uses no GPU yet. Caches the results.
import { existsSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { isSameList } from '../../common/memo.ts';
import { type Grant, groupOfGrant, isOfPod } from '../grants/grant.ts';
import type { Native } from '../os/addon.ts';
import { containerGroup, knownOwnerOf, ownerOf, unifiedMount } from '../os/cgroup.ts';
import type { SampledProcess } from '../sampling/sample.ts';
import type { ContainerIndex } from './container-index.ts';

export type CgroupFinder = {
  /** Folders by grant; absent: unknown, or the grant has no cgroup. */
  findAll(
    grants: readonly Grant[],
    processesOf: (grantId: string) => readonly SampledProcess[],
  ): ReadonlyMap<string, string>;
};

type Look = {
  readonly folder: string;
  readonly processes: readonly SampledProcess[];
  readonly count: number;
  readonly again: number;
  readonly isThere: boolean;
};

/** A scan of /proc takes a part of a second on a busy node, and a container between two starts has no process. */
const SEARCH_AGAIN_MS = 1000;
const MOST_DOUBLED = 6;
/** Of a folder that is known by its name. */
const MOST_DOUBLED_HERE = 3;

export function createCgroupFinder(
  native: Pick<Native, 'readProcess'>,
  containers: Pick<ContainerIndex, 'newest' | 'nameOf'>,
  /** Monotonic, in milliseconds. */
  clock: () => number,
  mount = unifiedMount(),
  processes = () => readdirSync('/proc'),
): CgroupFinder {
  /** By container id. */
  const known = new Map<string, string>();
  let searches = new Map<string, { readonly count: number; readonly againMs: number }>();

  const podOf = (id: string) => containers.nameOf(id)?.podUid;
  /** A container is searched at once, then after intervals that double. */
  const search = (missing: readonly string[]): void => {
    const now = clock();
    const ids = new Set(missing.filter((id) => now >= (searches.get(id)?.againMs ?? now)));
    searches = new Map(
      missing.map((id) => {
        const before = searches.get(id) ?? { count: 0, againMs: now };
        if (!ids.has(id)) return [id, before];
        return [
          id,
          { count: before.count + 1, againMs: now + SEARCH_AGAIN_MS * 2 ** Math.min(before.count, MOST_DOUBLED) },
        ];
      }),
    );
    for (const entry of ids.size > 0 ? processes() : []) {
      if (!/^\d+$/.test(entry)) continue;
      const cgroup = native.readProcess(Number(entry))?.cgroup;
      const id = cgroup === undefined ? undefined : knownOwnerOf(cgroup, podOf).containerId;
      if (cgroup === undefined || id === undefined || !ids.has(id)) continue;
      const group = containerGroup(cgroup, id);
      if (group !== undefined) known.set(id, group);
    }
  };

  /** By the id of the grant: its folder and processes, whether the folder was there, and how often that has been so. */
  const looks = new Map<string, Look>();
  /** A folder that comes or goes does so with processes, as a rule, and is looked at again at once; else less and less often. */
  const isThere = (id: string, folder: string, processes: readonly SampledProcess[]): boolean => {
    const before = looks.get(id);
    const isOld = before?.folder !== folder || before.processes !== processes;
    const now = clock();
    if (!isOld && now < before.again) return before.isThere;
    const found = existsSync(folder);
    const count = isOld || found !== before.isThere ? 0 : before.count + 1;
    const again = now + SEARCH_AGAIN_MS * 2 ** Math.min(count, MOST_DOUBLED_HERE);
    looks.set(id, { folder, processes, count, again, isThere: found });
    return found;
  };
  /** By the id of the grant: its newest container, its processes, and which container and group they come to. */
  const found = new Map<string, { readonly of: readonly unknown[]; readonly id: string | undefined }>();
  const containerOf = (
    { id: grantId, owner, container }: Grant,
    processes: readonly SampledProcess[],
  ): string | undefined => {
    if (!isOfPod(owner)) return undefined;
    const newest = containers.newest(owner.podUid, container)?.id;
    const last = found.get(grantId);
    if (last && isSameList([newest, processes], last.of)) return last.id;
    const cgroups = processes.map(({ cgroup }) => cgroup ?? '');
    const id = newest ?? ownerOf(cgroups.at(-1) ?? '').containerId;
    const seen = id === undefined ? undefined : cgroups.flatMap((cgroup) => containerGroup(cgroup, id) ?? [])[0];
    if (id !== undefined && seen !== undefined) known.set(id, seen);
    found.set(grantId, { of: [newest, processes], id });
    return id;
  };

  const folderOf = (root: string, group: string | undefined) => (group === undefined ? undefined : join(root, group));
  const plainFolders = new WeakMap<Grant, string | undefined>();
  const plainFolder = (grant: Grant): string | undefined => {
    if (!plainFolders.has(grant)) plainFolders.set(grant, folderOf(mount ?? '', groupOfGrant(grant)));
    return plainFolders.get(grant);
  };

  return {
    findAll(grants, processesOf) {
      if (mount === undefined) return new Map();
      const ids = new Map<string, string>();
      for (const grant of grants) {
        const id = containerOf(grant, processesOf(grant.id));
        if (id !== undefined) ids.set(grant.id, id);
      }
      const containerIds = new Set(ids.values());
      search([...containerIds].filter((id) => !known.has(id)));
      for (const id of known.keys()) if (!containerIds.has(id)) known.delete(id);
      const live = new Set(grants.map(({ id }) => id));
      for (const map of [found, looks]) {
        for (const id of map.keys()) if (!live.has(id)) map.delete(id);
      }
      return new Map(
        grants.flatMap((grant): [string, string][] => {
          const folder = isOfPod(grant.owner)
            ? folderOf(mount, known.get(ids.get(grant.id) ?? ''))
            : plainFolder(grant);
          if (folder === undefined) return [];
          return isThere(grant.id, folder, processesOf(grant.id)) ? [[grant.id, folder]] : [];
        }),
      );
    },
  };
}
