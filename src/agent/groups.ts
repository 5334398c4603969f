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

export function createGroups(
  native: Pick<Native, 'readProcess'>,
  containers: Pick<ContainerBook, 'newest'>,
  mount = unifiedMount(),
): Groups {
  /** By container id. */
  let known = new Map<string, string>();

  const search = (ids: ReadonlySet<string>): void => {
    for (const entry of ids.size > 0 ? readdirSync('/proc') : []) {
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
      search(new Set([...ids.values()].filter((id) => !known.has(id))));
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
