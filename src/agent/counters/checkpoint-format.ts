// What counters.json says, and how the numbers of counters.values belong to it. Pure.
import { field, listAt } from '../../common/json.ts';
import type { StateFormat, Wrong } from '../../common/state-file.ts';
import { USE_COUNTS, type UseCounts, useKey } from '../compute/usage-account.ts';
import type { AuditPosition, RecordName } from '../enforcement/audit-log.ts';
import type { KillTotal } from '../snapshot/snapshot.ts';
import type { BaseTotals } from './retired-series.ts';
import type { KeptKills } from './stop-counts.ts';
import type { AssignedTotals, ContainerTotals, ForeignTotals } from './totals.ts';
import type { XidTotal } from './xid-counts.ts';

export type KeptUse = UseCounts & { readonly grantId: string; readonly gpu: number };

/** Rows of which each number only grows. */
export type KeptRows = {
  readonly containers: readonly ContainerTotals[];
  readonly assigned: readonly AssignedTotals[];
  readonly foreign: readonly ForeignTotals[];
  readonly uses: readonly KeptUse[];
  /** What ended under these names; an agent before there were any has left none. */
  readonly bases: readonly BaseTotals[];
};
export type RowKind = keyof KeptRows;

export type Kept = KeptRows &
  KeptKills & {
    /** That the numbers have, too, in the file of them that is of these rows. */
    readonly turn: number;
    readonly bootId: string;
    readonly atMs: number;
    /** Lines of the audit log up to there are in the counts of stops. */
    readonly audit: AuditPosition;
    readonly xids: readonly XidTotal[];
    /** Rows of the file that were none, by their places: numbers in counters.values stand for them all the same. */
    readonly passedOver?: PassedOver;
  };
type PassedOver = Readonly<Partial<Record<string, ReadonlySet<number>>>>;

export const NO_ROWS: KeptRows = { containers: [], assigned: [], foreign: [], uses: [], bases: [] };
export const NOTHING_KEPT: Kept = {
  ...NO_ROWS,
  turn: 0,
  bootId: '',
  atMs: 0,
  audit: { inode: 0, bytes: 0 },
  xids: [],
  kills: [],
  decisions: [],
  refusals: [],
};

export const usesOf = ({ uses }: KeptRows): ReadonlyMap<string, UseCounts> =>
  new Map(uses.map(({ grantId, gpu, ...counts }) => [useKey(grantId, gpu), counts]));

const ENGINES = ['smSeconds', 'memoryBusySeconds', 'encoderSeconds', 'decoderSeconds'] as const;
/** What of each row stands in counters.values, in this order: kinds, rows, fields. */
const GROWING = {
  containers: [...ENGINES, 'overLimitSeconds', 'denied', 'unknownEntryPoints', 'peakBytes', 'smPeakRatio'],
  assigned: [...ENGINES, 'peakBytes'],
  foreign: ['smSeconds'], // the other engines stand in no counter of the page
  uses: USE_COUNTS,
  bases: [], // they change with their rows alone
} as const satisfies { readonly [K in RowKind]: readonly (keyof KeptRows[K][number])[] };
export const ROW_KINDS = Object.keys(GROWING) as readonly RowKind[];

export const widthOf = (kind: RowKind): number => GROWING[kind].length;

/** Writes a row's numbers to their place. Not a number: there is none yet. */
export function putNumbers(kind: RowKind, row: object, into: Float64Array, at: number): void {
  const names = GROWING[kind];
  for (let index = 0; index < names.length; index += 1)
    into[at + index] = (row as Readonly<Record<string, number | undefined>>)[names[index] as string] ?? Number.NaN;
}

/** The same with newer numbers, as far as they are higher: one that was cut off, or is none, changes nothing. */
export function raised(kept: Kept, newer: Float64Array): Kept {
  let at = 0;
  const raise = (kind: RowKind): readonly object[] => {
    const passedOver = kept.passedOver?.[kind];
    let place = 0;
    const skip = (): void => {
      for (; passedOver?.has(place); place += 1) at += widthOf(kind);
    };
    const rows = kept[kind].map((row) => {
      skip();
      place += 1;
      const fields = GROWING[kind].flatMap((name, index) => {
        const value = newer[at + index];
        const mine = (row as Readonly<Record<string, unknown>>)[name];
        const isHigher = value !== undefined && value <= Number.MAX_SAFE_INTEGER && !(value <= Number(mine));
        return isHigher ? [[name, value] as const] : [];
      });
      at += widthOf(kind);
      return { ...row, ...Object.fromEntries(fields) };
    });
    skip();
    return rows;
  };
  const rows = Object.fromEntries(ROW_KINDS.map((kind) => [kind, raise(kind)])) as unknown as KeptRows;
  return { ...kept, ...rows };
}

type Shape<T> = {
  readonly [K in keyof T]-?: 'text' | 'text or nothing' | 'number' | 'number or nothing' | 'yes or no';
};
const WHO = { namespace: 'text', pod: 'text', container: 'text', gpuUuid: 'text' } as const;
const ENGINE_NUMBERS = {
  smSeconds: 'number',
  memoryBusySeconds: 'number',
  encoderSeconds: 'number',
  decoderSeconds: 'number',
} as const;
/** In rows of containers as they were when the file was written: where the grant is still there, `uses` has what is newer. */
const USE_NUMBERS = {
  chargedSeconds: 'number or nothing',
  contendedSeconds: 'number or nothing',
  throttledSeconds: 'number or nothing',
  overruns: 'number or nothing',
  faults: 'number or nothing',
} as const;
const CONTAINER: Shape<ContainerTotals> = {
  ...WHO,
  ...ENGINE_NUMBERS,
  ...USE_NUMBERS,
  place: 'number or nothing',
  grantId: 'text',
  gpuIndex: 'number',
  overLimitSeconds: 'number',
  denied: 'number',
  unknownEntryPoints: 'number',
  peakBytes: 'number',
  smPeakRatio: 'number or nothing',
  computeTold: 'yes or no',
  seenMs: 'number or nothing',
};
const ASSIGNED: Shape<AssignedTotals> = {
  ...WHO,
  ...ENGINE_NUMBERS,
  mode: 'text',
  gpuIndex: 'number',
  peakBytes: 'number',
  computeTold: 'yes or no',
  seenMs: 'number',
};
const FOREIGN: Shape<ForeignTotals> = {
  gpuUuid: 'text',
  gpuIndex: 'number',
  containerId: 'text',
  podUid: 'text',
  namespace: 'text or nothing',
  pod: 'text or nothing',
  container: 'text or nothing',
  smSeconds: 'number',
  memoryBusySeconds: 'number or nothing',
  encoderSeconds: 'number or nothing',
  decoderSeconds: 'number or nothing',
  computeTold: 'yes or no',
  seenMs: 'number',
};
const USE: Shape<KeptUse> = {
  grantId: 'text',
  gpu: 'number',
  chargedSeconds: 'number',
  contendedSeconds: 'number',
  throttledSeconds: 'number',
  overruns: 'number',
  faults: 'number',
};
const BASE: Shape<BaseTotals> = {
  ...WHO,
  ...ENGINE_NUMBERS,
  ...USE_NUMBERS,
  mode: 'text',
  gpuIndex: 'number',
  overLimitSeconds: 'number',
  denied: 'number',
  unknownEntryPoints: 'number',
};
const XID: Shape<XidTotal> = {
  gpuUuid: 'text',
  gpuIndex: 'number',
  xid: 'text',
  count: 'number',
  lastMs: 'number or nothing',
};
const KILL: Shape<KillTotal> = {
  ...WHO,
  reason: 'text',
  action: 'text',
  result: 'text',
  count: 'number',
  lastMs: 'number',
};
const REFUSAL: Shape<KeptKills['refusals'][number]> = { why: 'text', count: 'number' };
const RECORD_NAME: Shape<RecordName> = { atMs: 'number', action: 'text', grantId: 'text' };
const DECISION: Shape<KeptKills['decisions'][number]> = { decision: 'text', reason: 'text', count: 'number' };

const isNumber = (value: unknown): value is number => typeof value === 'number' && Number.isFinite(value) && value >= 0;

function isOf(value: unknown, shape: Readonly<Record<string, string>>): boolean {
  return Object.entries(shape).every(([name, kind]) => {
    const given = field(value, name);
    if (kind === 'text') return typeof given === 'string';
    if (kind === 'text or nothing') return typeof given === 'string' || given === undefined;
    if (kind === 'yes or no') return typeof given === 'boolean';
    return isNumber(given) || (given === undefined && kind === 'number or nothing');
  });
}

const LISTS = {
  containers: CONTAINER,
  assigned: ASSIGNED,
  foreign: FOREIGN,
  uses: USE,
  bases: BASE,
  xids: XID,
  kills: KILL,
  decisions: DECISION,
  refusals: REFUSAL,
} as const satisfies Partial<Record<keyof Kept, Readonly<Record<string, string>>>>;

const OF_THE_AUDIT: ReadonlySet<string> = new Set(['kills', 'decisions', 'refusals']);

export const COUNTERS_FORMAT: StateFormat<Kept> = {
  version: 1,
  read(value): Kept | Wrong {
    const [turn, atMs, bootId] = ['turn', 'atMs', 'bootId'].map((name) => field(value, name));
    const [inode, bytes] = ['inode', 'bytes'].map((name) => field(field(value, 'audit'), name));
    if (!isNumber(turn) || !isNumber(atMs) || typeof bootId !== 'string') return { wrong: 'its turn or time is none' };
    if (!isNumber(inode) || !isNumber(bytes)) return { wrong: 'its audit is no place in a file' };
    const ahead = listAt(field(value, 'audit'), 'ahead');
    if (!ahead.every((one) => isOf(one, RECORD_NAME))) return { wrong: 'its audit has more ahead than records' };
    const audit = { inode, bytes, ...(ahead.length > 0 && { ahead: ahead as readonly unknown[] as RecordName[] }) };
    const lists: Record<string, readonly unknown[]> = {};
    const passedOver: Record<string, ReadonlySet<number>> = {};
    for (const [name, shape] of Object.entries(LISTS)) {
      const list = listAt(value, name);
      const bad = new Set(list.flatMap((entry, place) => (isOf(entry, shape) ? [] : [place])));
      // What the audit log has is counted from there again; of other rows one that is none costs no other.
      const [first] = bad;
      if (first !== undefined && OF_THE_AUDIT.has(name)) return { wrong: `its ${name}[${first}] is none` };
      if (bad.size > 0) passedOver[name] = bad;
      lists[name] = bad.size === 0 ? list : list.filter((_, place) => !bad.has(place));
    }
    const rows = lists as unknown as KeptRows & KeptKills & Pick<Kept, 'xids'>;
    return { turn, bootId, atMs, audit, ...rows, ...(Object.keys(passedOver).length > 0 && { passedOver }) };
  },
};
