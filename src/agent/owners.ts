// Whose each process of a sample is, from sample to sample: what was known of a process outlives its cgroup and its parents.
// Owns what is remembered; each decision is made in attribution.
import { NOBODY_KNOWN, type Owner, ownerOfProcess, type PodContainers, remember } from './attribution/attribute.ts';
import { groupOfGrant, isOfPod } from './grants/grant.ts';
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
  return {
    of(sample) {
      const live = registry.list();
      const roots = live.flatMap(({ grant: { id, owner } }) => {
        if (isOfPod(owner)) return [];
        const { pid, startTicks } = owner;
        return [{ id, pid, startTicks, alive: isAlive(pid, startTicks), group: groupOfGrant({ id, owner }) }];
      });
      const ids = new Set(live.map(({ grant }) => grant.id));
      const owners = new Map(
        sample.processes.map((process) => [process, ownerOfProcess(process, roots, ids, known, pods)]),
      );
      const ownerOf: OwnerOf = (process) => owners.get(process) ?? { kind: 'host' };
      const isUntold = (id: string) => !tellsAll(sample, registry.get(id)?.grant.cards ?? []);
      known = stillKnown(remember(sample.processes, ownerOf), known, isUntold, isAlive);
      return ownerOf;
    },
  };
}
