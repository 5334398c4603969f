// What this node has counted, for the agent after this one. Two files of the state folder: counters.json says of whom and what,
// and is written now and then where somebody has come or gone; counters.values has the same rows' numbers as they are now,
// written in place with each sample in which one has moved, before anybody is told of it. For a counter that came back lower than
// it was scraped would pass for an increase by all that it has. Bases stand in the first one alone: until it is written anew, who
// has gone to them stands there as it did. Stops are counted by the audit log: the file says how many of its lines are counted
// already, and the others are counted at the start.
import { randomInt } from 'node:crypto';
import { closeSync, existsSync, openSync, readFileSync, writeSync } from 'node:fs';
import { uptime } from 'node:os';
import { join } from 'node:path';
import { bootIdOfMachine } from './boot-id.ts';
import { type UseCounts, useOfKey } from './compute/account.ts';
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
} from './counters-format.ts';
import type { Audit } from './enforcement/audit.ts';
import type { ActionRecord } from './enforcement/record.ts';
import type { KeptKills } from './kills.ts';
import { openStateFile } from './state-file.ts';
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
  const valuesPath = join(stateFolder, 'counters.values');
  const isFirst = !existsSync(path);
  const lost = 'containers and cards are counted from 0 again, and stops by the audit log';
  const file = openStateFile(path, COUNTERS_FORMAT, { lost, onProblem, untilReboot: true });
  const found = file.found?.bootId === bootId ? withNumbers(file.found, valuesPath, onProblem) : undefined;
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
  let fd: number | undefined;

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
    file.write({ ...NOTHING_KEPT, ...kept, ...(lists as KeptRows), xids: xidsRaised });
    fd ??= openSync(valuesPath, existsSync(valuesPath) ? 'r+' : 'w+', 0o644);
    // While the first word is nobody's turn, so are the others.
    writeSync(fd, Float64Array.of(0), 0, WORD, 0);
    values = new Float64Array(words);
    for (const kind of ROW_KINDS) for (const { at, of } of next[kind]?.values() ?? []) putNumbers(kind, of, values, at);
    writeSync(fd, values, 0, values.byteLength, WORD);
    writeSync(fd, Float64Array.of(turn), 0, WORD, 0);
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

/** With the numbers of now; without rows where those cannot be told: what is counted from 0 again is no increase. */
function withNumbers(kept: Kept, path: string, onProblem: (text: string) => void): Kept {
  if (ROW_KINDS.every((kind) => kept[kind].length === 0)) return kept;
  try {
    const bytes = readFileSync(path);
    const words = new Float64Array(bytes.length >> 3);
    new Uint8Array(words.buffer).set(bytes.subarray(0, words.byteLength));
    if (words[0] === kept.turn) return raised(kept, words.subarray(1));
    onProblem(`${path} is of another turn than counters.json: containers are counted from 0 again`);
  } catch (error) {
    onProblem(`${path} cannot be read, so containers are counted from 0 again: ${(error as Error).message}`);
  }
  return { ...kept, ...NO_ROWS };
}

function sinceBoot(records: readonly ActionRecord[]): readonly ActionRecord[] {
  const bootMs = Date.now() - uptime() * 1000;
  return records.filter(({ atMs }) => atMs >= bootMs);
}
