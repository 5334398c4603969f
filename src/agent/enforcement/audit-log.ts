// The audit log: one JSON object per line for each enforcement action, append-only, with one full file kept beside it.
// No line is lost when the agent ends at any moment or the disk is full for a while; the next agent reads it to go on.
import {
  appendFileSync,
  closeSync,
  existsSync,
  mkdirSync,
  openSync,
  readSync,
  renameSync,
  statSync,
  truncateSync,
} from 'node:fs';
import { join } from 'node:path';
import * as v from 'valibot';
import type { Logger } from '../../common/logger.ts';
import { createQuota, EVENT_QUOTA, remember } from '../../common/quota.ts';
import { attempt } from '../../common/result.ts';
import { openStateFile, type StateFormat } from '../../common/state-file.ts';
import { type ActionRecord, readRecord } from './action-record.ts';

const isSameAction = (one: ActionRecord, other: ActionRecord | undefined): boolean =>
  one.atMs === other?.atMs && one.action === other.action && one.grantId === other.grantId;

export type Audit = {
  add(record: ActionRecord): void;
  /** Before the first signal of a stop: stored in a file of its own until `add` records the result. */
  begin(record: ActionRecord): void;
  /** Writes what could not be written before; to be called with each sample. */
  retry(): void;
  readonly recent: () => readonly ActionRecord[];
  /** The last records that changed an enforcement state, without warnings and refusals, which can be many. */
  readonly steps: () => readonly ActionRecord[];
  /** A stop that an earlier agent had begun when it ended: whether it signaled is unknown. */
  readonly interrupted: ActionRecord | undefined;
};

const MIB = 1024 * 1024;
const RECENT = 200;
const STEPS = 500;
const MOST_BYTES = 16 * MIB;
/** Read in pieces: a full file is never in memory as a whole. */
const PIECE_BYTES = 256 * 1024;
/** Limit of the lines that wait for disk space. */
const MOST_WAITING_BYTES = 4 * MIB;

/**
 * Actions that a container can cause without end, by exceeding its grant again and again. Beyond the quota of its grant
 * they are counted only, so that they push nothing of other grants out of the log.
 */
const REPEATABLE: ReadonlySet<ActionRecord['action']> = new Set([
  'warn',
  'refuse',
  'would-stop',
  'close-gate',
  'open-gate',
]);
/** Actions that change no enforcement state. */
const STATELESS: ReadonlySet<ActionRecord['action']> = new Set(['warn', 'refuse', 'would-stop']);
/** Without parsing the line: quotation marks inside of texts are escaped. */
const isStepLine = (line: string): boolean => !/"action":"(?:warn|refuse|would-stop)"/.test(line);

/** The stop that is being carried out. */
const STOPPING_FORMAT: StateFormat<ActionRecord> = {
  version: undefined,
  schema: v.pipe(
    v.unknown(),
    v.transform(readRecord),
    v.custom<ActionRecord>((record) => record !== undefined, 'the record of an action'),
  ),
};

/** Appends text to a file; where it throws, a part may be written. */
type Append = (path: string, text: string) => void;
const append: Append = (path, text) => appendFileSync(path, text, { mode: 0o640 });

/** Reads the records from before a restart, so that no process is signaled twice. */
export function openAudit(stateFolder: string, log: Pick<Logger, 'warn'>, appendTo = append): Audit {
  const path = join(stateFolder, 'audit.log');
  const files = [`${path}.1`, path];
  mkdirSync(stateFolder, { recursive: true });
  const { recent, steps } = readAudit(files, log);
  /** Ends a line that a crash cut, so that it does not spoil the next one. */
  let gap = endsMidLine(path) ? '\n' : '';
  const stopping = openStopping(stateFolder, recent, log);

  const waiting: string[] = [];
  const write = (line: string): void => {
    const before = sizeOf(path);
    try {
      appendTo(path, `${gap}${line}\n`);
    } catch (error) {
      // A full disk takes a part of the line.
      gap = cutAt(path, before) ? '\n' : '';
      throw error;
    }
    gap = '';
    if (sizeOf(path) > MOST_BYTES) putAside(path, log);
  };
  /** In their order. Throws where the disk is full. */
  const writeWaiting = (): void => {
    for (let first = waiting[0]; first !== undefined; first = waiting[0]) {
      write(first);
      waiting.shift();
    }
    stopping.finish();
  };
  const forget = (): void => {
    let bytes = waiting.reduce((sum, line) => sum + line.length, 0);
    for (; bytes > MOST_WAITING_BYTES; bytes -= waiting.shift()?.length ?? bytes)
      log.warn('audit.log: too many records wait for disk space; the oldest one is only in this log');
  };
  const admit = createAdmission();
  return {
    interrupted: stopping.interrupted,
    begin: stopping.begin,
    add(given) {
      const record = admit(given);
      if (!record) return;
      recent.push(record);
      if (recent.length > RECENT) recent.shift();
      if (!STATELESS.has(record.action)) steps.push(record);
      if (steps.length > STEPS) steps.shift();
      const line = JSON.stringify(record);
      waiting.push(line);
      try {
        writeWaiting();
      } catch (error) {
        log.warn(`audit.log: ${(error as Error).message}; writing is retried; the record: ${line}`);
        forget();
      }
    },
    retry() {
      const count = waiting.length;
      if (count === 0) return;
      try {
        writeWaiting();
        log.warn(`audit.log: writing works again; the ${count} delayed records are written`);
      } catch {
        // reported with the record
      }
    },
    recent: () => recent,
    steps: () => steps,
  };
}

/** Applies the quota; what it gives says how many records of the grant were left out before it. */
function createAdmission(): (record: ActionRecord) => ActionRecord | undefined {
  const quota = createQuota();
  const omitted = new Map<string, { count: number; gate: boolean }>();
  return (record) => {
    const { grantId, action } = record;
    const before = omitted.get(grantId);
    // The gate's opening is recorded where its closing is.
    const isAdmitted =
      !REPEATABLE.has(action) || (action === 'open-gate' ? before?.gate !== true : quota.take(grantId, record.atMs));
    const gate = action === 'close-gate' ? !isAdmitted : action !== 'open-gate' && before?.gate === true;
    const count = isAdmitted ? 0 : (before?.count ?? 0) + 1;
    if (count > 0 || gate) remember(omitted, grantId, { count, gate }, EVENT_QUOTA.mostKeys);
    else omitted.delete(grantId);
    if (!isAdmitted) return undefined;
    return before && before.count > 0 ? { ...record, omitted: before.count } : record;
  };
}

/** The file of the stop that is being carried out. */
function openStopping(stateFolder: string, recent: readonly ActionRecord[], log: Pick<Logger, 'warn'>) {
  const lost = 'a stop that was being carried out is not in the audit log';
  const options = { lost, log, mode: 0o640, sync: false };
  const file = openStateFile(join(stateFolder, 'stopping.json'), STOPPING_FORMAT, options);
  const begun = file.found;
  let isBegun = begun !== undefined;
  const trying = (work: () => void): void => {
    const done = attempt(work);
    // A stop goes on without the file.
    if (!done.ok) log.warn(`stopping.json: ${done.error}`);
  };
  const finish = () =>
    trying(() => {
      if (isBegun) file.remove();
      isBegun = false;
    });
  // The earlier agent may have ended after it wrote the line.
  const isRecorded = recent.some((record) => isSameAction(record, begun));
  if (isRecorded) finish();
  return {
    interrupted: begun === undefined || isRecorded ? undefined : ({ ...begun, result: 'interrupted' } as const),
    begin: (record: ActionRecord) =>
      trying(() => {
        file.write(record);
        isBegun = true;
      }),
    finish,
  };
}

/** What the last agent left. */
function readAudit(files: readonly string[], log: Pick<Logger, 'warn'>) {
  const recordIn = (line: string): readonly ActionRecord[] => {
    const read = attempt(() => readRecord(JSON.parse(line)));
    if (read.ok && read.value) return [read.value];
    log.warn(`audit.log: a line cannot be read: ${line.slice(0, 80)}`);
    return [];
  };
  return {
    recent: latest(files, RECENT).flatMap(recordIn),
    steps: latest(files, STEPS, isStepLine).flatMap(recordIn),
  };
}

/** Cuts off the part of a line after `bytes`. True: the file still ends within a line. */
function cutAt(path: string, bytes: number): boolean {
  try {
    if (sizeOf(path) > bytes) truncateSync(path, bytes);
    return endsMidLine(path);
  } catch {
    return true; // an empty line at most
  }
}

function putAside(path: string, log: Pick<Logger, 'warn'>): void {
  try {
    renameSync(path, `${path}.1`);
  } catch (error) {
    log.warn(`audit.log: the full file cannot be renamed: ${(error as Error).message}`);
  }
}

const sizeOf = (path: string): number => statSync(path, { throwIfNoEntry: false })?.size ?? 0;

/** The last lines of these files, from the older one where the younger one has too few. */
function latest(
  files: readonly string[],
  most: number,
  isWanted: (line: string) => boolean = () => true,
): readonly string[] {
  let lines: string[] = [];
  for (const file of files.toReversed()) {
    const own: string[] = [];
    eachLine(file, (line) => {
      if (!isWanted(line)) return;
      own.push(line);
      if (own.length > 2 * most) own.splice(0, most);
    });
    lines = [...own, ...lines].slice(-most);
    if (lines.length === most) break;
  }
  return lines;
}

/** Lines of a file; none where there is no file. */
function eachLine(path: string, use: (line: string) => void): void {
  if (!existsSync(path)) return;
  const fd = openSync(path, 'r');
  try {
    const piece = Buffer.alloc(PIECE_BYTES);
    let rest = Buffer.alloc(0);
    for (let at = 0; ; ) {
      const count = readSync(fd, piece, 0, piece.length, at);
      at += count;
      const bytes = Buffer.concat([rest, piece.subarray(0, count)]);
      const end = count === 0 ? bytes.length : bytes.lastIndexOf(0x0a) + 1;
      for (const line of bytes.toString('utf8', 0, end).split('\n')) if (line !== '') use(line);
      if (count === 0) return;
      rest = bytes.subarray(end);
    }
  } finally {
    closeSync(fd);
  }
}

function endsMidLine(path: string): boolean {
  const size = sizeOf(path);
  if (size === 0) return false;
  const fd = openSync(path, 'r');
  try {
    const last = Buffer.alloc(1);
    readSync(fd, last, 0, 1, size - 1);
    return last[0] !== 0x0a;
  } finally {
    closeSync(fd);
  }
}
