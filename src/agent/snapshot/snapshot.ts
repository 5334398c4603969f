// The published state of a node after one sample: plain values that are sent to the render worker and served as JSON to
// the status page and the CLI. Defines the types and fills them; src/exporter/collectors names the metrics.

import type { ComputePolicy, Mode, Priority } from '../../api/request.ts';
import type { GpuFault } from '../../policy/gpu-health.ts';
import type { GpuFences } from '../../policy/isolation-check.ts';
import type { Verdict } from '../../policy/memory-verdict.ts';
import { type EffectiveMode, effectiveMode } from '../../policy/mode.ts';
import type { ContainerIndex } from '../attribution/container-index.ts';
import { type GpuPolicy, weightOf } from '../compute/gpu-policy.ts';
import type { ShareState } from '../compute/shares.ts';
import type { ComputeUse } from '../compute/usage-account.ts';
import type { DecisionCount, RefusalCount, StopCount } from '../counters/stop-counts.ts';
import {
  type AssignedTotals,
  type ContainerTotals,
  type ForeignTotals,
  type Totals,
  totalsKey,
} from '../counters/totals.ts';
import type { XidTotal } from '../counters/xid-counts.ts';
import type { ActionRecord } from '../enforcement/action-record.ts';
import { type Grant, podUidOf } from '../grants/grant.ts';
import type { AbandonedCounts } from '../os/helper-process.ts';
import { isMpsClient, type ProcessState } from '../usage/gpu-processes.ts';
import type { ContainerGpuState, ContainerState, DeviceState, GrantedProcess, NodeState } from '../usage/node-usage.ts';
import type { AssignedState, ForeignState } from '../usage/ungranted-usage.ts';

export type SnapshotDevice = DeviceState & {
  /** Its compute policy, and where that was set. */
  readonly compute: GpuPolicy;
  /** Results of the canary per isolation mechanism. */
  readonly fences: GpuFences;
  /** The Xid for which the GPU is cordoned; absent: none. */
  readonly fault?: Pick<GpuFault, 'xid' | 'atMs'> | undefined;
};

/** How compute is divided: by grant and the GPU's position in it, and by GPU. */
type ComputeSnapshot = {
  readonly stateOf: (grantId: string, gpu: number) => ShareState;
  readonly ofGpu: (gpuUuid: string) => GpuPolicy;
};
const UNDIVIDED: ComputeSnapshot = {
  stateOf: () => ({ policy: 'native', use: undefined }),
  ofGpu: () => ({ policy: 'native', source: 'configuration' }),
};

export type SnapshotProcess = Omit<GrantedProcess, 'startTicks' | 'cgroup' | 'usedBytes' | 'smPercent'> &
  Partial<Pick<GrantedProcess, 'usedBytes' | 'smPercent'>>;

/** A container on one GPU; for a GPU that is gone `gpuIndex` is the last index. */
export type SnapshotContainer = Pick<Grant, 'namespace' | 'pod' | 'container' | 'isolateMemory'> &
  Pick<ContainerState, 'fence' | 'tampered' | 'engines' | 'observed'> &
  Omit<ContainerGpuState, 'denied' | 'smPercent' | 'processes'> & {
    readonly grantId: string;
    /** Empty: a grant for processes without a pod. */
    readonly podUid: string;
    /** Empty: a grant for processes without a pod, or the container is not known yet. */
    readonly containerId: string;
    /** The runtime created it without its GPUs, and none of its processes has used a GPU since. */
    readonly withoutGpus: boolean;
    /** Since when the agent knows that the pod is gone from the API server, with the grant still held. */
    readonly podGoneSinceMs?: number | undefined;
    /** The enforcement mode in force, and where it was set. */
    readonly enforcement: EffectiveMode;
    /** Upper limit while other containers leave compute idle; undefined: the policy decides. */
    readonly coresLimitPercent: number | undefined;
    /** The policy in force for the container on this GPU. */
    readonly computePolicy: ComputePolicy;
    readonly priority: Priority;
    /** 0: none. */
    readonly computeWeight: number;
    /** As the arbiter reports it; undefined: the container has no lease page. */
    readonly compute?: ComputeUse | undefined;
    /** Undefined: the driver did not report it. */
    readonly smPercent?: number | undefined;
    /** It uses more of the GPU's compute than its share. */
    readonly overShare: boolean;
    /**
     * Clients of MPS among its processes on the GPU; absent: none. `judged`: their utilization can be distinguished
     * from that of other clients.
     */
    readonly mps?: { readonly processes: number; readonly judged: boolean };
    readonly processes: readonly SnapshotProcess[];
  };

/** Result of the first NodePublishVolume for a volume. `pending`: refused for now; `failed`: by an error of the
 * agent. */
export const PUBLISH_RESULTS = ['published', 'pending', 'refused', 'failed'] as const;
export type PublishResult = (typeof PUBLISH_RESULTS)[number];

/** Whether the API server, the kubelet (CSI) and the container runtime (NRI) are connected; absent: not used. */
export type Connections = { readonly api?: boolean; readonly csi?: boolean; readonly nri?: boolean };

export type SelfSnapshot = {
  readonly up: boolean;
  readonly problem: string | undefined;
  /** False: the driver was released on command. */
  readonly driverHeld: boolean;
  readonly mode: Mode;
  readonly version: string;
  /** Git revision of the source; empty: unknown. */
  readonly revision: string;
  readonly nodeVersion: string;
  readonly samplersAbandoned: number;
  readonly decisions: readonly DecisionCount[];
  readonly refusals?: readonly RefusalCount[];
  readonly failures: Readonly<Record<string, number>>;
  readonly publishes: Readonly<Record<PublishResult, number>>;
  readonly connections: Connections;
};

export type SnapshotAssigned = Omit<AssignedState, 'processes'> & {
  readonly processes: readonly Omit<SnapshotProcess, 'inLedger'>[];
};

/** An action of the agent, for the status page; with what the container exceeded, if known. */
export type RecentAction = Pick<ActionRecord, 'atMs' | 'action' | 'message' | 'result'> &
  Partial<Omit<ActionRecord, 'processes'>>;

export type Snapshot = {
  readonly atMs: number;
  readonly driverVersion: string;
  readonly cudaVersion: number;
  readonly devices: readonly SnapshotDevice[];
  readonly containers: readonly SnapshotContainer[];
  /** Containers on GPUs that other device plugins allocated. */
  readonly assigned: readonly SnapshotAssigned[];
  /** Devices of other plugins with an unknown GPU. */
  readonly unknownDevices: number;
  readonly foreign: readonly (ForeignState & {
    readonly namespace: string;
    readonly pod: string;
    readonly container: string;
  })[];
  readonly containerTotals: readonly ContainerTotals[];
  readonly assignedTotals: readonly AssignedTotals[];
  readonly foreignTotals: readonly ForeignTotals[];
  readonly xids: readonly XidTotal[];
  readonly kills: readonly StopCount[];
  readonly errors: readonly { readonly call: string; readonly code: number; readonly count: number }[];
  readonly recent: readonly RecentAction[];
  readonly self: SelfSnapshot;
};

/** Names of a container without a grant; empty if unknown. */
export type NameOf = (
  containerId: string,
  podUid?: string,
) => {
  readonly namespace: string;
  readonly pod: string;
  readonly podUid: string;
  readonly container: string;
};

type SnapshotInputs = {
  readonly state: NodeState;
  readonly totals: Totals;
  readonly kills: readonly StopCount[];
  readonly recent: readonly ActionRecord[];
  readonly self: SelfSnapshot;
  readonly nameOf: NameOf;
  readonly newestOf?: ContainerIndex['newest'];
  readonly compute?: ComputeSnapshot;
  readonly fencesOf?: (gpuUuid: string) => GpuFences;
  readonly faultOf?: (gpuUuid: string) => GpuFault | undefined;
  readonly podGoneSinceMs?: (podUid: string) => number | undefined;
};

export function createSnapshot(inputs: SnapshotInputs): Snapshot {
  const { state, totals, kills, recent, self, nameOf, compute = UNDIVIDED } = inputs;
  const { newestOf = () => undefined, fencesOf = () => ({}), faultOf = () => undefined } = inputs;
  const { podGoneSinceMs = () => undefined } = inputs;
  const facts = { newestOf, compute, nodeMode: self.mode, podGoneSinceMs };
  return {
    atMs: state.sample.atMs,
    driverVersion: state.sample.driverVersion,
    cudaVersion: state.sample.cudaVersion,
    devices: state.devices.map((device) => {
      const fault = faultOf(device.gpu.uuid);
      return {
        ...device,
        compute: compute.ofGpu(device.gpu.uuid),
        fences: fencesOf(device.gpu.uuid),
        ...(fault && { fault: { xid: fault.xid, atMs: fault.atMs } }),
      };
    }),
    containers: state.containers.flatMap((container) =>
      container.gpus.map((gpu) => {
        const gpuIndex = gpu.gpuIndex ?? totals.containers.get(totalsKey(container.grant.id, gpu.gpuUuid))?.gpuIndex;
        return snapshotContainer(container, { ...gpu, gpuIndex }, facts);
      }),
    ),
    assigned: state.assigned.map(({ processes, ...entry }) => ({ ...entry, processes: processes.map(shown) })),
    unknownDevices: state.unknownDevices,
    foreign: state.foreign.map((use) => ({ ...nameOf(use.containerId, use.podUid), ...use })),
    containerTotals: [...totals.containers.values()],
    assignedTotals: [...totals.assigned.values()],
    foreignTotals: [...totals.foreign.values()].map((entry) => {
      if (entry.pod !== '' || entry.container !== '') return entry;
      const { namespace, pod, container } = nameOf(entry.containerId, entry.podUid);
      return { ...entry, namespace, pod, container };
    }),
    xids: totals.xids,
    kills,
    errors: state.sample.errors,
    recent: recent.slice(-20).map(({ processes: _, ...record }) => record),
    self,
  };
}

/**
 * The snapshot after `ageMs` without a sample: keeps counters and drops gauges, because containers and memory of the
 * last sample may be gone.
 */
export function staleSnapshot(snapshot: Snapshot, ageMs: number, { abandoned, hung }: AbandonedCounts): Snapshot {
  const held = hung === 0 ? '' : `; samplers hung in the driver: ${hung}`;
  const problem = `the last sample is ${Math.round(ageMs / 1000)} s old${held}`;
  const self = { ...snapshot.self, up: false, problem, samplersAbandoned: abandoned };
  return { ...snapshot, devices: [], containers: [], assigned: [], foreign: [], self };
}

const isOverShare = (verdict: Verdict, gpuUuid: string): boolean =>
  verdict.severity !== 'within' && verdict.reason === 'over-share' && verdict.worst.gpuUuid === gpuUuid;

/** The snapshot while the driver is released on command. */
export function releasedSnapshot(snapshot: Snapshot, releasedMs: number, samplers: AbandonedCounts): Snapshot {
  const problem = driverReleasedText(releasedMs);
  const { self, ...rest } = staleSnapshot(snapshot, 0, samplers);
  return { ...rest, self: { ...self, problem, driverHeld: false } };
}
export const driverReleasedText = (releasedMs: number): string =>
  `the driver was released on command at ${new Date(releasedMs).toISOString()}; "cotenant driver take" opens it again`;

type ContainerFacts = {
  readonly newestOf: ContainerIndex['newest'];
  readonly compute: ComputeSnapshot;
  readonly nodeMode: Mode;
  readonly podGoneSinceMs: (podUid: string) => number | undefined;
};

function snapshotContainer(
  { grant, fence, tampered, verdict, engines, observed, gpus, undecidableGpus }: ContainerState,
  { denied: _, processes, ...onGpu }: ContainerGpuState,
  { newestOf, compute, nodeMode, podGoneSinceMs }: ContainerFacts,
): SnapshotContainer {
  const { gpuUuid } = onGpu;
  const podUid = podUidOf(grant);
  const goneSinceMs = podUid === '' ? undefined : podGoneSinceMs(podUid);
  const newest = podUid === '' ? undefined : newestOf(podUid, grant.container);
  const position = grant.gpus.findIndex((granted) => granted.gpuUuid === gpuUuid);
  const share = compute.stateOf(grant.id, position);
  const mpsClients = processes.filter(isMpsClient).length;
  return {
    ...onGpu,
    grantId: grant.id,
    namespace: grant.namespace,
    pod: grant.pod,
    container: grant.container,
    podUid,
    containerId: newest?.id ?? '',
    ...(goneSinceMs !== undefined && { podGoneSinceMs: goneSinceMs }),
    withoutGpus: newest?.missed === true && gpus.every((gpu) => gpu.processes.length === 0),
    fence,
    enforcement: effectiveMode(nodeMode, grant.enforcement),
    isolateMemory: grant.isolateMemory,
    tampered,
    coresLimitPercent: grant.gpus[position]?.coresLimitPercent,
    computePolicy: share.policy,
    priority: grant.compute?.priority ?? 'normal',
    computeWeight: weightOf(grant, onGpu),
    compute: share.use,
    overShare: isOverShare(verdict, gpuUuid),
    ...(mpsClients > 0 && { mps: { processes: mpsClients, judged: !undecidableGpus?.includes(gpuUuid) } }),
    engines,
    observed,
    processes: processes.map(shown),
  };
}

/** Without what identifies it on the host. */
function shown<T extends ProcessState>({ startTicks: _, cgroup: __, ...process }: T): Omit<T, 'startTicks' | 'cgroup'> {
  return process;
}
