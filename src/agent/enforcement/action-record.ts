// The record of one enforcement action: container, action, reason and result. Programs read the codes (`action`,
// `reason`, `result`, `refusal`); people read `message` and `detail`, the same in log, Events and metrics' labels. The
// audit log keeps the records.
import type { RefusalReason } from '../../policy/enforcement.ts';
import type { OverReason, Verdict } from '../../policy/memory-verdict.ts';
import { type Grant, podUidOf } from '../grants/grant.ts';
import type { Signaled } from './targets.ts';

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

/** Result of an action. `none-left`: all processes had ended before. `asked`: the API server has not answered yet. */
const OUTCOMES = ['done', 'sent', 'none-left', 'refused', 'interrupted', 'stuck', 'asked', 'begun'] as const;
export type Outcome = (typeof OUTCOMES)[number];

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
  /** Of the GPU's compute, where that is the reason; else 0. */
  readonly usedRatio: number;
  readonly limitRatio: number;
  readonly resource: 'memory' | 'compute';
  /** The sentence that people read. */
  readonly message: string;
  readonly result: Outcome;
  /** Why an action that was due was not taken; with `result` `refused` alone. */
  readonly refusal?: RefusalReason;
  /** A sentence on the refusal. */
  readonly detail?: string;
  readonly processes: readonly Pick<Signaled, 'pid' | 'startTicks' | 'command' | 'result'>[];
  /** How many records of this grant before it were left out, because it exceeds its quota of them. */
  readonly omitted?: number;
};

const MIB = 1024 * 1024;
const REASONS: Record<OverReason, string> = {
  bypass: 'exceeds its GPU memory grant',
  'far-over-limit': 'far exceeds its GPU memory grant',
  'no-room': 'exceeds its GPU memory grant on a GPU without free memory for other grants',
  'over-limit': 'exceeds its GPU memory grant',
  'over-share': 'exceeds its GPU compute share',
};
const WHAT: Record<ActionName, string> = {
  warn: 'the agent stops it if this lasts',
  'close-gate': 'the agent holds back its kernels',
  'open-gate': 'its kernels may run again',
  terminate: 'the agent sends it SIGTERM',
  kill: 'the agent stops it',
  'would-stop': 'in enforce mode the agent would stop it',
  refuse: 'the agent does not stop it now',
  released: 'its GPU memory is free again',
  stuck: 'its GPU memory is still in use after the stop',
  evict: 'the agent evicts its pod',
};

/** "team/rogue/main exceeds its GPU memory grant: 3000 MiB of 1024 MiB on GPU-…, 2900 MiB of it past the interposer;
 * the agent stops it" */
export function describe(
  grant: Pick<Grant, 'namespace' | 'pod' | 'container'>,
  action: ActionName,
  verdict: Verdict,
): string {
  const subject = `${grant.namespace}/${grant.pod}/${grant.container}`;
  if (verdict.severity === 'within') return `${subject}: ${WHAT[action]}`;
  if (verdict.reason === 'over-share') {
    const { usedRatio, limitRatio, seconds, gpuUuid } = verdict.worst;
    const percent = (ratio: number) => `${Math.round(ratio * 100)} %`;
    const proof = verdict.severity === 'hard' ? ', and launches kernels past its closed gate' : '';
    return `${subject} ${REASONS[verdict.reason]}: ${percent(usedRatio)} of ${percent(limitRatio)} on ${gpuUuid} over ${Math.round(seconds)} s${proof}; ${WHAT[action]}`;
  }
  const { worst, reason } = verdict;
  return `${subject} ${REASONS[reason]}: ${mib(worst.usedBytes)} of ${mib(worst.limitBytes)} on ${worst.gpuUuid}${bypassText(worst.bypassBytes)}; ${WHAT[action]}`;
}

const mib = (bytes: number): string => `${Math.ceil(bytes / MIB)} MiB`;
const bypassText = (bytes: number): string => (bytes > 0 ? `, ${mib(bytes)} of it past the interposer` : '');

export type NewRecord = {
  readonly grant: Grant;
  readonly action: ActionName;
  readonly verdict: Verdict;
  readonly atMs: number;
  readonly result: Outcome;
  readonly refusal?: { readonly reason: RefusalReason; readonly detail: string };
  readonly processes?: readonly Signaled[];
  /** With a verdict `within`: the reason of the action that this one ends. */
  readonly after?: OverReason | undefined;
};

export function recordOf({
  grant,
  action,
  verdict,
  atMs,
  result,
  refusal,
  processes = [],
  after,
}: NewRecord): ActionRecord {
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
    gpuUuid: (memory ?? share ?? grant.gpus[0])?.gpuUuid ?? '',
    reason,
    usedBytes: memory?.usedBytes ?? 0,
    limitBytes: memory?.limitBytes ?? 0,
    bypassBytes: memory?.bypassBytes ?? 0,
    usedRatio: share?.usedRatio ?? 0,
    limitRatio: share?.limitRatio ?? 0,
    resource: (reason === 'none' ? after : reason) === 'over-share' ? 'compute' : 'memory',
    message: describe(grant, action, verdict),
    result,
    ...(refusal && { refusal: refusal.reason, detail: refusal.detail }),
    processes: processes.map(({ pid, startTicks, command, result: outcome }) => ({
      pid,
      startTicks,
      command,
      result: outcome,
    })),
  };
}

/** What the container exceeded, in short; undefined: the record is of no excess. */
export function excessOf({
  reason,
  usedBytes = 0,
  limitBytes = 0,
  bypassBytes = 0,
  usedRatio = 0,
  limitRatio = 0,
}: Partial<Omit<ActionRecord, 'processes'>>): { readonly used: string; readonly reason: string } | undefined {
  if (reason === undefined || reason === 'none') return undefined;
  const text = `${REASONS[reason]}${bypassText(bypassBytes)}`;
  return reason === 'over-share'
    ? { used: `${Math.round(usedRatio * 100)} of ${Math.round(limitRatio * 100)} %`, reason: text }
    : { used: `${Math.ceil(usedBytes / MIB)} of ${Math.ceil(limitBytes / MIB)} MiB`, reason: text };
}

/** The result as a text for people. */
export const resultText = ({ result, detail }: Pick<ActionRecord, 'result' | 'detail'>): string =>
  detail === undefined ? result : `${result}: ${detail}`;

/** A line of the audit log, parsed; undefined: not a record. */
export function readRecord(value: unknown): ActionRecord | undefined {
  const record = value as Partial<ActionRecord> | null;
  const isRecord =
    typeof record?.atMs === 'number' &&
    typeof record.grantId === 'string' &&
    OUTCOMES.some((outcome) => outcome === record.result);
  return isRecord ? (record as ActionRecord) : undefined;
}
