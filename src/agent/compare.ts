// The driver's truth held against grants and ledgers: pure, one sample in, the state of the node out. Everything that is
// published, shown or acted upon is read from this value.

import type { CardGrant } from '../placement/card.ts';
import type { CardNeed } from '../placement/need.ts';
import { type Fence, type FenceFacts, fenceOf } from '../quota/fence.ts';
import type { Tolerance, Verdict } from '../quota/limits.ts';
import { type CardUse, judge } from '../quota/limits.ts';
import type { ShareMode } from './attribution/devices.ts';
import type { Owned } from './attribution/owned.ts';
import { processFinder } from './feedback.ts';
import type { Grant } from './grants/grant.ts';
import { grantedByCard } from './grants/granted.ts';
import { allowedBytes } from './grants/resize.ts';
import type { LedgerReading } from './native.ts';
import {
  type Sample,
  type SampledCard,
  type SampledProcess,
  type SampledUse,
  sumTold,
  tellsAll,
  tellsCompute,
  toldCard,
} from './sample.ts';
import { remembering, sameList } from './unchanged.ts';
import { type AssignedState, type ForeignState, NO_OTHERS, type Others, ungranted } from './ungranted.ts';
import { type ProcessState, processState, type Using, usingOf } from './using.ts';

/** `inLedger`: its memory is in the container's ledger. */
export type GrantedProcess = ProcessState & { readonly inLedger: boolean };

export type ContainerCardState = {
  readonly gpuUuid: string;
  /** Undefined: the sample has no such card. */
  readonly gpuIndex: number | undefined;
  readonly limitBytes: number;
  readonly coresPercent: number;
  /** As far as the driver tells. */
  readonly usedBytes: number;
  /** Held by processes that the ledger does not know. */
  readonly bypassBytes: number;
  /** The driver tells who uses the card. */
  readonly usersTold: boolean;
  /** And of each of its processes what it holds. */
  readonly bytesTold: boolean;
  /** More than its grant on this card and the tolerance, as far as is told; never without isolation. */
  readonly over: boolean;
  readonly ledger: {
    readonly contextBytes: number;
    readonly managedBytes: number;
    readonly poolBytes: number;
    readonly bufferBytes: number;
  };
  readonly denied: number;
  /** Undefined: the driver did not tell. */
  readonly smPercent: number | undefined;
  readonly lastActiveMs: number | undefined;
  readonly processes: readonly GrantedProcess[];
};

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

type Holding = Pick<FenceFacts, 'holdsMemory' | 'inLedger'>;

export type ContainerState = {
  readonly grant: Grant;
  readonly fence: Fence;
  /** What that was told by: of the last sample that told. */
  readonly holding: Holding;
  readonly cards: readonly ContainerCardState[];
  /** Of its memory, until its compute is looked at, too. */
  readonly verdict: Verdict;
  /** Cards on which its share is a limit and its use cannot be told from that of other clients of MPS; absent: none. */
  readonly mixedShare?: readonly string[];
  /** The sample says of each of its cards who uses it: only then is memory that is not there memory given back. */
  readonly told: boolean;
  /** Its ledger was shortened, overwritten or replaced. */
  readonly tampered: boolean;
  /** Entry points that its processes looked up and the interposer does not know. */
  readonly unknownEntryPoints: number;
  readonly engines: EngineUse;
  readonly observed: Observed;
};

/** By the lists that they are in; `both`: in those of compute and of graphics. `mps`: whatever other list they are in, too. */
export type ProcessCounts = Readonly<Record<'compute' | 'graphics' | 'both' | 'mps', number>>;

export type DeviceState = {
  readonly card: SampledCard;
  readonly grantedBytes: number;
  readonly grantedCoresPercent: number;
  /** That hold memory of it; undefined: the driver does not tell who uses it. */
  readonly containers: number | undefined;
  /** Each counted once. */
  readonly processes: ProcessCounts;
  /** How it is given out. `shared` also where somebody has the whole of it by another's word. */
  readonly mode: ShareMode | 'none';
  /** Used, but not by any process that could be told: managed memory, ghosts, processes out of sight. Undefined: it cannot
   * be told, for the driver does not tell who uses the card, or says of some process only that it is there. */
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
  /** Those in its folder. */
  readonly engines: readonly number[];
  readonly behind: boolean;
  /** The driver's own limits are in force for it. */
  readonly driverHolds?: boolean;
  /** On one of its cards a canary got past the interposer. */
  readonly interposerFails?: boolean;
};

/**
 * `before`: the state of the sample before. Containers of which nothing has changed are the very same objects again, and the list
 * of them where none has.
 */
export function compare(
  sample: Sample,
  readings: readonly GrantReading[],
  owned: Owned,
  tolerance: Tolerance,
  others: Others = NO_OTHERS,
  before?: NodeState,
): NodeState {
  const earlier = new Map(before?.containers.map((container) => [container.grant.id, container]));
  const told = new Map(
    sample.cards.map((card) => {
      const isTold = toldCard(sample, card.uuid) === card;
      return [card.uuid, { card, isTold, computeTold: isTold && tellsCompute(sample, card) }];
    }),
  );
  const containers = sameList(
    readings.map((reading) => {
      const { id } = reading.grant;
      return unlessSame(earlier.get(id), sample, told, reading, owned.ofGrant(id), tolerance);
    }),
    before?.containers,
  );
  const uses = usesOf(sample.processes);
  const failures: Record<string, number> = {
    gone: 0,
    no_cgroup: 0,
    container_not_known: 0,
    host: 0,
    memory_not_available: uses.processesUntold,
  };
  for (const { process, owner } of owned.others) {
    const reason = owner.kind === 'unknown' ? owner.reason : owner.kind;
    if (owner.kind !== 'container' && process.cards.some(isListed)) failures[reason] = (failures[reason] ?? 0) + 1;
  }
  const grants = readings.map(({ grant }) => grant);
  const { assigned, foreign } = ungranted(sample, owned, grants, others);
  const granted = grantedOf(...grants);
  const held = heldOf(containers);
  const devices = sample.cards.map((card) =>
    deviceState(
      card,
      told.get(card.uuid)?.isTold === true,
      uses.onCard.get(card.index),
      granted.get(card.uuid),
      held.get(card.uuid),
      assigned,
      foreign,
    ),
  );
  return { sample, devices, containers, assigned, foreign, unknownDevices: others.assigned.unknown, failures };
}

const isListed = (use: SampledUse): boolean => use.listed;

/** Processes in the lists of one card, by kind. */
type CardUses = { compute: number; graphics: number; both: number; mps: number; bytesTold: boolean };
const NO_USES: CardUses = { compute: 0, graphics: 0, both: 0, mps: 0, bytesTold: true };

/** `types`: bits of the lists, 1 compute, 2 graphics, 4 MPS. */
const kindOf = (types: number): keyof ProcessCounts | undefined =>
  types & 4 ? 'mps' : ([undefined, 'compute', 'graphics', 'both'] as const)[types & 3];

const usesOf = remembering((processes: readonly SampledProcess[]) => {
  const onCard = new Map<number, CardUses>();
  let processesUntold = 0;
  for (const { cards } of processes) {
    let isUntold = false;
    for (const { card, listed, types, bytes } of cards) {
      if (!listed) continue;
      const uses = onCard.get(card) ?? { ...NO_USES };
      onCard.set(card, uses);
      const kind = kindOf(types);
      if (kind) uses[kind] += 1;
      if (bytes !== undefined) continue;
      uses.bytesTold = false;
      isUntold = true;
    }
    if (isUntold) processesUntold += 1;
  }
  return { onCard, processesUntold };
});

const grantedOf = remembering((...grants: readonly Grant[]) => grantedByCard(grants));

/** What containers with grants hold of a card, and how many of them hold something. */
type Held = { bytes: number; containers: number };

const heldOf = remembering((containers: readonly ContainerState[]) => {
  const onCard = new Map<string, Held>();
  for (const { gpuUuid, usedBytes } of containers.flatMap(({ cards }) => cards)) {
    if (usedBytes <= 0) continue;
    const held = onCard.get(gpuUuid) ?? { bytes: 0, containers: 0 };
    onCard.set(gpuUuid, { bytes: held.bytes + usedBytes, containers: held.containers + 1 });
  }
  return onCard;
});

type Told = { readonly card: SampledCard; readonly isTold: boolean; readonly computeTold: boolean };
/** All that a container's state is made of; of its cards their number, and what of them is told. */
type MadeOf = {
  readonly reading: GrantReading;
  readonly own: readonly SampledProcess[];
  readonly tolerance: Tolerance;
  readonly on: readonly {
    readonly index: number | undefined;
    readonly isTold: boolean | undefined;
    readonly computeTold: boolean | undefined;
  }[];
};
const madeOf = new WeakMap<ContainerState, MadeOf>();

function isMadeOf(made: MadeOf, now: Omit<MadeOf, 'on'>, told: ReadonlyMap<string, Told>): boolean {
  const [then, reading] = [made.reading, now.reading];
  return (
    then.grant === reading.grant &&
    made.own === now.own &&
    made.tolerance === now.tolerance &&
    then.engines === reading.engines &&
    then.behind === reading.behind &&
    then.driverHolds === reading.driverHolds &&
    then.interposerFails === reading.interposerFails &&
    then.ledger.slots === reading.ledger.slots &&
    then.ledger.denied === reading.ledger.denied &&
    then.ledger.whole === reading.ledger.whole &&
    then.ledger.untouched === reading.ledger.untouched &&
    then.ledger.unknown === reading.ledger.unknown &&
    areToldAs(made.on, reading.grant.cards, told)
  );
}

function areToldAs(on: MadeOf['on'], cards: Grant['cards'], told: ReadonlyMap<string, Told>): boolean {
  for (let position = 0; position < cards.length; position += 1) {
    const after = told.get((cards[position] as CardGrant).gpuUuid);
    const before = on[position];
    if (before?.index !== after?.card.index || before?.isTold !== after?.isTold) return false;
    if (before?.computeTold !== after?.computeTold) return false;
  }
  return true;
}

/** The state of the sample before, where it was made of the same. */
function unlessSame(
  before: ContainerState | undefined,
  sample: Sample,
  told: ReadonlyMap<string, Told>,
  reading: GrantReading,
  own: readonly SampledProcess[],
  tolerance: Tolerance,
): ContainerState {
  const made = before && madeOf.get(before);
  if (before && made && isMadeOf(made, { reading, own, tolerance }, told)) return before;
  const on = reading.grant.cards.map(({ gpuUuid }) => {
    const card = told.get(gpuUuid);
    return { index: card?.card.index, isTold: card?.isTold, computeTold: card?.computeTold };
  });
  const state = containerState(sample, reading, own, tolerance, before?.holding);
  madeOf.set(state, { reading, own, tolerance, on });
  return state;
}

function containerState(
  sample: Sample,
  { grant, ledger, engines, behind, driverHolds = false, interposerFails = false }: GrantReading,
  own: readonly SampledProcess[],
  tolerance: Tolerance,
  holdingBefore: Holding | undefined,
): ContainerState {
  const processOf = processFinder(own);
  const inLedger = new Set(ledger.slots.flatMap((slot) => processOf(slot) ?? []));
  const seenOn = grant.cards.map((granted, position): Omit<ContainerCardState, 'over'> => {
    const card = sample.cards.find((candidate) => candidate.uuid === granted.gpuUuid);
    const using = usingOf(sample, own, card);
    const usersTold = toldCard(sample, granted.gpuUuid) !== undefined;
    const sum = (pick: (entry: Using) => number) => using.reduce((total, entry) => total + pick(entry), 0);
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
      gpuIndex: card?.index,
      limitBytes: granted.limitBytes,
      coresPercent: granted.coresPercent,
      usedBytes: sum(({ use }) => use.bytes ?? 0),
      bypassBytes: sum(({ process, use }) => (inLedger.has(process) ? 0 : (use.bytes ?? 0))),
      usersTold,
      bytesTold: usersTold && using.every(({ use }) => use.bytes !== undefined),
      ledger: {
        contextBytes,
        managedBytes,
        poolBytes,
        bufferBytes: Math.max(0, column((row) => row.heldBytes) - contextBytes - managedBytes - poolBytes),
      },
      denied: ledger.denied[position] ?? 0,
      smPercent: tellsCompute(sample, card) ? sumTold(using.map(({ smPercent }) => smPercent)) : undefined,
      lastActiveMs: activeUs > 0 ? activeUs / 1000 : undefined,
      processes: using.map((entry) => ({ ...processState(entry), inLedger: inLedger.has(entry.process) })),
    };
  });
  const uses = grant.isolateMemory ? judgedUses(sample, grant, seenOn) : [];
  const over = new Set(uses.flatMap((use) => (judge([use], tolerance).severity === 'within' ? [] : [use.gpuUuid])));
  const cards = seenOn.map((card) => ({ ...card, over: over.has(card.gpuUuid) }));
  const told = tellsAll(sample, grant.cards) && cards.every(({ bytesTold }) => bytesTold);
  const seen = {
    holdsMemory: cards.some((card) => card.usedBytes > 0),
    inLedger: cards.some(({ processes }) => processes.some((one) => one.inLedger && one.usedBytes !== 0)),
  };
  // Who is seen with nothing by a sample that does not tell is as it was.
  const holding = told || seen.holdsMemory ? seen : (holdingBefore ?? seen);
  return {
    grant,
    fence: fenceOf({ isolateMemory: grant.isolateMemory, driverHolds, interposerFails, ...holding }),
    holding,
    cards,
    verdict: judge(uses, tolerance),
    told,
    tampered: !ledger.whole || !ledger.untouched,
    unknownEntryPoints: ledger.unknown,
    engines: { ...enginesUsed(ledger, engines), behind },
    observed: observedIn(ledger),
  };
}

/** What it is judged by: its use of the cards that are told of. */
export const judgedUses = (
  sample: Sample,
  grant: Grant,
  cards: readonly Pick<ContainerCardState, 'gpuUuid' | 'usedBytes' | 'bypassBytes'>[],
): readonly CardUse[] =>
  cards.flatMap(({ gpuUuid, usedBytes, bypassBytes }, position) =>
    toldCard(sample, gpuUuid)
      ? [{ gpuUuid, limitBytes: allowedBytes(grant.cards[position] as CardGrant), usedBytes, bypassBytes }]
      : [],
  );

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

/** `uses`: who is on it now, as far as `isTold` says that it is told. */
function deviceState(
  card: SampledCard,
  isTold: boolean,
  { bytesTold, ...processes }: CardUses = NO_USES,
  granted: CardNeed | undefined,
  held: Held = { bytes: 0, containers: 0 },
  assigned: readonly AssignedState[],
  foreign: readonly ForeignState[],
): DeviceState {
  const { memoryBytes: grantedBytes = 0, coresPercent: grantedCoresPercent = 0 } = granted ?? {};
  const others = [...assigned, ...foreign].filter((entry) => entry.gpuUuid === card.uuid);
  const attributed = others.reduce((total, entry) => total + (entry.usedBytes ?? 0), held.bytes);
  const onThis = assigned.filter((entry) => entry.gpuUuid === card.uuid);
  const shared = grantedBytes > 0 || onThis.length > 1;
  return {
    card,
    grantedBytes,
    grantedCoresPercent,
    // Those of a divided card are its instances'.
    containers:
      isTold || card.divided ? held.containers + others.filter((entry) => entry.usedBytes !== 0).length : undefined,
    processes,
    mode: card.divided
      ? 'mig'
      : shared && onThis.every(({ mode }) => mode !== 'mig')
        ? 'shared'
        : (onThis[0]?.mode ?? 'none'),
    unattributedBytes:
      card.usedBytes !== undefined && isTold && bytesTold ? Math.max(0, card.usedBytes - attributed) : undefined,
  };
}
