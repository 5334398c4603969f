// What this node has counted, for the agent after this one. Two files of the state folder: counters.json says of whom and what,
// and is written now and then where somebody has come or gone; counters.values has the same rows' numbers as they are now,
// written in place with each sample in which one has moved, before anybody is told of it. For a counter that came back lower than
// it was scraped would pass for an increase by all that it has. The numbers of new rows go to another file than those of the rows
// before, so that at any moment counters.json has its own: there are two, in turn. Bases stand in counters.json alone: until it is
// written anew, who has gone to them stands there as it did. Stops are counted by the audit log: the file says how many of its lines
// are counted already, and the others are counted at the start.
import { randomInt } from 'node:crypto';
import { closeSync, existsSync, openSync, readFileSync, writeFileSync, writeSync } from 'node:fs';
import { uptime } from 'node:os';
import { join } from 'node:path';
import { bootIdOfMachine } from '../../common/boot-id.ts';
import { openStateFile } from '../../common/state-file.ts';
import { type UseCounts, useOfKey } from '../compute/usage-account.ts';
import type { ActionRecord } from '../enforcement/action-record.ts';
import type { Audit } from '../enforcement/audit-log.ts';
import {
  COUNTERS_FORMAT,
  type Kept,
  type KeptRows,
  NO_ROWS,
  NOTHING_KEPT,
  putNumbers,
  ROW_KINDS,
  type RowKind,
  raised,
  widthOf,
} from './checkpoint-format.ts';
import type { KeptKills } from './stop-counts.ts';
import { ROW_NAMES, type Totals } from './totals.ts';

export type Counted = {
  readonly totals: Totals;
  /** By the keys of uses. */
  readonly uses: ReadonlyMap<string, UseCounts>;
  readonly kills: () => KeptKills;
};

export type Counters = {
  /** Of agents before this one, since the machine's start. */
  readonly earlier: Kept;
  /** What was done and not counted by them. */
  readonly uncounted: readonly ActionRecord[];
  /** With each sample, before it is published. */
  keep(counted: Counted): void;
  /** At a clean end. */
  close(): void;
};

export type CountersOptions = {
  readonly stateFolder: string;
  readonly audit: Pick<Audit, 'position' | 'since'>;
  readonly onProblem: (text: string) => void;
  /** In milliseconds; never jumps. */
  readonly clock: () => number;
  readonly bootId?: string;
};

/** Whoever came since begins at 0 where an agent ends before that, but for who shares a name with somebody in the file. */
const EVERY_MS = 5000;
/** Of each kind: the files cannot grow beyond that, whoever comes and goes. */
const MOST_ROWS = 2000;
const WORD = 8;
/** The rows' numbers are in the one that begins with their turn. An agent that knew of the first alone left them there. */
const VALUES = ['counters.values', 'counters.values.2'] as const;

type Row = { readonly at: number; of: object };
/** The rows that the file has, by kind and key: where their numbers stand, and what they were last made of. */
type Held = Readonly<Record<RowKind, ReadonlyMap<string, Row>>>;

/** The name of a row's series, with which others may stand on the page; undefined: those of a use end with its grant. */
const nameOf = (kind: RowKind, row: object): string | undefined =>
  kind === 'uses' ? undefined : (ROW_NAMES[kind] as (of: object) => string)(row);

const rowsOf = ({ totals, uses }: Counted, kind: RowKind): ReadonlyMap<string, object> =>
  kind === 'uses' ? uses : totals[kind];

function hasEnded(row: { readonly seenMs?: number | undefined }, { totals }: Counted): boolean {
  return row.seenMs !== undefined && row.seenMs < totals.atMs;
}

/** What has ended is the first to be left out of a file that is full. */
const livingFirst =
  (counted: Counted) =>
  ([, a]: [string, object], [, b]: [string, object]): number =>
    Number(hasEnded(a, counted)) - Number(hasEnded(b, counted));

export function openCounters(options: CountersOptions): Counters {
  const { stateFolder, audit, onProblem, clock, bootId = bootIdOfMachine() } = options;
  const path = join(stateFolder, 'counters.json');
  const [one, other] = VALUES.map((name) => join(stateFolder, name)) as [string, string];
  const isFirst = !existsSync(path);
  const lost = 'containers and GPUs are counted from 0 again, and stops by the audit log';
  const file = openStateFile(path, COUNTERS_FORMAT, { lost, onProblem, sync: false });
  const read = file.found?.bootId === bootId ? numbersOf(file.found, [one, other]) : undefined;
  const found = read?.kept;
  if (read?.wrong !== undefined) onProblem(`${read.wrong}: containers are counted from 0 again`);
  const passedOver = Object.entries(found?.passedOver ?? {}).flatMap(([name, places]) =>
    [...(places ?? [])].map((place) => `${name}[${place}]`),
  );
  if (passedOver.length > 0) onProblem(`${path}: ${passedOver.join(', ')} is none, and is counted from 0 again`);
  const uncounted = found
    ? audit.since(found.audit)
    : isFirst || file.found
      ? [] // nobody has counted, or the machine was started anew
      : sinceBoot(audit.since(undefined));

  let told = '';
  const trying = (work: () => void): void => {
    try {
      work();
      told = '';
    } catch (error) {
      const text = `what was counted is not kept for the next agent: ${(error as Error).message}`;
      if (text !== told) onProblem(text);
      told = text;
    }
  };

  // Else the stops of an agent that ends with its first sample would be counted by nobody.
  if (!found && (isFirst || file.found)) {
    trying(() => file.write({ ...NOTHING_KEPT, bootId, atMs: Date.now(), audit: audit.position() }));
  }

  let last: Counted | undefined;
  let held: Held | undefined;
  /** Of the rows in the file. */
  let names: ReadonlySet<string | undefined> = new Set();
  let xids: Totals['xids'] | undefined;
  let position: ReturnType<Audit['position']> | undefined;
  let writtenAt = 0;
  let values = new Float64Array();
  /** Where they are, and where those of the next rows go. */
  let fd: number | undefined;
  let nextPath = read?.path === one ? other : one;

  const write = (counted: Counted): void => {
    writtenAt = clock();
    const turn = randomInt(1, 2 ** 47);
    let words = 0;
    const lists: { [K in RowKind]?: readonly object[] } = {};
    const next: Partial<Record<RowKind, ReadonlyMap<string, Row>>> = {};
    for (const kind of ROW_KINDS) {
      const all = [...rowsOf(counted, kind)];
      const ordered = all.length > MOST_ROWS ? all.toSorted(livingFirst(counted)) : all;
      const rows = ordered.slice(0, MOST_ROWS);
      lists[kind] = rows.map(([key, of]) => (kind === 'uses' ? { ...useOfKey(key), ...of } : of));
      next[kind] = new Map(
        rows.map(([key, of]) => {
          const at = words;
          words += widthOf(kind);
          return [key, { at, of }];
        }),
      );
    }
    const now = audit.position();
    const kept = { turn, bootId, atMs: Date.now(), audit: now, ...counted.kills() };
    const xidsRaised = counted.totals.xids.filter(({ count }) => count > 0);
    const all = new Float64Array(1 + words);
    all[0] = turn;
    const numbers = all.subarray(1);
    for (const kind of ROW_KINDS)
      for (const { at, of } of next[kind]?.values() ?? []) putNumbers(kind, of, numbers, at);
    const nextFd = openSync(nextPath, 'w', 0o644);
    try {
      writeFileSync(nextFd, all);
      file.write({ ...NOTHING_KEPT, ...kept, ...(lists as KeptRows), xids: xidsRaised });
    } catch (error) {
      closeSync(nextFd); // the rows of before go on, with their numbers
      throw error;
    }
    if (fd !== undefined) closeSync(fd);
    fd = nextFd;
    nextPath = nextPath === one ? other : one;
    values = numbers;
    held = next as Held;
    names = new Set(ROW_KINDS.flatMap((kind) => [...(held?.[kind].values() ?? [])].map(({ of }) => nameOf(kind, of))));
    xids = counted.totals.xids;
    position = now;
  };

  /**
   * Takes over what has moved. `isSame`: the file has the rows that there are, as far as it has room. `isShared`: not one whose
   * counter on the page is added to another's that is in the file: it would come back as a part of the sum, not at 0.
   */
  const follow = (
    counted: Counted,
    rows: Held,
    to: number,
  ): { readonly isSame: boolean; readonly isShared: boolean } => {
    let [moved, isSame, isShared] = [false, true, false];
    for (const kind of ROW_KINDS) {
      const all = rowsOf(counted, kind);
      const isFull = rows[kind].size === MOST_ROWS;
      let living = 0;
      const missing: object[] = [];
      for (const [key, of] of all) {
        const row = rows[kind].get(key);
        // In a file that is full, who has ended takes nobody's place, and gives his own.
        if (isFull && hasEnded(of, counted)) {
          if (!row) continue;
        } else if (row) living += 1;
        else missing.push(of);
        if (!row || row.of === of) continue;
        row.of = of;
        putNumbers(kind, of, values, row.at);
        moved = true;
      }
      const isRoom = living < MOST_ROWS;
      isSame &&= (isFull || all.size === rows[kind].size) && !(isRoom && missing.length > 0);
      // What went to a base stands in the file as it did.
      isShared ||= isRoom && kind !== 'bases' && kind !== 'uses' && missing.some((of) => names.has(nameOf(kind, of)));
    }
    if (moved) writeSync(to, values, 0, values.byteLength, WORD);
    return { isSame, isShared };
  };

  return {
    earlier: found ?? NOTHING_KEPT,
    uncounted,
    keep(counted) {
      last = counted;
      trying(() => {
        const { isSame, isShared } =
          held !== undefined && fd !== undefined ? follow(counted, held, fd) : { isSame: false, isShared: false };
        const isDue = held === undefined || clock() - writtenAt >= EVERY_MS;
        // An Xid that came back as none would be one more; it is no number of a row.
        if (counted.totals.xids !== xids || isShared || (isDue && !(isSame && isAt(audit.position(), position))))
          write(counted);
      });
    },
    close() {
      const counted = last;
      if (counted) trying(() => write(counted));
      if (fd !== undefined) closeSync(fd);
      fd = undefined;
    },
  };
}

type Position = ReturnType<Audit['position']>;
const isAt = (one: Position, other: Position | undefined): boolean =>
  one.inode === other?.inode && one.bytes === other.bytes && one.ahead?.length === other.ahead?.length;

type Read = {
  readonly kept: Kept;
  /** Where its numbers are. */
  readonly path?: string;
  /** A clause. */
  readonly wrong?: string;
};

/** With the numbers of now; without rows where those cannot be told: what is counted from 0 again is no increase. */
function numbersOf(kept: Kept, paths: readonly string[]): Read {
  if (ROW_KINDS.every((kind) => kept[kind].length === 0)) return { kept };
  const wrong: string[] = [];
  for (const path of paths) {
    try {
      const bytes = readFileSync(path);
      const words = new Float64Array(bytes.length >> 3);
      new Uint8Array(words.buffer).set(bytes.subarray(0, words.byteLength));
      if (words[0] === kept.turn) return { kept: raised(kept, words.subarray(1)), path };
      wrong.push(`${path} is of another turn than counters.json`);
    } catch (error) {
      wrong.push(`${path} cannot be read: ${(error as Error).message}`);
    }
  }
  return { kept: { ...kept, ...NO_ROWS }, wrong: wrong.join('; ') };
}

function sinceBoot(records: readonly ActionRecord[]): readonly ActionRecord[] {
  const bootMs = Date.now() - uptime() * 1000;
  return records.filter(({ atMs }) => atMs >= bootMs);
}
