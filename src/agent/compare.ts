// The driver's truth held against grants and ledgers: pure, one sample in, the state of the node out. Everything that is
// published, shown or acted upon is read from this value.
import type { CardGrant } from '../placement/place.ts';
import type { Tolerance, Verdict } from '../quota/limits.ts';
import { type CardUse, judge } from '../quota/limits.ts';
import { type Assigned, type Assignment, NOTHING_ASSIGNED } from './attribution/assignments.ts';
import type { Owner } from './attribution/attribute.ts';
import type { ShareMode } from './attribution/devices.ts';
import { processFinder } from './feedback.ts';
import type { Grant } from './grants/grant.ts';
import { grantedOn } from './grants/granted.ts';
import { allowedBytes } from './grants/resize.ts';
import type { LedgerReading } from './native.ts';
import { type Sample, type SampledCard, type SampledProcess, type SampledUse, tellsAll, toldCard } from './sample.ts';

export type ProcessState = {
  readonly pid: number;
  readonly startTicks: number;
  readonly command: string;
  readonly cgroup: string;
  /** Undefined: the driver does not tell. */
  readonly usedBytes: number | undefined;
  readonly smPercent: number;
  readonly types: number;
  /** Its memory is in the container's ledger. */
  readonly inLedger: boolean;
};

/** A container on one card. */
export type ContainerCardState = {
  readonly gpuUuid: string;
  readonly gpuIndex: number;
  readonly limitBytes: number;
  readonly coresPercent: number;
  /** As far as the driver tells. */
  readonly usedBytes: number;
  /** Held by processes that the ledger does not know. */
  readonly bypassBytes: number;
  /** The driver tells who uses the card, and of each of its processes what it holds. */
  readonly bytesTold: boolean;
  readonly ledger: {
    readonly contextBytes: number;
    readonly managedBytes: number;
    readonly poolBytes: number;
    readonly bufferBytes: number;
  };
  readonly denied: number;
  readonly smPercent: number;
  readonly lastActiveMs: number | undefined;
  readonly processes: readonly ProcessState[];
};

/** What holds the limit: the interposer inside, or only the agent from outside, or nothing. */
export type Fence = 'interposer' | 'agent' | 'none';

/** Which engine of the interposer its living processes run. */
export type EngineUse = {
  /** By number; `other`: processes that tell none, or one that the agent did not put there. */
  readonly processes: readonly { readonly engine: string; readonly count: number }[];
  /** Processes that could not change to the one that was wanted. */
  readonly refused: number;
  /** It was not told of the engine that is wanted. */
  readonly behind: boolean;
};

/** Its living processes that somebody watched when they began with CUDA: their times are longer than they would be. */
export type Observed = { readonly debugger: number; readonly profiler: number };

export type ContainerState = {
  readonly grant: Grant;
  readonly fence: Fence;
  readonly cards: readonly ContainerCardState[];
  readonly verdict: Verdict;
  /** The sample says of each of its cards who uses it: only then is memory that is not there memory given back. */
  readonly told: boolean;
  /** Its ledger was shortened, overwritten or replaced. */
  readonly tampered: boolean;
  /** Entry points that its processes looked up and the interposer does not know. */
  readonly unknownEntryPoints: number;
  readonly engines: EngineUse;
  readonly observed: Observed;
};

/** A container on a card that it was given by others: a whole card, a replica, a MIG instance. Its limits are not ours. */
export type AssignedState = {
  readonly namespace: string;
  readonly pod: string;
  readonly container: string;
  /** Of its processes; empty while none uses the card. */
  readonly podUid: string;
  readonly containerIds: readonly string[];
  readonly gpuUuid: string;
  readonly gpuIndex: number;
  readonly mode: ShareMode;
  /** Undefined: the driver does not tell it of each of its processes. */
  readonly usedBytes: number | undefined;
  readonly smPercent: number;
  readonly lastActiveMs: number | undefined;
  readonly processes: readonly Omit<ProcessState, 'inLedger'>[];
};

export type ForeignState = {
  readonly gpuUuid: string;
  readonly gpuIndex: number;
  readonly containerId: string;
  readonly podUid: string;
  /** Undefined: the driver does not tell it of each of its processes. */
  readonly usedBytes: number | undefined;
  readonly processes: number;
};

export type DeviceState = {
  readonly card: SampledCard;
  readonly grantedBytes: number;
  readonly grantedCoresPercent: number;
  readonly containers: number;
  readonly processes: { readonly compute: number; readonly graphics: number; readonly mps: number };
  /** How it is given out. `shared` also where somebody has the whole of it by another's word. */
  readonly mode: ShareMode | 'none';
  /** Used, but not by any process that could be told: managed memory, ghosts, processes out of sight. Undefined: it cannot
   * be told, for the driver says of some process only that it is there. */
  readonly unattributedBytes: number | undefined;
};

export type NodeState = {
  readonly sample: Sample;
  readonly devices: readonly DeviceState[];
  readonly containers: readonly ContainerState[];
  readonly assigned: readonly AssignedState[];
  readonly foreign: readonly ForeignState[];
  /** Devices of GPUs that others gave out, and whose card cannot be told. */
  readonly unknownDevices: number;
  readonly failures: Readonly<Record<string, number>>;
};

export type GrantReading = {
  readonly grant: Grant;
  readonly ledger: LedgerReading;
  readonly untouched: boolean;
  /** Those in its folder. */
  readonly engines: readonly number[];
  readonly behind: boolean;
};

type Named = { readonly namespace: string; readonly pod: string; readonly container: string };

/** What others gave out on this node, and the names of containers. */
export type Others = {
  readonly assigned: Assigned;
  readonly nameOf: (containerId: string, podUid?: string) => Named;
};
export const NO_OTHERS: Others = {
  assigned: NOTHING_ASSIGNED,
  nameOf: () => ({ namespace: '', pod: '', container: '' }),
};

export function compare(
  sample: Sample,
  grants: readonly GrantReading[],
  ownerOf: (process: SampledProcess) => Owner,
  tolerance: Tolerance,
  others: Others = NO_OTHERS,
): NodeState {
  const owners = new Map(sample.processes.map((process) => [process, ownerOf(process)]));
  const byGrant = Map.groupBy(sample.processes, (process) => {
    const owner = owners.get(process);
    return owner?.kind === 'grant' ? owner.id : undefined;
  });
  const containers = grants.map((reading) =>
    containerState(sample, reading, byGrant.get(reading.grant.id) ?? [], tolerance),
  );
  const failures: Record<string, number> = {
    gone: 0,
    no_cgroup: 0,
    container_not_known: 0,
    host: 0,
    memory_not_available: 0,
  };
  for (const [process, owner] of owners) {
    const listed = process.cards.filter((use) => use.listed);
    if (listed.length === 0) continue;
    if (owner.kind === 'unknown') failures[owner.reason] = (failures[owner.reason] ?? 0) + 1;
    if (owner.kind === 'host') failures.host = (failures.host ?? 0) + 1;
    if (listed.some((use) => use.bytes === undefined))
      failures.memory_not_available = (failures.memory_not_available ?? 0) + 1;
  }
  const { assigned, foreign } = ungranted(sample, owners, grants, others);
  const devices = sample.cards.map((card) => deviceState(card, sample, grants, containers, assigned, foreign));
  return { sample, devices, containers, assigned, foreign, unknownDevices: others.assigned.unknown, failures };
}

const onCard = (process: SampledProcess, card: SampledCard): SampledUse | undefined =>
  process.cards.find((use) => use.card === card.index && use.listed);

function containerState(
  sample: Sample,
  { grant, ledger, untouched, engines, behind }: GrantReading,
  own: readonly SampledProcess[],
  tolerance: Tolerance,
): ContainerState {
  const processOf = processFinder(own);
  const inLedger = new Set(ledger.slots.flatMap((slot) => processOf(slot) ?? []));
  const cards = grant.cards.map((granted, position): ContainerCardState => {
    const card = sample.cards.find((candidate) => candidate.uuid === granted.gpuUuid);
    const using = own.flatMap((process) => {
      const use = card && onCard(process, card);
      return use ? [{ process, use }] : [];
    });
    const sum = (pick: (entry: { process: SampledProcess; use: SampledUse }) => number) =>
      using.reduce((total, entry) => total + pick(entry), 0);
    const rows = ledger.slots.flatMap((slot) => slot.cards[position] ?? []);
    const column = (pick: (row: (typeof rows)[number]) => number) => rows.reduce((total, row) => total + pick(row), 0);
    const [contextBytes, managedBytes, poolBytes] = [
      column((row) => row.contextBytes),
      column((row) => row.managedBytes),
      column((row) => row.poolBytes),
    ];
    const activeUs = Math.max(
      0,
      ...own.flatMap((process) => process.cards.flatMap((use) => (use.card === card?.index ? (use.activeUs ?? 0) : 0))),
    );
    return {
      gpuUuid: granted.gpuUuid,
      gpuIndex: card?.index ?? -1,
      limitBytes: granted.limitBytes,
      coresPercent: granted.coresPercent,
      usedBytes: sum(({ use }) => use.bytes ?? 0),
      bypassBytes: sum(({ process, use }) => (inLedger.has(process) ? 0 : (use.bytes ?? 0))),
      bytesTold: toldCard(sample, granted.gpuUuid) !== undefined && using.every(({ use }) => use.bytes !== undefined),
      ledger: {
        contextBytes,
        managedBytes,
        poolBytes,
        bufferBytes: Math.max(0, column((row) => row.heldBytes) - contextBytes - managedBytes - poolBytes),
      },
      denied: ledger.denied[position] ?? 0,
      smPercent: sum(({ use }) => use.smPercent),
      lastActiveMs: activeUs > 0 ? activeUs / 1000 : undefined,
      processes: using.map(({ process, use }) => ({
        pid: process.pid,
        startTicks: process.startTicks ?? 0,
        command: process.command ?? '',
        cgroup: process.cgroup ?? '',
        usedBytes: use.bytes,
        smPercent: use.smPercent,
        types: use.types,
        inLedger: inLedger.has(process),
      })),
    };
  });
  const uses: CardUse[] = cards.flatMap(({ gpuUuid, usedBytes, bypassBytes }, position) =>
    toldCard(sample, gpuUuid)
      ? [{ gpuUuid, limitBytes: allowedBytes(grant.cards[position] as CardGrant), usedBytes, bypassBytes }]
      : [],
  );
  const holds = cards.some((card) => card.usedBytes > 0);
  const fence: Fence = !grant.isolateMemory ? 'none' : holds && inLedger.size === 0 ? 'agent' : 'interposer';
  return {
    grant,
    fence,
    cards,
    verdict: grant.isolateMemory ? judge(uses, tolerance) : { severity: 'within' },
    told: tellsAll(sample, grant.cards) && cards.every(({ bytesTold }) => bytesTold),
    tampered: !ledger.whole || !untouched,
    unknownEntryPoints: ledger.unknown,
    engines: { ...enginesUsed(ledger, engines), behind },
    observed: observedIn(ledger),
  };
}

/** Tenants write the ledger: what they make up must not become names of series. */
function enginesUsed(ledger: LedgerReading, known: readonly number[]): Omit<EngineUse, 'behind'> {
  const living = ledger.slots.filter((slot) => slot.locked);
  const byEngine = Map.groupBy(living, ({ engine }) => (known.includes(engine) ? String(engine) : 'other'));
  return {
    processes: [...byEngine].map(([engine, slots]) => ({ engine, count: slots.length })),
    refused: living.filter(({ engineRefused }) => engineRefused !== 0).length,
  };
}

function observedIn({ slots }: LedgerReading): Observed {
  const living = slots.filter((slot) => slot.locked);
  return {
    debugger: living.filter(({ debugged }) => debugged).length,
    profiler: living.filter(({ profiled }) => profiled).length,
  };
}

type Ungranted = { readonly process: SampledProcess; readonly owner: Extract<Owner, { kind: 'container' }> };

/** Containers on cards without a grant of ours: those that somebody else gave the card to, and those that nobody did. */
function ungranted(
  sample: Sample,
  owners: ReadonlyMap<SampledProcess, Owner>,
  grants: readonly GrantReading[],
  { assigned: { list }, nameOf }: Others,
): { assigned: readonly AssignedState[]; foreign: readonly ForeignState[] } {
  const processes = [...owners].flatMap(([process, owner]): Ungranted[] =>
    owner.kind === 'container' ? [{ process, owner }] : [],
  );
  const names = new Map(processes.map(({ owner }) => [idOf(owner), nameOf(owner.containerId, owner.podUid)] as const));
  // A container with a grant is told of with its grant, whatever else the kubelet has given it.
  const granted = new Set(grants.map(({ grant }) => nameKey(grant)));
  const taken = Map.groupBy(
    list.filter((entry) => !granted.has(nameKey(entry))),
    nameKey,
  );
  /** Whose card it is; a device whose card cannot be told is the one that the container uses. */
  const assignmentOf = ({ owner }: Ungranted, card: SampledCard): Assignment | undefined => {
    const name = names.get(idOf(owner));
    const own = name ? (taken.get(nameKey(name)) ?? onlyOf(name, taken)) : [];
    return own.find(({ gpuUuid }) => gpuUuid === card.uuid) ?? own.find(({ gpuUuid }) => gpuUuid === undefined);
  };
  const assigned: AssignedState[] = [];
  const foreign: ForeignState[] = [];
  for (const card of sample.cards) {
    const using = processes.filter(({ process }) => onCard(process, card));
    const byAssignment = Map.groupBy(using, (entry) => assignmentOf(entry, card));
    const idle = [...taken.values()].flat().filter((one) => one.gpuUuid === card.uuid && !byAssignment.has(one));
    // What has ended since the last sample is in no list any more, and was the container's all the same.
    const met = Map.groupBy(
      processes.filter(({ process }) => process.cards.some((use) => use.card === card.index)),
      (entry) => assignmentOf(entry, card),
    );
    for (const [assignment, entries] of [...byAssignment, ...idle.map((one) => [one, []] as const)]) {
      if (assignment) assigned.push(assignedState(sample, assignment, card, entries, met.get(assignment) ?? []));
      else foreign.push(...foreignOn(card, entries));
    }
  }
  return { assigned, foreign };
}

const nameKey = ({ namespace, pod, container }: Named) => JSON.stringify([namespace, pod, container]);
/** Of a pod of which no more can be told, the pod's. */
const idOf = ({ containerId, podUid = '' }: Ungranted['owner']) => containerId || podUid;

/** What the pod has, if one container has all of it: whose process it is need not be told then. */
function onlyOf({ namespace, pod, container }: Named, taken: ReadonlyMap<string, readonly Assignment[]>) {
  if (container !== '') return [];
  const own = [...taken.values()].filter(([one]) => one?.namespace === namespace && one.pod === pod);
  return own.length === 1 ? (own[0] ?? []) : [];
}

function assignedState(
  sample: Sample,
  assignment: Assignment,
  card: SampledCard,
  entries: readonly Ungranted[],
  met: readonly Ungranted[],
): AssignedState {
  const { namespace, pod, container, mode } = assignment;
  const using = entries.flatMap(({ process }) => {
    const use = onCard(process, card);
    return use ? [{ process, use }] : [];
  });
  const activeUs = Math.max(0, ...using.map(({ use }) => use.activeUs ?? 0));
  return {
    namespace,
    pod,
    container,
    podUid: met[0]?.owner.podUid ?? '',
    containerIds: [...new Set(met.map(({ owner }) => idOf(owner)))],
    gpuUuid: card.uuid,
    gpuIndex: card.index,
    mode,
    usedBytes: toldCard(sample, card.uuid) === undefined ? undefined : sumTold(using.map(({ use }) => use.bytes)),
    smPercent: using.reduce((total, { use }) => total + use.smPercent, 0),
    lastActiveMs: activeUs > 0 ? activeUs / 1000 : undefined,
    processes: using.map(({ process, use }) => ({
      pid: process.pid,
      startTicks: process.startTicks ?? 0,
      command: process.command ?? '',
      cgroup: process.cgroup ?? '',
      usedBytes: use.bytes,
      smPercent: use.smPercent,
      types: use.types,
    })),
  };
}

/** A sum of which a part is not told is not told: it would be a number that is too small. */
const sumTold = (values: readonly (number | undefined)[]): number | undefined =>
  values.reduce<number | undefined>(
    (total, value) => (total === undefined || value === undefined ? undefined : total + value),
    0,
  );

function foreignOn(card: SampledCard, entries: readonly Ungranted[]): readonly ForeignState[] {
  const byContainer = Map.groupBy(entries, ({ owner }) => idOf(owner));
  return [...byContainer.values()].map((own) => ({
    gpuUuid: card.uuid,
    gpuIndex: card.index,
    containerId: own[0]?.owner.containerId ?? '',
    podUid: own[0]?.owner.podUid ?? '',
    usedBytes: sumTold(own.map(({ process }) => onCard(process, card)?.bytes)),
    processes: own.length,
  }));
}

function deviceState(
  card: SampledCard,
  sample: Sample,
  grants: readonly GrantReading[],
  containers: readonly ContainerState[],
  assigned: readonly AssignedState[],
  foreign: readonly ForeignState[],
): DeviceState {
  const granted = grantedOn(
    grants.map(({ grant }) => grant),
    card.uuid,
  );
  const using = containers.flatMap((container) =>
    container.cards.filter((entry) => entry.gpuUuid === card.uuid && entry.usedBytes > 0),
  );
  const others = [...assigned, ...foreign].filter((entry) => entry.gpuUuid === card.uuid);
  const uses = sample.processes.flatMap((process) => onCard(process, card) ?? []);
  const told = card.usedBytes !== undefined && uses.every(({ bytes }) => bytes !== undefined);
  const attributed =
    using.reduce((total, entry) => total + entry.usedBytes, 0) +
    others.reduce((total, entry) => total + (entry.usedBytes ?? 0), 0);
  const onThis = assigned.filter((entry) => entry.gpuUuid === card.uuid);
  const shared = granted.memoryBytes > 0 || onThis.length > 1;
  const count = (bit: number) => uses.filter((use) => (use.types & bit) !== 0).length;
  return {
    card,
    grantedBytes: granted.memoryBytes,
    grantedCoresPercent: granted.coresPercent,
    containers: using.length + others.filter((entry) => entry.usedBytes !== 0).length,
    processes: { compute: count(1), graphics: count(2), mps: count(4) },
    mode: shared && onThis.every(({ mode }) => mode !== 'mig') ? 'shared' : (onThis[0]?.mode ?? 'none'),
    unattributedBytes: told ? Math.max(0, (card.usedBytes ?? 0) - attributed) : undefined,
  };
}
