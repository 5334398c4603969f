// Whose each process of a sample is, from sample to sample: what was known of a process outlives its cgroup and its parents.
// Owns what is remembered; each decision is made in attribution.

import { stillKnown } from '../grant-upkeep.ts';
import { groupOfGrant, isOfPod, type ProcessOwner } from '../grants/grant.ts';
import type { Registry } from '../grants/registry.ts';
import { haveProcessData, type Sample, type SampledProcess } from '../sampling/sample.ts';
import {
  type GrantRoot,
  NO_KNOWN_OWNERS,
  type Owner,
  ownerOfProcess,
  type PodContainers,
  processKey,
  remember,
} from './attribute.ts';
import { type AttributedProcesses, groupByOwner, NO_PROCESSES, type OwnerOf } from './processes-by-owner.ts';

export type OwnerTrackerOptions = {
  readonly registry: Pick<Registry, 'list' | 'get'>;
  readonly pods: PodContainers;
  readonly isAlive: (pid: number, startTicks: number) => boolean;
};

export type OwnerTracker = {
  /** Once for each sample; the same object again where neither its processes nor whose they are have changed. */
  attribute(sample: Sample): AttributedProcesses;
};

export function createOwnerTracker({ registry, pods, isAlive }: OwnerTrackerOptions): OwnerTracker {
  let known = NO_KNOWN_OWNERS;
  /** Of the sample before. Processes of which nothing has changed are the same objects again. */
  let before: ReadonlyMap<SampledProcess, Owner> = new Map();
  let processes: readonly SampledProcess[] = [];
  let owned: AttributedProcesses = NO_PROCESSES;
  /** Are those that are remembered the very processes of that sample? */
  let isSettled = true;

  return {
    attribute(sample) {
      const live = registry.list();
      const ids = new Set(live.map(({ grant }) => grant.id));
      let roots: readonly GrantRoot[] | undefined;
      const ask = (process: SampledProcess): Owner => {
        roots ??= live.flatMap(({ grant: { id, owner } }) =>
          isOfPod(owner) ? [] : [rootOf(id, owner, groupOfGrant({ id, owner }), isAlive)],
        );
        return ownerOfProcess(process, roots, ids, known, pods, isAlive);
      };
      // Who belongs to a grant stays with it; all others are asked about in each sample, for what is told of them may change.
      const isAsBefore =
        isSettled &&
        sample.processes === processes &&
        owned.grantIds.every((id) => ids.has(id)) &&
        owned.others.every(({ process, owner }) => isSameOwner(ask(process), owner));
      if (isAsBefore) return owned;

      const owners = new Map<SampledProcess, Owner>();
      let [isNews, count] = [false, 0];
      for (const process of sample.processes) {
        const last = before.get(process);
        const owner = last?.kind === 'grant' && ids.has(last.id) ? last : ask(process);
        owners.set(process, owner);
        if (process.startTicks === undefined || process.gone) continue;
        count += 1;
        isNews ||=
          owner !== last && !isSameOwner(owner, known.byProcess.get(processKey(process.pid, process.startTicks)));
      }
      const ownerOf: OwnerOf = (process) => owners.get(process) ?? { kind: 'host' };
      const isUntold = (id: string) => !haveProcessData(sample, registry.get(id)?.grant.gpus ?? []);
      // Whoever is remembered without being seen has to be looked for again.
      if (isNews || known.byProcess.size !== count)
        known = stillKnown(remember(sample.processes, ownerOf), known, isUntold, isAlive);
      isSettled = known.byProcess.size === count;
      before = owners;
      processes = sample.processes;
      owned = groupByOwner(processes, ownerOf, owned);
      return owned;
    },
  };
}

function isSameOwner(one: Owner, other: Owner | undefined): boolean {
  if (one === other || one.kind !== other?.kind) return one === other;
  const words = (owner: Owner) => Object.values(owner).join(' ');
  return words(one) === words(other);
}

/** Most processes are known already, and then nobody asks whether a root lives. */
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
