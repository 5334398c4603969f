// Reconciles what the driver reports with grants and usage ledgers: one attributed sample in, the reconciled node out.
// Pure.

import type { GpuDemand } from '../../api/gpu.ts';
import type { Tolerance } from '../../policy/memory-verdict.ts';
import type { AttributedProcesses } from '../attribution/processes-by-owner.ts';
import { grantedByGpu } from '../grants/sums.ts';
import {
  gpuWithProcessData,
  type Sample,
  type SampledGpu,
  type SampledProcess,
  type SampledUse,
} from '../sampling/sample.ts';
import { containerState, type GrantReading } from './container-usage.ts';
import type { DeviceState, ProcessCounts, ReconciledContainer, ReconciledNode } from './node-usage.ts';
import {
  type AssignedState,
  type ForeignState,
  NO_OTHER_ALLOCATIONS,
  type OtherAllocations,
  ungrantedUsage,
} from './ungranted-usage.ts';

type NodeInputs = {
  readonly sample: Sample;
  readonly readings: readonly GrantReading[];
  readonly owned: AttributedProcesses;
  readonly tolerance: Tolerance;
  readonly others?: OtherAllocations;
  /** The reconciled node of the sample before. */
  readonly before?: ReconciledNode | undefined;
};

export function reconcile(inputs: NodeInputs): ReconciledNode {
  const { sample, readings, owned, tolerance, others = NO_OTHER_ALLOCATIONS, before } = inputs;
  const stateBefore = new Map(before?.containers.map((container) => [container.grant.id, container]));
  const containers = readings.map((reading) => {
    const { id } = reading.grant;
    return containerState({ sample, reading, own: owned.ofGrant(id), tolerance, before: stateBefore.get(id) });
  });
  const uses = usesOf(sample.processes);
  const failures: Record<string, number> = {
    gone: 0,
    no_cgroup: 0,
    container_not_known: 0,
    host: 0,
    memory_not_available: uses.processesWithoutMemory,
  };
  for (const { process, owner } of owned.others) {
    const reason = owner.kind === 'unknown' ? owner.reason : owner.kind;
    if (owner.kind !== 'container' && process.gpus.some(isListed)) failures[reason] = (failures[reason] ?? 0) + 1;
  }
  const grants = readings.map(({ grant }) => grant);
  const { assigned, foreign } = ungrantedUsage(sample, owned, grants, others);
  const granted = grantedByGpu(grants);
  const held = heldOf(containers);
  const devices = sample.gpus.map((gpu) =>
    deviceState(gpu, {
      hasProcesses: gpuWithProcessData(sample, gpu.uuid) === gpu,
      uses: uses.onGpu.get(gpu.index) ?? NO_USES,
      granted: granted.get(gpu.uuid),
      held: held.get(gpu.uuid) ?? { bytes: 0, containers: 0 },
      assigned: assigned.filter(({ gpuUuid }) => gpuUuid === gpu.uuid),
      foreign: foreign.filter(({ gpuUuid }) => gpuUuid === gpu.uuid),
    }),
  );
  return { sample, devices, containers, assigned, foreign, unknownDevices: others.assigned.unknown, failures };
}

const isListed = (use: SampledUse): boolean => use.listed;

/** Processes in the lists of one GPU, by kind. */
type GpuUses = { compute: number; graphics: number; both: number; mps: number; memoryKnown: boolean };
const NO_USES: GpuUses = { compute: 0, graphics: 0, both: 0, mps: 0, memoryKnown: true };

/** `types`: bits of the lists, 1 compute, 2 graphics, 4 MPS. */
const kindOf = (types: number): keyof ProcessCounts | undefined =>
  types & 4 ? 'mps' : ([undefined, 'compute', 'graphics', 'both'] as const)[types & 3];

function usesOf(processes: readonly SampledProcess[]) {
  const onGpu = new Map<number, GpuUses>();
  let processesWithoutMemory = 0;
  for (const { gpus } of processes) {
    let isMemoryUnknown = false;
    for (const { gpu, listed, types, bytes } of gpus) {
      if (!listed) continue;
      const uses = onGpu.get(gpu) ?? { ...NO_USES };
      onGpu.set(gpu, uses);
      const kind = kindOf(types);
      if (kind) uses[kind] += 1;
      if (bytes !== undefined) continue;
      uses.memoryKnown = false;
      isMemoryUnknown = true;
    }
    if (isMemoryUnknown) processesWithoutMemory += 1;
  }
  return { onGpu, processesWithoutMemory };
}

/** What containers with grants hold of a GPU, and how many of them hold something. */
type Held = { bytes: number; containers: number };

function heldOf(containers: readonly ReconciledContainer[]): ReadonlyMap<string, Held> {
  const onGpu = new Map<string, Held>();
  for (const { gpuUuid, usedBytes } of containers.flatMap(({ gpus }) => gpus)) {
    if (usedBytes <= 0) continue;
    const held = onGpu.get(gpuUuid) ?? { bytes: 0, containers: 0 };
    onGpu.set(gpuUuid, { bytes: held.bytes + usedBytes, containers: held.containers + 1 });
  }
  return onGpu;
}

/** What is known of one GPU beside the driver's figures. */
type DeviceFacts = {
  readonly hasProcesses: boolean;
  /** The processes on it now, where `hasProcesses`. */
  readonly uses: GpuUses;
  readonly granted: GpuDemand | undefined;
  readonly held: Held;
  readonly assigned: readonly AssignedState[];
  readonly foreign: readonly ForeignState[];
};

function deviceState(gpu: SampledGpu, facts: DeviceFacts): DeviceState {
  const { hasProcesses, granted, held, assigned, foreign } = facts;
  const { memoryKnown, ...processes } = facts.uses;
  const { memoryBytes: grantedBytes = 0, coresPercent: grantedCoresPercent = 0 } = granted ?? {};
  const others = [...assigned, ...foreign];
  const attributed = others.reduce((total, entry) => total + (entry.usedBytes ?? 0), held.bytes);
  const shared = grantedBytes > 0 || assigned.length > 1;
  return {
    gpu,
    grantedBytes,
    grantedCoresPercent,
    // Those of a divided GPU are its instances'.
    containers:
      hasProcesses || gpu.migEnabled
        ? held.containers + others.filter((entry) => entry.usedBytes !== 0).length
        : undefined,
    processes,
    mode: gpu.migEnabled
      ? 'mig'
      : shared && assigned.every(({ mode }) => mode !== 'mig')
        ? 'shared'
        : (assigned[0]?.mode ?? 'none'),
    unattributedBytes:
      gpu.usedBytes !== undefined && hasProcesses && memoryKnown ? Math.max(0, gpu.usedBytes - attributed) : undefined,
  };
}
