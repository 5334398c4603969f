// What was done to whom, and why: one record per action. Owns the words of the reason, which are the same in every place where a
// person meets them; where records are kept is the audit's.
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
  /** What this is about. */
  readonly resource: 'memory' | 'compute';
  /** The sentence that people read. */
  readonly message: string;
  /** sent, released, stuck, interrupted, asked, or why it was not done. */
  readonly result: string;
  readonly processes: readonly Pick<Signaled, 'pid' | 'startTicks' | 'command' | 'result'>[];
};

/** The result of an eviction whose answer is still to come. */
export const ASKED = 'asked';

const MIB = 1024 * 1024;
const REASONS: Record<OverReason, string> = {
  bypass: 'holds GPU memory that its limit does not see',
  'far-over-limit': 'is far over its GPU memory grant',
  'no-room': 'is over its GPU memory grant, and its GPU has nothing left for others',
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
  processes: readonly Signaled[] = [],
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
    processes: processes.map(({ pid, startTicks, command, result: outcome }) => ({
      pid,
      startTicks,
      command,
      result: outcome,
    })),
  };
}
