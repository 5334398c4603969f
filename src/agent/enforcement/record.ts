// What was done to whom, and why: one record per action, in an audit file that is only ever added to, and counted for the
// metrics. Owns the words of the reason, which are the same in every place where a person meets them.
import {
  appendFileSync,
  existsSync,
  mkdirSync,
  readFileSync,
  renameSync,
  statSync,
  unlinkSync,
  writeFileSync,
} from 'node:fs';
import { dirname, join } from 'node:path';
import type { OverReason, Verdict } from '../../quota/limits.ts';
import { type Grant, podUidOf } from '../grants/grant.ts';
import type { Signalled } from './targets.ts';

export type ActionName =
  | 'warn'
  | 'close-gate'
  | 'open-gate'
  | 'terminate'
  | 'kill'
  | 'would-stop'
  | 'refuse'
  | 'released'
  | 'stuck'
  | 'evict';

export type ActionRecord = {
  readonly atMs: number;
  readonly action: ActionName;
  readonly grantId: string;
  readonly namespace: string;
  readonly pod: string;
  readonly container: string;
  /** Empty: plain processes. */
  readonly podUid: string;
  readonly gpuUuid: string;
  readonly reason: OverReason | 'none';
  readonly usedBytes: number;
  readonly limitBytes: number;
  readonly bypassBytes: number;
  /** Of the card's compute, where that is the reason; else 0. */
  readonly usedRatio: number;
  readonly limitRatio: number;
  /** What this is about. */
  readonly resource: 'memory' | 'compute';
  /** The sentence that people read. */
  readonly message: string;
  /** sent, released, stuck, interrupted, or why it was not done. */
  readonly result: string;
  readonly processes: readonly Pick<Signalled, 'pid' | 'startTicks' | 'command' | 'result'>[];
};

const MIB = 1024 * 1024;
const REASONS: Record<OverReason, string> = {
  bypass: 'holds GPU memory that its limit does not see',
  'far-over-limit': 'is far over its GPU memory grant',
  'over-limit': 'is over its GPU memory grant',
  'over-share': 'takes more GPU compute than its share',
};
const WHAT: Record<ActionName, string> = {
  warn: 'it will be stopped if it stays so',
  'close-gate': 'its kernels are held back',
  'open-gate': 'its kernels may run again',
  terminate: 'it is asked to end',
  kill: 'it is stopped',
  'would-stop': 'it would be stopped in enforce mode',
  refuse: 'it is not stopped',
  released: 'its memory is free again',
  stuck: 'its memory is still held',
  evict: 'its pod is evicted',
};

/** "GPU memory grant exceeded: local/cheat/main used 3000 MiB of 1024 MiB on GPU-..., 2900 MiB past its limit; it is stopped" */
export function describe(grant: Grant, action: ActionName, verdict: Verdict): string {
  const who = `${grant.namespace}/${grant.pod}/${grant.container}`;
  if (verdict.severity === 'within') return `${who}: ${WHAT[action]}`;
  if (verdict.reason === 'over-share') {
    const { usedRatio, limitRatio, seconds, gpuUuid } = verdict.worst;
    const percent = (ratio: number) => `${Math.round(ratio * 100)} %`;
    const proof = verdict.severity === 'hard' ? ', and launches past its closed gate' : '';
    return `${who} ${REASONS[verdict.reason]}: ${percent(usedRatio)} of ${percent(limitRatio)} on ${gpuUuid} over ${Math.round(seconds)} s${proof}; ${WHAT[action]}`;
  }
  const { worst, reason } = verdict;
  const mib = (bytes: number) => `${Math.ceil(bytes / MIB)} MiB`;
  const past = worst.bypassBytes > 0 ? `, ${mib(worst.bypassBytes)} of it past the interposer` : '';
  return `${who} ${REASONS[reason]}: ${mib(worst.usedBytes)} of ${mib(worst.limitBytes)} on ${worst.gpuUuid}${past}; ${WHAT[action]}`;
}

export function recordOf(
  grant: Grant,
  action: ActionName,
  verdict: Verdict,
  atMs: number,
  result: string,
  processes: readonly Signalled[] = [],
  /** Of a verdict that says nothing any more: what it was before. */
  after?: OverReason,
): ActionRecord {
  const reason = verdict.severity === 'within' ? 'none' : verdict.reason;
  const memory = verdict.severity === 'within' || verdict.reason === 'over-share' ? undefined : verdict.worst;
  const share = verdict.severity !== 'within' && verdict.reason === 'over-share' ? verdict.worst : undefined;
  return {
    atMs,
    action,
    grantId: grant.id,
    namespace: grant.namespace,
    pod: grant.pod,
    container: grant.container,
    podUid: podUidOf(grant),
    gpuUuid: (memory ?? share ?? grant.cards[0])?.gpuUuid ?? '',
    reason,
    usedBytes: memory?.usedBytes ?? 0,
    limitBytes: memory?.limitBytes ?? 0,
    bypassBytes: memory?.bypassBytes ?? 0,
    usedRatio: share?.usedRatio ?? 0,
    limitRatio: share?.limitRatio ?? 0,
    resource: (reason === 'none' ? after : reason) === 'over-share' ? 'compute' : 'memory',
    message: describe(grant, action, verdict),
    result,
    processes: processes.map(({ pid, startTicks, command, result: outcome }) => ({
      pid,
      startTicks,
      command,
      result: outcome,
    })),
  };
}

export type Audit = {
  add(record: ActionRecord): void;
  /** Before the first signal of a stop: written down apart, until `add` tells what became of it. */
  begin(record: ActionRecord): void;
  readonly recent: () => readonly ActionRecord[];
  /** A stop that an agent before this one had begun when it ended; nobody knows how far it came. */
  readonly interrupted: ActionRecord | undefined;
};

const RECENT = 200;
const MOST_BYTES = 16 * MIB;

/** One JSON object per line; a full file is kept beside as audit.log.1. What was done before a restart is read back, for the metrics and so that nobody is hit twice. */
export function openAudit(stateFolder: string, onProblem: (text: string) => void): Audit {
  const path = join(stateFolder, 'audit.log');
  mkdirSync(dirname(path), { recursive: true });
  const stopping = join(stateFolder, 'stopping.json');
  const recent: ActionRecord[] = [];
  /** Ends a line that was cut by a crash, so that it does not take the next one with it. */
  let gap = '';
  if (existsSync(path)) {
    const text = readFileSync(path, 'utf8');
    if (text !== '' && !text.endsWith('\n')) gap = '\n';
    const lines = text.split('\n').filter((line) => line !== '');
    for (const line of lines.slice(-RECENT)) {
      try {
        const record = JSON.parse(line) as Partial<ActionRecord> | null;
        if (typeof record?.atMs !== 'number' || typeof record.grantId !== 'string') throw new Error('not a record');
        recent.push(record as ActionRecord);
      } catch {
        onProblem(`audit.log: a line cannot be read: ${line.slice(0, 80)}`);
      }
    }
  }
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
        if (statSync(path).size > MOST_BYTES) renameSync(path, `${path}.1`);
      } catch (error) {
        onProblem(`audit.log: ${(error as Error).message}; the record: ${JSON.stringify(record)}`);
      }
      finish();
    },
    recent: () => recent,
  };
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
