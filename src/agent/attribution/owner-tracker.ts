// Tracks the owner (grant, container, host) of each process from sample to sample: a result stays valid when the
// process's cgroup or parents are gone. Keeps the state; attribute.ts decides.

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
  stillKnown,
} from './attribute.ts';
import { type AttributedProcesses, groupByOwner, NO_PROCESSES, type OwnerOf } from './processes-by-owner.ts';

export type OwnerTrackerOptions = {
  readonly registry: Pick<Registry, 'list' | 'get'>;
  readonly pods: PodContainers;
  readonly isAlive: (pid: number, startTicks: number) => boolean;
};

export type OwnerTracker = {
  /** Call once per sample. */
  attribute(sample: Sample): AttributedProcesses;
};

export function createOwnerTracker({ registry, pods, isAlive }: OwnerTrackerOptions): OwnerTracker {
  let known = NO_KNOWN_OWNERS;
  /** Of the sample before. Processes of which nothing has changed are the same objects again. */
  let before: ReadonlyMap<SampledProcess, Owner> = new Map();
  let owned: AttributedProcesses = NO_PROCESSES;

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
      const hasNoData = (id: string) => !haveProcessData(sample, registry.get(id)?.grant.gpus ?? []);
      // Processes that are remembered without being in the sample have to be checked again.
      if (isNews || known.byProcess.size !== count)
        known = stillKnown(remember(sample.processes, ownerOf), known, hasNoData, isAlive);
      before = owners;
      owned = groupByOwner(sample.processes, ownerOf, owned);
      return owned;
    },
  };
}

function isSameOwner(one: Owner, other: Owner | undefined): boolean {
  if (one === other || one.kind !== other?.kind) return one === other;
  const words = (owner: Owner) => Object.values(owner).join(' ');
  return words(one) === words(other);
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
