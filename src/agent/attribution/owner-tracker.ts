// Tracks the owner (grant, container, host) of each process from sample to sample: a result stays valid when the
// process's cgroup or parents are gone. Keeps the state; attribute.ts decides.

import { groupOfGrant, isOfProcess, type ProcessOwner } from '../grants/grant.ts';
import type { LiveGrant } from '../grants/live-grant.ts';
import type { Registry } from '../grants/registry.ts';
import { haveProcessData, type Sample, type SampledProcess } from '../sampling/sample.ts';
import {
  type GrantRoot,
  type KnownOwners,
  type Owner,
  ownerOfProcess,
  type PodContainers,
  remember,
} from './attribute.ts';
import type { GrantMounts } from './grant-mounts.ts';
import { type AttributedProcesses, groupByOwner, NO_PROCESSES } from './processes-by-owner.ts';

type OwnerTrackerOptions = {
  readonly registry: Pick<Registry, 'list' | 'get'>;
  readonly pods: PodContainers;
  readonly mounts?: Pick<GrantMounts, 'grantOf'>;
  readonly isAlive: (pid: number, startTicks: number) => boolean;
};

export type OwnerTracker = {
  /** Call once per sample. */
  attribute(sample: Sample): AttributedProcesses;
};

export function createOwnerTracker({ registry, pods, mounts, isAlive }: OwnerTrackerOptions): OwnerTracker {
  let known: KnownOwners = new Map();
  let owned: AttributedProcesses = NO_PROCESSES;
  let processes: Sample['processes'] = [];
  let live: readonly LiveGrant[] = [];

  return {
    attribute(sample) {
      // A process of a grant stays with it. What other processes are may become known later, without a change of these.
      const isSame = processes === sample.processes && live === registry.list();
      if (isSame && owned.others.length === 0) return owned;
      ({ processes } = sample);
      live = registry.list();
      const facts = {
        roots: live.flatMap(({ grant: { id, owner } }) =>
          isOfProcess(owner) ? [rootOf(id, owner, groupOfGrant({ id, owner }), isAlive)] : [],
        ),
        grantIds: new Set(live.map(({ grant }) => grant.id)),
        known,
        pods,
        ...(mounts && { mountedIn: mounts.grantOf }),
        isAlive,
      };
      const owners = new Map<SampledProcess, Owner>();
      for (const process of processes) owners.set(process, ownerOfProcess(process, facts));
      const hasNoData = (id: string) => !haveProcessData(sample, registry.get(id)?.grant.gpus ?? []);
      known = remember(owners, known, hasNoData, isAlive);
      owned = groupByOwner(processes, (process) => owners.get(process) ?? { kind: 'host' }, owned);
      return owned;
    },
  };
}

/** Whether a root lives is read only on demand: most processes are known already. */
function rootOf(
  id: string,
  { pid, startTicks }: ProcessOwner,
  group: string | undefined,
  isAlive: OwnerTrackerOptions['isAlive'],
): GrantRoot {
  let alive: boolean | undefined;
  return {
    id,
    pid,
    startTicks,
    group,
    get alive() {
      alive ??= isAlive(pid, startTicks);
      return alive;
    },
  };
}
