// Reconciles what the driver reports with grants and usage ledgers: one attributed sample in, the reconciled node out. Pure.

import type { GpuDemand } from '../../api/gpu.ts';
import { keepIfSame, memoizeLast } from '../../common/memo.ts';
import type { Tolerance } from '../../policy/memory-verdict.ts';
import type { AttributedProcesses } from '../attribution/processes-by-owner.ts';
import type { Grant } from '../grants/grant.ts';
import { grantedByGpu } from '../grants/sums.ts';
import {
  gpuWithProcessData,
  isUtilizationKnown,
  type Sample,
  type SampledGpu,
  type SampledProcess,
  type SampledUse,
} from '../sampling/sample.ts';
import { containerStateOf, type GrantReading } from './container-usage.ts';
import type { DeviceState, ProcessCounts, ReconciledContainer, ReconciledNode } from './node-usage.ts';
import {
  type AssignedState,
  type ForeignState,
  NO_OTHER_ALLOCATIONS,
  type OtherAllocations,
  ungrantedUsage,
} from './ungranted-usage.ts';

/**
 * `before`: the reconciled node of the sample before. Unchanged containers are the same objects again, and so is an unchanged list.
 */
export function reconcile(
  sample: Sample,
  readings: readonly GrantReading[],
  owned: AttributedProcesses,
  tolerance: Tolerance,
  others: OtherAllocations = NO_OTHER_ALLOCATIONS,
  before?: ReconciledNode,
): ReconciledNode {
  const earlier = new Map(before?.containers.map((container) => [container.grant.id, container]));
  const data = new Map(
    sample.gpus.map((gpu) => {
      const hasProcesses = gpuWithProcessData(sample, gpu.uuid) === gpu;
      return [gpu.uuid, { gpu, hasProcesses, hasUtilization: hasProcesses && isUtilizationKnown(sample, gpu) }];
    }),
  );
  const containers = keepIfSame(
    readings.map((reading) => {
      const { id } = reading.grant;
      return containerStateOf(earlier.get(id), sample, data, reading, owned.ofGrant(id), tolerance);
    }),
    before?.containers,
  );
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
  const granted = grantedOf(...grants);
  const held = heldOf(containers);
  const devices = sample.gpus.map((gpu) =>
    deviceState(
      gpu,
      data.get(gpu.uuid)?.hasProcesses === true,
      uses.onGpu.get(gpu.index),
      granted.get(gpu.uuid),
      held.get(gpu.uuid),
      assigned,
      foreign,
    ),
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

const usesOf = memoizeLast((processes: readonly SampledProcess[]) => {
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
});

const grantedOf = memoizeLast((...grants: readonly Grant[]) => grantedByGpu(grants));

/** What containers with grants hold of a GPU, and how many of them hold something. */
type Held = { bytes: number; containers: number };

const heldOf = memoizeLast((containers: readonly ReconciledContainer[]) => {
  const onGpu = new Map<string, Held>();
  for (const { gpuUuid, usedBytes } of containers.flatMap(({ gpus }) => gpus)) {
    if (usedBytes <= 0) continue;
    const held = onGpu.get(gpuUuid) ?? { bytes: 0, containers: 0 };
    onGpu.set(gpuUuid, { bytes: held.bytes + usedBytes, containers: held.containers + 1 });
  }
  return onGpu;
});

/** `uses`: the processes on it now, where `hasProcesses`. */
function deviceState(
  gpu: SampledGpu,
  hasProcesses: boolean,
  { memoryKnown, ...processes }: GpuUses = NO_USES,
  granted: GpuDemand | undefined,
  held: Held = { bytes: 0, containers: 0 },
  assigned: readonly AssignedState[],
  foreign: readonly ForeignState[],
): DeviceState {
  const { memoryBytes: grantedBytes = 0, coresPercent: grantedCoresPercent = 0 } = granted ?? {};
  const others = [...assigned, ...foreign].filter((entry) => entry.gpuUuid === gpu.uuid);
  const attributed = others.reduce((total, entry) => total + (entry.usedBytes ?? 0), held.bytes);
  const onThis = assigned.filter((entry) => entry.gpuUuid === gpu.uuid);
  const shared = grantedBytes > 0 || onThis.length > 1;
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
      : shared && onThis.every(({ mode }) => mode !== 'mig')
        ? 'shared'
        : (onThis[0]?.mode ?? 'none'),
    unattributedBytes:
      gpu.usedBytes !== undefined && hasProcesses && memoryKnown ? Math.max(0, gpu.usedBytes - attributed) : undefined,
  };
}
