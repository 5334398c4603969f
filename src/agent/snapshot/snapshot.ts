// What is published of the node: plain values without handles, made once per sample, sent to the page's worker and served
// as JSON to the status page and the CLI. Owns the shape and how it is filled; names of metrics are in metrics/.

import type { ComputePolicy, Priority } from '../../api/request.ts';
import type { CardFault } from '../../policy/gpu-health.ts';
import type { Fence } from '../../policy/isolation.ts';
import type { CardFences } from '../../policy/isolation-check.ts';
import type { Verdict } from '../../policy/memory-verdict.ts';
import { type EffectiveMode, effectiveMode, type Mode } from '../../policy/mode.ts';
import type { ContainerBook } from '../attribution/container-index.ts';
import { type CardPolicy, weightOf } from '../compute/gpu-policy.ts';
import type { ShareState } from '../compute/shares.ts';
import type { ComputeUse } from '../compute/usage-account.ts';
import type { BaseTotals } from '../counters/retired-series.ts';
import {
  type AssignedTotals,
  type ContainerTotals,
  type ForeignTotals,
  type Totals,
  totalsKey,
} from '../counters/totals.ts';
import type { XidTotal } from '../counters/xid-counts.ts';
import type { ActionRecord } from '../enforcement/action-record.ts';
import { podUidOf } from '../grants/grant.ts';
import type { LeftBehind } from '../sampling/sampler-process.ts';
import { isMpsClient } from '../usage/gpu-processes.ts';
import type {
  ContainerState,
  DeviceState,
  EngineUse,
  GrantedProcess,
  NodeState,
  Observed,
} from '../usage/node-usage.ts';
import type { AssignedState, ForeignState } from '../usage/ungranted-usage.ts';

export type ViewDevice = DeviceState & {
  /** The policy of its compute, and who said so. */
  readonly compute: CardPolicy;
  /** Whether a limit on it would hold, as canaries found, fence by fence. */
  readonly fences: CardFences;
  /** The Xid for which it takes nobody new; absent: none. */
  readonly fault?: Pick<CardFault, 'xid' | 'atMs'> | undefined;
};

/** How compute is divided: of a grant's card by its place in the grant, and of a card. */
export type ComputeView = {
  readonly stateOf: (grantId: string, card: number) => ShareState;
  readonly ofCard: (gpuUuid: string) => CardPolicy;
};
const UNDIVIDED: ComputeView = {
  stateOf: () => ({ policy: 'native', use: undefined }),
  ofCard: () => ({ policy: 'native', source: 'configuration' }),
};

export type ViewProcess = {
  readonly pid: number;
  readonly command: string;
  /** Undefined: the driver does not tell. */
  readonly usedBytes?: number | undefined;
  readonly smPercent?: number | undefined;
  /** Bits: 1 compute, 2 graphics, 4 MPS client. */
  readonly types: number;
  readonly inLedger: boolean;
};

/** A container on one card. */
export type ViewContainer = {
  readonly grantId: string;
  readonly namespace: string;
  readonly pod: string;
  readonly container: string;
  /** Empty: plain processes. */
  readonly podUid: string;
  /** Empty: plain processes, or none of its containers is known yet. */
  readonly containerId: string;
  /** The runtime made it without its cards, and nothing of it has been on one since. */
  readonly withoutCards: boolean;
  readonly gpuUuid: string;
  /** Of a card that is gone the one that it had; undefined: it has not been seen. */
  readonly gpuIndex: number | undefined;
  readonly fence: Fence;
  /** How far the agent goes when it is over, and who says so. */
  readonly enforcement: EffectiveMode;
  readonly isolateMemory: boolean;
  readonly tampered: boolean;
  readonly limitBytes: number;
  readonly coresPercent: number;
  /** What it may have of the card while others leave it idle; undefined: what the policy says. */
  readonly coresLimitPercent: number | undefined;
  /** The one that holds for it on this card now. */
  readonly computePolicy: ComputePolicy;
  readonly priority: Priority;
  /** 0: none. */
  readonly computeWeight: number;
  /** What the arbiter says of it; undefined: nothing holds its compute. */
  readonly compute?: ComputeUse | undefined;
  readonly usedBytes: number;
  readonly bypassBytes: number;
  /** The driver tells who uses the card; else some of its processes may be missing. */
  readonly usersTold: boolean;
  /** And of each of its processes what it holds; else these two are less than it has. */
  readonly bytesTold: boolean;
  readonly ledger: ContainerState['cards'][number]['ledger'];
  /** Undefined: the driver did not tell. */
  readonly smPercent?: number | undefined;
  readonly lastActiveMs: number | undefined;
  readonly over: boolean;
  /** It takes more of the card's compute than its share. */
  readonly overShare: boolean;
  /** Clients of MPS among its processes on the card; absent: none. `judged`: what they use can be told from what others use. */
  readonly mps?: { readonly processes: number; readonly judged: boolean };
  /** Of the container, the same on each of its cards. */
  readonly engines: EngineUse;
  readonly observed: Observed;
  readonly processes: readonly ViewProcess[];
};

export type KillTotal = {
  readonly namespace: string;
  readonly pod: string;
  readonly container: string;
  readonly gpuUuid: string;
  readonly reason: string;
  readonly action: 'kill' | 'terminate';
  readonly result: string;
  readonly count: number;
  /** 0: none yet. */
  readonly lastMs: number;
};

/** Of a volume that the kubelet asks for the first time. `waiting`: refused for now; `failed`: nobody meant to refuse it. */
export const PUBLISH_RESULTS = ['given', 'waiting', 'refused', 'failed'] as const;
export type PublishResult = (typeof PUBLISH_RESULTS)[number];

export type SelfView = {
  readonly up: boolean;
  readonly problem: string | undefined;
  /** The driver was not given up on command. */
  readonly driverHeld: boolean;
  readonly mode: Mode;
  readonly version: string;
  /** Of the source; empty where nobody said. */
  readonly revision: string;
  readonly nodeVersion: string;
  readonly samplersAbandoned: number;
  readonly decisions: readonly {
    readonly decision: 'would_kill' | 'killed' | 'refused' | 'evicted';
    readonly reason: string;
    readonly count: number;
  }[];
  /** Why stops that were due were not carried out. */
  readonly refusals?: readonly { readonly why: string; readonly count: number }[];
  readonly failures: Readonly<Record<string, number>>;
  readonly publishes: Readonly<Record<PublishResult, number>>;
};

export type ViewAssigned = Omit<AssignedState, 'processes'> & {
  readonly processes: readonly Omit<ViewProcess, 'inLedger'>[];
};

export type View = {
  readonly atMs: number;
  readonly driverVersion: string;
  readonly cudaVersion: number;
  readonly devices: readonly ViewDevice[];
  readonly containers: readonly ViewContainer[];
  /** Containers on cards that others gave them. */
  readonly assigned: readonly ViewAssigned[];
  /** Devices that others gave out, and whose card cannot be told. */
  readonly unknownDevices: number;
  readonly foreign: readonly (ForeignState & {
    readonly namespace: string;
    readonly pod: string;
    readonly container: string;
  })[];
  readonly containerTotals: readonly ContainerTotals[];
  readonly assignedTotals: readonly AssignedTotals[];
  readonly foreignTotals: readonly ForeignTotals[];
  /** What ended under names that others in these lists have. */
  readonly bases?: readonly BaseTotals[];
  readonly xids: readonly XidTotal[];
  readonly kills: readonly KillTotal[];
  readonly errors: readonly { readonly call: string; readonly code: number; readonly count: number }[];
  readonly recent: readonly Pick<ActionRecord, 'atMs' | 'action' | 'message' | 'result'>[];
  readonly self: SelfView;
};

/** Names of a container that holds no grant; empty where nobody could tell. */
export type NameOf = (
  containerId: string,
  podUid?: string,
) => {
  readonly namespace: string;
  readonly pod: string;
  readonly podUid: string;
  readonly container: string;
};

export function viewOf(
  state: NodeState,
  totals: Totals,
  kills: readonly KillTotal[],
  recent: readonly ActionRecord[],
  self: SelfView,
  nameOf: NameOf,
  newestOf: ContainerBook['newest'] = () => undefined,
  compute: ComputeView = UNDIVIDED,
  fencesOf: (gpuUuid: string) => CardFences = () => ({}),
  faultOf: (gpuUuid: string) => CardFault | undefined = () => undefined,
): View {
  return {
    atMs: state.sample.atMs,
    driverVersion: state.sample.driverVersion,
    cudaVersion: state.sample.cudaVersion,
    devices: state.devices.map((device) => {
      const fault = faultOf(device.card.uuid);
      return {
        ...device,
        compute: compute.ofCard(device.card.uuid),
        fences: fencesOf(device.card.uuid),
        ...(fault && { fault: { xid: fault.xid, atMs: fault.atMs } }),
      };
    }),
    containers: state.containers.flatMap((container) =>
      container.cards.map((card) => {
        const gpuIndex = card.gpuIndex ?? totals.containers.get(totalsKey(container.grant.id, card.gpuUuid))?.gpuIndex;
        return viewContainer(container, { ...card, gpuIndex }, newestOf, compute, self.mode);
      }),
    ),
    assigned: state.assigned.map(({ processes, ...entry }) => ({
      ...entry,
      processes: processes.map(({ pid, command, usedBytes, smPercent, types }) => ({
        pid,
        command,
        usedBytes,
        smPercent,
        types,
      })),
    })),
    unknownDevices: state.unknownDevices,
    foreign: state.foreign.map((use) => ({ ...nameOf(use.containerId, use.podUid), ...use })),
    containerTotals: [...totals.containers.values()],
    assignedTotals: [...totals.assigned.values()],
    foreignTotals: [...totals.foreign.values()].map((entry) => {
      if (entry.pod !== '' || entry.container !== '') return entry;
      const { namespace, pod, container } = nameOf(entry.containerId, entry.podUid);
      return { ...entry, namespace, pod, container };
    }),
    bases: [...totals.bases.values()],
    xids: totals.xids,
    kills,
    errors: state.sample.errors,
    recent: recent.slice(-20).map(({ atMs, action, message, result }) => ({ atMs, action, message, result })),
    self,
  };
}

/**
 * What may be said when no sample came for `ageMs`: that nothing is known now, and what was counted until then. Old gauges
 * would tell of tenants and memory that may long be gone.
 */
export function staleView(view: View, ageMs: number, { abandoned, hung }: LeftBehind): View {
  const held = hung === 0 ? '' : `; samplers that the driver holds: ${hung}`;
  const problem = `the last sample is ${Math.round(ageMs / 1000)} s old${held}`;
  const self = { ...view.self, up: false, problem, samplersAbandoned: abandoned };
  return { ...view, devices: [], containers: [], assigned: [], foreign: [], self };
}

const isOverShare = (verdict: Verdict, gpuUuid: string): boolean =>
  verdict.severity !== 'within' && verdict.reason === 'over-share' && verdict.worst.gpuUuid === gpuUuid;

/** The same when the driver was given up on command. */
export function releasedView(view: View, releasedMs: number, samplers: LeftBehind): View {
  const problem = releasedWords(releasedMs);
  const { self, ...rest } = staleView(view, 0, samplers);
  return { ...rest, self: { ...self, problem, driverHeld: false } };
}
export const releasedWords = (releasedMs: number): string =>
  `the driver was given up on command at ${new Date(releasedMs).toISOString()}; "cotenant driver take" has it read again`;

function viewContainer(
  container: ContainerState,
  card: ContainerState['cards'][number],
  newestOf: ContainerBook['newest'],
  compute: ComputeView,
  nodeMode: Mode,
): ViewContainer {
  const { grant, fence, tampered, verdict, engines, observed } = container;
  const podUid = podUidOf(grant);
  const newest = podUid === '' ? undefined : newestOf(podUid, grant.container);
  const position = grant.cards.findIndex(({ gpuUuid }) => gpuUuid === card.gpuUuid);
  const share = compute.stateOf(grant.id, position);
  const mpsClients = card.processes.filter(isMpsClient).length;
  return {
    grantId: grant.id,
    namespace: grant.namespace,
    pod: grant.pod,
    container: grant.container,
    podUid,
    containerId: newest?.id ?? '',
    withoutCards: newest?.passedBy === true && container.cards.every(({ processes }) => processes.length === 0),
    gpuUuid: card.gpuUuid,
    gpuIndex: card.gpuIndex,
    fence,
    enforcement: effectiveMode(nodeMode, grant.enforcement),
    isolateMemory: grant.isolateMemory,
    tampered,
    limitBytes: card.limitBytes,
    coresPercent: card.coresPercent,
    coresLimitPercent: grant.cards[position]?.coresLimitPercent,
    computePolicy: share.policy,
    priority: grant.compute?.priority ?? 'normal',
    computeWeight: weightOf(grant, card),
    compute: share.use,
    usedBytes: card.usedBytes,
    bypassBytes: card.bypassBytes,
    usersTold: card.usersTold,
    bytesTold: card.bytesTold,
    ledger: card.ledger,
    smPercent: card.smPercent,
    lastActiveMs: card.lastActiveMs,
    over: card.over,
    overShare: isOverShare(verdict, card.gpuUuid),
    ...(mpsClients > 0 && {
      mps: { processes: mpsClients, judged: !container.mixedShare?.includes(card.gpuUuid) },
    }),
    engines,
    observed,
    processes: viewProcesses(card.processes),
  };
}

/** Made once: what has not changed from sample to sample is the same list. */
const viewed = new WeakMap<readonly GrantedProcess[], readonly ViewProcess[]>();

function viewProcesses(processes: readonly GrantedProcess[]): readonly ViewProcess[] {
  const made =
    viewed.get(processes) ??
    processes.map(({ pid, command, usedBytes, smPercent, types, inLedger }) => ({
      pid,
      command,
      usedBytes,
      smPercent,
      types,
      inLedger,
    }));
  viewed.set(processes, made);
  return made;
}
