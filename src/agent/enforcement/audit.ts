// The audit file: one JSON object per line for everything that was done, only ever added to, a full file kept beside it. Owns that
// no line is lost when the agent ends at any moment, and what the next one reads of it.
import {
  appendFileSync,
  closeSync,
  existsSync,
  mkdirSync,
  openSync,
  readFileSync,
  readSync,
  renameSync,
  statSync,
  unlinkSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import type { ActionRecord } from './record.ts';

/** Up to where the file has been written: its inode, and bytes of it. Inode 0: there was none. */
export type AuditPosition = { readonly inode: number; readonly bytes: number };

export type Audit = {
  add(record: ActionRecord): void;
  /** Before the first signal of a stop: written down apart, until `add` tells what became of it. */
  begin(record: ActionRecord): void;
  readonly recent: () => readonly ActionRecord[];
  /** A stop that an agent before this one had begun when it ended; nobody knows how far it came. */
  readonly interrupted: ActionRecord | undefined;
  readonly position: () => AuditPosition;
  /** What was written after that, oldest first; of files that were put aside the last one. Undefined: all there is. */
  since(position: AuditPosition | undefined): readonly ActionRecord[];
};

const MIB = 1024 * 1024;
const RECENT = 200;
const MOST_BYTES = 16 * MIB;
/** Read at once: a full file is never in memory as a whole. */
const PIECE_BYTES = 256 * 1024;

/** What was done before a restart is read back, for the metrics and so that nobody is hit twice. */
export function openAudit(stateFolder: string, onProblem: (text: string) => void): Audit {
  const path = join(stateFolder, 'audit.log');
  const files = [`${path}.1`, path];
  mkdirSync(stateFolder, { recursive: true });
  const stopping = join(stateFolder, 'stopping.json');
  const recordIn = (line: string): ActionRecord | undefined => {
    try {
      const record = JSON.parse(line) as Partial<ActionRecord> | null;
      if (typeof record?.atMs === 'number' && typeof record.grantId === 'string') return record as ActionRecord;
    } catch {
      // told below
    }
    onProblem(`audit.log: a line cannot be read: ${line.slice(0, 80)}`);
    return undefined;
  };
  const recent = latest(files).flatMap((line) => recordIn(line) ?? []);
  /** Ends a line that was cut by a crash, so that it does not take the next one with it. */
  let gap = endsMidLine(path) ? '\n' : '';
  let position = endOf(path) ?? endOf(`${path}.1`) ?? { inode: 0, bytes: 0 };
  const begun = readBegun(stopping, onProblem);
  // It may have come as far as its line.
  const isTold = recent.some(({ atMs, action, grantId }) => {
    return atMs === begun?.atMs && action === begun.action && grantId === begun.grantId;
  });
  let isBegun = begun !== undefined;
  const finish = () => {
    try {
      if (isBegun) unlinkSync(stopping);
      isBegun = false;
    } catch (error) {
      onProblem(`stopping.json: ${(error as Error).message}`);
    }
  };
  if (isTold) finish();
  return {
    interrupted: begun === undefined || isTold ? undefined : { ...begun, result: 'interrupted' },
    begin(record) {
      try {
        writeFileSync(`${stopping}.new`, JSON.stringify(record), { mode: 0o640 });
        renameSync(`${stopping}.new`, stopping);
        isBegun = true;
      } catch (error) {
        // Whoever is over is stopped all the same.
        onProblem(`stopping.json: ${(error as Error).message}`);
      }
    },
    add(record) {
      recent.push(record);
      if (recent.length > RECENT) recent.shift();
      try {
        appendFileSync(path, `${gap}${JSON.stringify(record)}\n`, { mode: 0o640 });
        gap = '';
        position = endOf(path) ?? position;
        if (position.bytes > MOST_BYTES) renameSync(path, `${path}.1`);
      } catch (error) {
        onProblem(`audit.log: ${(error as Error).message}; the record: ${JSON.stringify(record)}`);
      }
      finish();
    },
    recent: () => recent,
    position: () => position,
    since(from) {
      const records: ActionRecord[] = [];
      const use = (line: string) => records.push(...[recordIn(line) ?? []].flat());
      const ends = files.map(endOf);
      const place = ends.findIndex((end) => end?.inode === from?.inode && (end?.bytes ?? 0) >= (from?.bytes ?? 0));
      if (from === undefined || from.inode === 0) for (const file of files) eachLine(file, 0, use);
      // Somebody has taken the file away: what stands in its place is younger.
      else if (place < 0) eachLine(path, 0, use);
      else for (const [index, file] of files.slice(place).entries()) eachLine(file, index === 0 ? from.bytes : 0, use);
      return records;
    },
  };
}

function endOf(path: string): AuditPosition | undefined {
  const found = statSync(path, { throwIfNoEntry: false });
  return found && { inode: found.ino, bytes: found.size };
}

/** The last lines of these files, of the older one as far as the younger one has too few. */
function latest(files: readonly string[]): readonly string[] {
  let lines: string[] = [];
  for (const file of files.toReversed()) {
    const own: string[] = [];
    eachLine(file, 0, (line) => {
      own.push(line);
      if (own.length > 2 * RECENT) own.splice(0, RECENT);
    });
    lines = [...own, ...lines].slice(-RECENT);
    if (lines.length === RECENT) break;
  }
  return lines;
}

/** Lines of a file from that byte on; none where there is no such file. */
function eachLine(path: string, from: number, use: (line: string) => void): void {
  if (!existsSync(path)) return;
  const fd = openSync(path, 'r');
  try {
    const piece = Buffer.alloc(PIECE_BYTES);
    let rest = Buffer.alloc(0);
    for (let at = from; ; ) {
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
  const size = endOf(path)?.bytes ?? 0;
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

function readBegun(path: string, onProblem: (text: string) => void): ActionRecord | undefined {
  if (!existsSync(path)) return undefined;
  try {
    const record = JSON.parse(readFileSync(path, 'utf8')) as Partial<ActionRecord> | null;
    if (typeof record?.atMs === 'number' && typeof record.grantId === 'string') return record as ActionRecord;
    throw new Error('not a record');
  } catch (error) {
    onProblem(`stopping.json cannot be read: ${(error as Error).message}`);
    return undefined;
  }
}
