// The processes of a sample by owner: the owner of a process, and the processes of a grant. Pure.

import type { SampledProcess } from '../sampling/sample.ts';
import type { Owner } from './attribute.ts';

type OwnerOf = (process: SampledProcess) => Owner;

/** A process that belongs to no grant. */
type ProcessWithoutGrant = {
  readonly process: SampledProcess;
  readonly owner: Exclude<Owner, { kind: 'grant' }>;
};

export type AttributedProcesses = {
  readonly ownerOf: OwnerOf;
  /** Ids of the grants that have processes. */
  readonly grantIds: readonly string[];
  /** Processes of a grant, by its id: the same list again as long as none of them has changed. */
  readonly ofGrant: (id: string) => readonly SampledProcess[];
  readonly others: readonly ProcessWithoutGrant[];
};

const NO_LIST: readonly SampledProcess[] = [];
export const NO_PROCESSES: AttributedProcesses = {
  ownerOf: () => ({ kind: 'host' }),
  grantIds: [],
  ofGrant: () => NO_LIST,
  others: [],
};

/** `before`: of the sample before. */
export function groupByOwner(
  processes: readonly SampledProcess[],
  ownerOf: OwnerOf,
  before: AttributedProcesses = NO_PROCESSES,
): AttributedProcesses {
  const byGrant = new Map<string, SampledProcess[]>();
  const others: ProcessWithoutGrant[] = [];
  for (const process of processes) {
    const owner = ownerOf(process);
    if (owner.kind !== 'grant') {
      others.push({ process, owner });
      continue;
    }
    const own = byGrant.get(owner.id);
    if (own) own.push(process);
    else byGrant.set(owner.id, [process]);
  }
  const lists = new Map<string, readonly SampledProcess[]>();
  for (const [id, own] of byGrant) {
    const last = before.ofGrant(id);
    const isSame = own.length === last.length && own.every((process, index) => process === last[index]);
    lists.set(id, isSame ? last : own);
  }
  return { ownerOf, grantIds: [...lists.keys()], ofGrant: (id) => lists.get(id) ?? NO_LIST, others };
}
