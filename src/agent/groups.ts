// In which group of the unified hierarchy each grant's processes are, and no other's: found in the sample, or in /proc for a
// container that is on no card yet. Owns the look-up and what is remembered of it.
import { existsSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { containerGroup, ownerOf } from './attribution/cgroup.ts';
import type { ContainerBook } from './attribution/pods.ts';
import { unifiedMount } from './enforcement/targets.ts';
import { type Grant, groupOfGrant, isOfPod } from './grants/grant.ts';
import type { Native } from './native.ts';
import type { SampledProcess } from './sample.ts';

export type Groups = {
  /** Folders by grant; absent: it is not known, or there is none. */
  of(
    grants: readonly Grant[],
    processesOf: (grantId: string) => readonly SampledProcess[],
  ): ReadonlyMap<string, string>;
};

/** A look through all of /proc costs a busy node's agent a part of a second, and a container between two starts has no process. */
const SEARCH_AGAIN_MS = 1000;
const MOST_DOUBLED = 6;

export function createGroups(
  native: Pick<Native, 'readProcess'>,
  containers: Pick<ContainerBook, 'newest'>,
  /** A clock that nobody sets, in milliseconds. */
  clock: () => number,
  mount = unifiedMount(),
  processes = () => readdirSync('/proc'),
): Groups {
  /** By container id. */
  let known = new Map<string, string>();
  let searches = new Map<string, { readonly count: number; readonly againMs: number }>();

  /** Each is looked for at once, and then after twice the time each time. */
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
      const id = cgroup === undefined ? undefined : ownerOf(cgroup).containerId;
      if (cgroup === undefined || id === undefined || !ids.has(id)) continue;
      const group = containerGroup(cgroup, id);
      if (group !== undefined) known.set(id, group);
    }
  };

  return {
    of(grants, processesOf) {
      if (mount === undefined) return new Map();
      const ids = new Map<string, string>();
      for (const { id, owner, container } of grants) {
        if (!isOfPod(owner)) continue;
        const cgroups = processesOf(id).map(({ cgroup }) => cgroup ?? '');
        const newest = containers.newest(owner.podUid, container)?.id ?? ownerOf(cgroups.at(-1) ?? '').containerId;
        if (newest === undefined) continue;
        ids.set(id, newest);
        const seen = cgroups.flatMap((cgroup) => containerGroup(cgroup, newest) ?? [])[0];
        if (seen !== undefined) known.set(newest, seen);
      }
      search([...new Set(ids.values())].filter((id) => !known.has(id)));
      known = new Map([...known].filter(([id]) => [...ids.values()].includes(id)));
      return new Map(
        grants.flatMap((grant): [string, string][] => {
          const group = isOfPod(grant.owner) ? known.get(ids.get(grant.id) ?? '') : groupOfGrant(grant);
          if (group === undefined) return [];
          const folder = join(mount, group);
          return existsSync(folder) ? [[grant.id, folder]] : [];
        }),
      );
    },
  };
}
