// Whose each process of a sample is, from sample to sample: what was known of a process outlives its cgroup and its parents.
// Owns what is remembered; each decision is made in attribution.
import {
  type GrantRoot,
  NOBODY_KNOWN,
  type Owner,
  ownerOfProcess,
  type PodContainers,
  remember,
} from './attribution/attribute.ts';
import { groupOfGrant, isOfPod, type ProcessOwner } from './grants/grant.ts';
import type { Registry } from './grants/registry.ts';
import { stillKnown } from './housekeeping.ts';
import { type Sample, type SampledProcess, tellsAll } from './sample.ts';

export type OwnersOptions = {
  readonly registry: Pick<Registry, 'list' | 'get'>;
  readonly pods: PodContainers;
  readonly isAlive: (pid: number, startTicks: number) => boolean;
};

export type OwnerOf = (process: SampledProcess) => Owner;

/** Once for each sample; what it returns knows the processes of that sample. */
export function createOwners({ registry, pods, isAlive }: OwnersOptions): { of(sample: Sample): OwnerOf } {
  let known = NOBODY_KNOWN;
  /** Of the sample before. Processes of which nothing has changed are the same objects again. */
  let before: ReadonlyMap<SampledProcess, Owner> = new Map();
  return {
    of(sample) {
      const live = registry.list();
      const ids = new Set(live.map(({ grant }) => grant.id));
      const roots = live.flatMap(({ grant: { id, owner } }) =>
        isOfPod(owner) ? [] : [rootOf(id, owner, groupOfGrant({ id, owner }), isAlive)],
      );
      const owners = new Map<SampledProcess, Owner>();
      let isNews = sample.processes.length !== before.size;
      for (const process of sample.processes) {
        const last = before.get(process);
        const stays = last?.kind === 'grant' && ids.has(last.id);
        isNews ||= !stays;
        owners.set(process, stays ? last : ownerOfProcess(process, roots, ids, known, pods));
      }
      const ownerOf: OwnerOf = (process) => owners.get(process) ?? { kind: 'host' };
      const isUntold = (id: string) => !tellsAll(sample, registry.get(id)?.grant.cards ?? []);
      // Whoever is remembered without being seen has to be looked for again.
      if (isNews || known.byProcess.size !== owners.size)
        known = stillKnown(remember(sample.processes, ownerOf), known, isUntold, isAlive);
      before = owners;
      return ownerOf;
    },
  };
}

/** Most processes are known already, and then nobody asks whether a root lives. */
function rootOf(
  id: string,
  { pid, startTicks }: ProcessOwner,
  group: string | undefined,
  isAlive: OwnersOptions['isAlive'],
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
