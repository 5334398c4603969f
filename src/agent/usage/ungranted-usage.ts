// Containers on GPUs of which they have no grant: GPUs that another device plugin allocated to them, and GPUs without
// any allocation. A container with a grant counts as one on all other GPUs, by the id of its grant. Pure.

import type { Owner } from '../attribution/attribute.ts';
import type { ShareMode } from '../attribution/device-ids.ts';
import { type Assigned, type Assignment, NOTHING_ASSIGNED } from '../attribution/other-allocations.ts';
import type { AttributedProcesses } from '../attribution/processes-by-owner.ts';
import { type Grant, podUidOf } from '../grants/grant.ts';
import { ownerOf } from '../os/cgroup.ts';
import {
  gpuWithProcessData,
  isUtilizationKnown,
  type Sample,
  type SampledGpu,
  type SampledProcess,
  sumOrUnknown,
} from '../sampling/sample.ts';
import { type ProcessState, processesOn, processState, useOnGpu } from './gpu-processes.ts';

/** A container on a GPU that it was given by others: a whole GPU, a replica, a MIG instance. Its limits are not
 * ours. */
export type AssignedState = {
  readonly namespace: string;
  readonly pod: string;
  readonly container: string;
  /** Of its processes; empty while none uses the GPU. */
  readonly podUid: string;
  /** Of one that has a grant of other GPUs, the grant's. */
  readonly containerIds: readonly string[];
  readonly gpuUuid: string;
  readonly gpuIndex: number;
  readonly mode: ShareMode;
  /** Undefined: the driver does not report it for each of its processes. */
  readonly usedBytes: number | undefined;
  /** Undefined: the driver did not report it. */
  readonly smPercent: number | undefined;
  readonly lastActiveMs: number | undefined;
  readonly processes: readonly ProcessState[];
};

export type ForeignState = {
  readonly gpuUuid: string;
  readonly gpuIndex: number;
  /** Of one that has a grant of other GPUs, the grant's. */
  readonly containerId: string;
  readonly podUid: string;
  /** Undefined: the driver does not report it for each of its processes. */
  readonly usedBytes: number | undefined;
  /** Undefined: the driver did not report it. */
  readonly smPercent?: number | undefined;
  readonly processes: number;
};

type Named = { readonly namespace: string; readonly pod: string; readonly container: string };

/** What others gave out on this node, and the names of containers. */
export type OtherAllocations = {
  readonly assigned: Assigned;
  readonly nameOf: (containerId: string, podUid?: string) => Named;
};
export const NO_OTHER_ALLOCATIONS: OtherAllocations = {
  assigned: NOTHING_ASSIGNED,
  nameOf: () => ({ namespace: '', pod: '', container: '' }),
};

type Ungranted = {
  readonly process: SampledProcess;
  readonly owner: Extract<Owner, { kind: 'container' }>;
  readonly grant?: Grant;
};

const NONE: { assigned: readonly AssignedState[]; foreign: readonly ForeignState[] } = { assigned: [], foreign: [] };

/** `assigned`: another device plugin allocated the GPU to the container; `foreign`: no allocation is known. */
export function ungrantedUsage(
  sample: Sample,
  owned: Pick<AttributedProcesses, 'others' | 'ofGrant'>,
  grants: readonly Grant[],
  { assigned: { list }, nameOf }: OtherAllocations,
): { assigned: readonly AssignedState[]; foreign: readonly ForeignState[] } {
  const processes = [
    ...owned.others.flatMap(({ process, owner }): Ungranted[] =>
      owner.kind === 'container' ? [{ process, owner }] : [],
    ),
    ...processesOutsideGrant(sample, owned, grants),
  ];
  if (processes.length === 0 && list.length === 0) return NONE;
  const names = new Map(
    processes.map(({ owner, grant }) => [idOf(owner), grant ?? nameOf(owner.containerId, owner.podUid)] as const),
  );
  // If it has a grant on the GPU, only the grant is shown, whatever else the kubelet allocated.
  const granted = Map.groupBy(grants, nameKey);
  const taken = Map.groupBy(
    list.filter((entry) => !granted.get(nameKey(entry))?.some((grant) => hasGpu(grant, entry.gpuUuid))),
    nameKey,
  );
  /** The allocation of the GPU; a device with an unknown GPU is taken for the one that the container uses. */
  const assignmentOf = ({ owner }: Ungranted, gpu: SampledGpu): Assignment | undefined => {
    const name = names.get(idOf(owner));
    const own = name ? (taken.get(nameKey(name)) ?? (owner.containerId === '' ? onlyOf(name, taken) : [])) : [];
    return own.find(({ gpuUuid }) => gpuUuid === gpu.uuid) ?? own.find(({ gpuUuid }) => gpuUuid === undefined);
  };
  const assigned: AssignedState[] = [];
  const foreign: ForeignState[] = [];
  for (const gpu of sample.gpus) {
    const here = processes.filter(({ grant }) => !(grant && hasGpu(grant, gpu.uuid)));
    const using = here.filter(({ process }) => useOnGpu(process, gpu));
    const byAssignment = Map.groupBy(using, (entry) => assignmentOf(entry, gpu));
    const idle = [...taken.values()].flat().filter((one) => one.gpuUuid === gpu.uuid && !byAssignment.has(one));
    // What has ended since the last sample is in no list any more, and was the container's all the same.
    const met = Map.groupBy(
      here.filter(({ process }) => process.gpus.some((use) => use.gpu === gpu.index)),
      (entry) => assignmentOf(entry, gpu),
    );
    for (const [assignment, entries] of [...byAssignment, ...idle.map((one) => [one, []] as const)]) {
      if (assignment) assigned.push(assignedState({ sample, gpu }, assignment, entries, met.get(assignment) ?? []));
      else foreign.push(...foreignOn(sample, gpu, entries));
    }
  }
  return { assigned, foreign };
}

const hasGpu = ({ gpus }: Grant, uuid: string | undefined): boolean => gpus.some(({ gpuUuid }) => gpuUuid === uuid);

/** Processes of grants on GPUs that are not in them. */
function processesOutsideGrant(
  sample: Sample,
  { ofGrant }: Pick<AttributedProcesses, 'ofGrant'>,
  grants: readonly Grant[],
): readonly Ungranted[] {
  if (sample.gpus.length < 2) return [];
  const uuids = new Map(sample.gpus.map(({ index, uuid }) => [index, uuid]));
  return grants.flatMap((grant) =>
    ofGrant(grant.id)
      .filter(({ gpus }) => gpus.some(({ gpu }) => !hasGpu(grant, uuids.get(gpu))))
      .map((process): Ungranted => {
        const podUid = podUidOf(grant) || ownerOf(process.cgroup ?? '').podUid;
        const owner = { kind: 'container', containerId: grant.id, ...(podUid && { podUid }) } as const;
        return { process, owner, grant };
      }),
  );
}

const nameKey = ({ namespace, pod, container }: Named) => JSON.stringify([namespace, pod, container]);
/** The pod's UID where only the pod is known. */
const idOf = ({ containerId, podUid = '' }: Ungranted['owner']) => containerId || podUid;

/** What a sandbox's pod has, if one container has all of it. A container without a known name may be any other one of
 * its pod. */
function onlyOf({ namespace, pod }: Named, taken: ReadonlyMap<string, readonly Assignment[]>) {
  const own = [...taken.values()].filter(([one]) => one?.namespace === namespace && one.pod === pod);
  return own.length === 1 ? (own[0] ?? []) : [];
}

function assignedState(
  { sample, gpu }: { readonly sample: Sample; readonly gpu: SampledGpu },
  assignment: Assignment,
  entries: readonly Ungranted[],
  met: readonly Ungranted[],
): AssignedState {
  const { namespace, pod, container, mode } = assignment;
  const using = processesOn(
    sample,
    entries.map(({ process }) => process),
    gpu,
  );
  const activeUs = Math.max(0, ...using.map(({ use }) => use.activeUs ?? 0));
  return {
    namespace,
    pod,
    container,
    podUid: met[0]?.owner.podUid ?? '',
    containerIds: [...new Set(met.map(({ owner }) => idOf(owner)))],
    gpuUuid: gpu.uuid,
    gpuIndex: gpu.index,
    mode,
    usedBytes:
      gpuWithProcessData(sample, gpu.uuid) === undefined ? undefined : sumOrUnknown(using.map(({ use }) => use.bytes)),
    smPercent: isUtilizationKnown(sample, gpu) ? sumOrUnknown(using.map((entry) => entry.smPercent)) : undefined,
    lastActiveMs: activeUs > 0 ? activeUs / 1000 : undefined,
    processes: using.map(processState),
  };
}

function foreignOn(sample: Sample, gpu: SampledGpu, entries: readonly Ungranted[]): readonly ForeignState[] {
  const byContainer = Map.groupBy(entries, ({ owner }) => idOf(owner));
  return [...byContainer.values()].map((own) => {
    const using = processesOn(
      sample,
      own.map(({ process }) => process),
      gpu,
    );
    return {
      gpuUuid: gpu.uuid,
      gpuIndex: gpu.index,
      containerId: own[0]?.owner.containerId ?? '',
      podUid: own[0]?.owner.podUid ?? '',
      usedBytes:
        gpuWithProcessData(sample, gpu.uuid) === undefined
          ? undefined
          : sumOrUnknown(using.map(({ use }) => use.bytes)),
      smPercent: isUtilizationKnown(sample, gpu) ? sumOrUnknown(using.map((entry) => entry.smPercent)) : undefined,
      processes: own.length,
    };
  });
}
