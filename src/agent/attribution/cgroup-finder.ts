// Finds the cgroup of the unified hierarchy that has exactly the processes of a grant: from the sample, or from /proc
// for a container that uses no GPU yet. Remembers where the containers are.
import { existsSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { type Grant, groupOfGrant, isOfPod } from '../grants/grant.ts';
import type { Native } from '../os/addon.ts';
import { containerGroup, knownOwnerOf, ownerOf, unifiedMount } from '../os/cgroup.ts';
import type { SampledProcess } from '../sampling/sample.ts';
import type { ContainerIndex } from './container-index.ts';

type CgroupFinder = {
  /** Folders by grant; absent: unknown, or the grant has no cgroup. */
  findAll(
    grants: readonly Grant[],
    processesOf: (grantId: string) => readonly SampledProcess[],
  ): ReadonlyMap<string, string>;
};

type CgroupFinderOptions = {
  readonly native: Pick<Native, 'readProcess'>;
  readonly containers: Pick<ContainerIndex, 'newest' | 'nameOf'>;
  /** Monotonic, in milliseconds. */
  readonly clock: () => number;
  readonly mount?: string | undefined;
  /** The entries of /proc. */
  readonly processes?: () => readonly string[];
};

/** A scan of /proc takes a part of a second on a busy node, and a container between two starts has no process. */
const SEARCH_AGAIN_MS = 1000;
const MOST_DOUBLED = 6;

export function createCgroupFinder(options: CgroupFinderOptions): CgroupFinder {
  const { native, containers, clock, mount = unifiedMount(), processes = () => readdirSync('/proc') } = options;
  /** By container id. */
  const known = new Map<string, string>();
  let searches = new Map<string, { readonly count: number; readonly againMs: number }>();

  /** A container is searched at once, then after intervals that double. */
  const search = (missing: readonly string[]): void => {
    const now = clock();
    const ids = new Set(missing.filter((id) => now >= (searches.get(id)?.againMs ?? now)));
    searches = new Map(
      missing.map((id) => {
        const before = searches.get(id) ?? { count: 0, againMs: now };
        if (!ids.has(id)) return [id, before];
        const waitMs = SEARCH_AGAIN_MS * 2 ** Math.min(before.count, MOST_DOUBLED);
        return [id, { count: before.count + 1, againMs: now + waitMs }];
      }),
    );
    for (const entry of ids.size > 0 ? processes() : []) {
      if (!/^\d+$/.test(entry)) continue;
      const cgroup = native.readProcess(Number(entry))?.cgroup;
      if (cgroup === undefined) continue;
      const id = knownOwnerOf(cgroup, (of) => containers.nameOf(of)?.podUid).containerId;
      if (id !== undefined && ids.has(id)) learn(id, [cgroup]);
    }
  };
  const learn = (id: string, cgroups: readonly string[]): void => {
    const [group] = cgroups.flatMap((cgroup) => containerGroup(cgroup, id) ?? []);
    if (group !== undefined) known.set(id, group);
  };
  /** The newest container of a pod's grant. */
  const containerOf = ({ owner, container }: Grant, own: readonly SampledProcess[]): string | undefined => {
    if (!isOfPod(owner)) return undefined;
    const id = containers.newest(owner.podUid, container)?.id ?? ownerOf(own.at(-1)?.cgroup ?? '').containerId;
    if (id !== undefined && !known.has(id))
      learn(
        id,
        own.map(({ cgroup }) => cgroup ?? ''),
      );
    return id;
  };

  return {
    findAll(grants, processesOf) {
      if (mount === undefined) return new Map();
      const ids = new Map(grants.map((grant) => [grant.id, containerOf(grant, processesOf(grant.id))]));
      const containerIds = new Set([...ids.values()].filter((id) => id !== undefined));
      search([...containerIds].filter((id) => !known.has(id)));
      for (const id of known.keys()) if (!containerIds.has(id)) known.delete(id);
      return new Map(
        grants.flatMap((grant): [string, string][] => {
          const group = isOfPod(grant.owner) ? known.get(ids.get(grant.id) ?? '') : groupOfGrant(grant);
          const folder = group === undefined ? undefined : join(mount, group);
          return folder !== undefined && existsSync(folder) ? [[grant.id, folder]] : [];
        }),
      );
    },
  };
}
