// Samples, ledgers and grants in few words, for the tests of what the agent makes of them.
import type { Owner } from '../../../src/agent/attribution/attribute.ts';
import { groupByOwner } from '../../../src/agent/attribution/processes-by-owner.ts';
import type { Grant } from '../../../src/agent/grants/grant.ts';
import type { LedgerReading, LedgerRow, LedgerSlot } from '../../../src/agent/os/addon.ts';
import type { Sample, SampledGpu, SampledProcess, SampledUse } from '../../../src/agent/sampling/sample.ts';
import type { GrantReading } from '../../../src/agent/usage/container-usage.ts';
import type { ReconciledNode } from '../../../src/agent/usage/node-usage.ts';
import { reconcile } from '../../../src/agent/usage/reconcile.ts';
import { NO_OTHER_ALLOCATIONS } from '../../../src/agent/usage/ungranted-usage.ts';
import { MIB } from '../../../src/common/quantity.ts';
import { DEFAULT_TOLERANCE } from '../../../src/policy/memory-verdict.ts';

export const PID_NAMESPACE = 4026531836;

export const gpu = (index: number, more: Partial<SampledGpu> = {}): SampledGpu => ({
  index,
  uuid: `GPU-${index}`,
  name: 'NVIDIA L4',
  pciBusId: `00000000:0${index}:00.0`,
  totalBytes: 24_000 * MIB,
  usedBytes: 0,
  processLists: ['compute', 'graphics', 'mps'],
  hasProcessUtilization: true,
  utilizationGaps: 0,
  healthy: true,
  ...more,
});

export const use = (on: number, more: Partial<SampledUse> = {}): SampledUse => ({
  gpu: on,
  listed: true,
  types: 1,
  smPercent: 0,
  smUs: 0,
  memoryUs: 0,
  encoderUs: 0,
  decoderUs: 0,
  ...more,
});

export const sampledProcess = (pid: number, gpus: readonly SampledUse[], more: Partial<SampledProcess> = {}) =>
  ({
    pid,
    startTicks: pid * 10,
    command: `program-${pid}`,
    cgroup: '0::/user.slice',
    pidNamespace: PID_NAMESPACE,
    namespacePid: pid,
    ancestors: [1],
    gpus,
    ...more,
  }) satisfies SampledProcess;

export const sampleOf = (
  gpus: readonly SampledGpu[],
  processes: readonly SampledProcess[],
  atMs = 1_700_000_000_000,
  /** As if the time of day had never been set. */
  bootNs = (atMs - 1_600_000_000_000) * 1e6,
): Sample => ({
  // Not the first of its sampler: its counters go on.
  round: 2,
  atMs,
  bootNs,
  driverVersion: '580.1',
  cudaVersion: 13000,
  gpus,
  processes,
  errors: [],
  tookUs: 100,
});

/** A grant of `mib` on each of the GPUs. */
export const grantOf = (id: string, mib: number, on: readonly number[] = [0], more: Partial<Grant> = {}): Grant => ({
  id,
  namespace: 'local',
  pod: `pod-${id}`,
  container: 'main',
  createdMs: 0,
  gpus: on.map((index) => ({
    gpuUuid: `GPU-${index}`,
    memoryBytes: mib * MIB,
    limitBytes: mib * MIB,
    coresPercent: 0,
  })),
  isolateMemory: true,
  owner: { pid: 1000, startTicks: 5, cgroup: '' },
  ...more,
});

export const row = (more: Partial<LedgerRow> = {}): LedgerRow => ({
  heldBytes: 0,
  pendingBytes: 0,
  freedBytes: 0,
  contextBytes: 0,
  managedBytes: 0,
  poolBytes: 0,
  signature: 1n,
  ...more,
});

/** The slot of a process that `sampledProcess` made. */
export const slot = (pid: number, gpus: readonly LedgerRow[], more: Partial<LedgerSlot> = {}): LedgerSlot => ({
  index: pid % 8,
  stamp: BigInt(pid),
  pid,
  startTicks: pid * 10,
  pidNamespace: PID_NAMESPACE,
  debugged: false,
  profiled: false,
  engine: 1,
  engineRefused: 0,
  locked: true,
  lockedForLife: false,
  gpus,
  ...more,
});

/** When ledgers are read, unless a test says otherwise. */
export const READ_NS = 1000;

export const ledgerOf = (slots: readonly LedgerSlot[], more: Partial<LedgerReading> = {}): LedgerReading => ({
  whole: true,
  untouched: true,
  denied: [],
  unknown: 0,
  slots,
  readNs: READ_NS,
  ...more,
});

export const reading = (
  grant: Grant,
  ledger: LedgerReading = ledgerOf([]),
  more: Partial<GrantReading> = {},
): GrantReading => ({ grant, ledger, engines: [1], behind: false, ...more });

export const ofGrant = (id: string): Owner => ({ kind: 'grant', id });
export const ofContainer = (containerId: string, podUid?: string): Owner => ({
  kind: 'container',
  containerId,
  ...(podUid === undefined ? {} : { podUid }),
});

/** Owners by pid; a process that is not named is of the host. */
export const owners =
  (byPid: Readonly<Record<number, Owner>>) =>
  (process: SampledProcess): Owner =>
    byPid[process.pid] ?? { kind: 'host' };

export const compared = (
  sample: Sample,
  grants: readonly GrantReading[],
  byPid: Readonly<Record<number, Owner>>,
  others = NO_OTHER_ALLOCATIONS,
): ReconciledNode =>
  reconcile({
    sample,
    readings: grants,
    owned: groupByOwner(sample.processes, owners(byPid)),
    tolerance: DEFAULT_TOLERANCE,
    others,
  });
