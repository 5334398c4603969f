// What the agent does about one container at one sample: decides over the ladder's step, the age and consistency of the
// data, the rate of stops and processes that started after a stop. Pure: state and facts in, new state and at most one
// action out. It names no process; the enforcer finds the processes and checks each of them again when it signals them.

import type { Mode } from '../api/request.ts';
import { type Action, CALM, changeMode, type LadderPolicy, type LadderState, step } from './ladder.ts';
import { evidenceStrength, type MemoryEvidence } from './memory-evidence.ts';
import type { OverReason, Tolerance, Verdict } from './memory-verdict.ts';
import { rateRefusal, type Stop } from './stop-rate.ts';

export type EnforcementPolicy = LadderPolicy &
  Tolerance & {
    /** No action follows from a sample older than this. */
    readonly staleMs: number;
    readonly mostStopsPerMinute: number;
  };

/** State of one grant from sample to sample. Times are of a monotonic clock. */
export type EnforcementState = {
  readonly ladder: LadderState;
  /** The mode at the previous sample. */
  readonly mode?: Mode;
  /** The processes that the last signal was sent to; absent: all of the container. */
  readonly signaled?: ReadonlySet<string>;
  /** The ladder of processes that started after the last stop, while the memory of the stopped ones is being
   * released. */
  readonly restarted?: LadderState;
  /** When a container whose processes were replaced after a SIGTERM was last judged anew. */
  readonly restartedAtMs?: number;
  /** The gate was closed for this when an earlier agent ended, which opened it. */
  readonly gateOpenedAfter?: OverReason;
  /** A SIGTERM was counted for the rate of stops: the SIGKILL behind it is the same stop. */
  readonly isStopCounted?: boolean;
  readonly lastRefusalMs?: number;
  readonly lastWarningMs?: number;
  /** Since when a stop is due that the rate does not allow. */
  readonly waitingSinceMs?: number;
  /** Since when a stop is due for which the sample was not fresh enough. */
  readonly dueSinceMs?: number;
  /** Since when a stop is due for which the evidence is only likely. */
  readonly doubtedSinceMs?: number;
};

export const INITIAL: EnforcementState = { ladder: CALM };

/** What one sample shows of one container. */
export type EnforcementFacts = {
  readonly nowMs: number;
  /** By the wall clock; below 0: the sample is from the future. */
  readonly sampleAgeMs: number;
  readonly mode: Mode;
  /** The driver gave all process data of the container's GPUs. */
  readonly isComplete: boolean;
  readonly verdict: Verdict;
  readonly holdsMemory: boolean;
  /** With `signaled` in the state: do these processes hold memory, and the verdict on the others. */
  readonly afterSignal?: { readonly holdsMemory: boolean; readonly verdict: Verdict };
  /** By GPU: what a stop for memory on it rests on; absent where the driver does not report how much is in use. */
  readonly evidence: ReadonlyMap<string, MemoryEvidence>;
  /** GPUs on which another container was stopped a moment ago, whose memory is about to be released. */
  readonly releasing: ReadonlySet<string>;
  readonly grant: { readonly id: string; readonly namespace: string };
  /** Stops of the node in the last minute. */
  readonly recentStops: readonly Stop[];
};

/** Why a stop that is due is refused. `eviction`: the API server refused one. */
export const REFUSAL_REASONS = ['stale', 'inconsistent', 'rate-limited', 'eviction'] as const;
export type RefusalReason = (typeof REFUSAL_REASONS)[number];
type Refusal = { readonly reason: RefusalReason; readonly detail: string };

type EnforcementAction =
  | Exclude<Action, { readonly kind: 'open-gate' | 'released' | 'stuck' }>
  | {
      readonly kind: 'open-gate' | 'released' | 'stuck';
      readonly after: OverReason | undefined;
      readonly verdict: Verdict;
    }
  | { readonly kind: 'refuse'; readonly verdict: Verdict; readonly refusal: Refusal };

export type Decision = {
  readonly state: EnforcementState;
  readonly action: EnforcementAction;
  /** Why a due action is not taken with this sample. */
  readonly reason?: RefusalReason | 'incomplete' | 'waits-for-sample' | 'waits-for-release';
};

const NONE: EnforcementAction = { kind: 'none' };
/** Repeated refusals and warnings of one container are recorded this often. */
const REPEAT_MS = 10_000;
/** A stop needs a sample this fresh, or one taken after the stop was due: a driver may be slow every time. */
const FRESH_MS = 250;
/** Evidence that is only likely must last this long. */
const DOUBT_MS = 3000;
/** A container whose processes are replaced after each SIGTERM is judged anew this often. */
const JUDGED_ANEW_MS = 60_000;

/** Ends what another mode began, and takes over what an earlier agent or a SIGTERM left. Comes before `decide`. */
export function adopt(state: EnforcementState, facts: EnforcementFacts, policy: EnforcementPolicy): Decision {
  const next = { ...state, mode: facts.mode };
  if (state.mode !== undefined && state.mode !== facts.mode) {
    const { state: ladder, action } = changeMode(state.ladder, facts.nowMs);
    const changed = without({ ...next, ladder }, 'waitingSinceMs', 'restarted');
    if (action.kind === 'open-gate') return { state: changed, action: { ...action, verdict: facts.verdict } };
    return resume(changed, facts, policy);
  }
  return resume(next, facts, policy);
}

function resume(state: EnforcementState, facts: EnforcementFacts, policy: EnforcementPolicy): Decision {
  if (isUnknown(facts) || staleness(facts, policy)) return { state, action: NONE };
  if (state.gateOpenedAfter !== undefined) {
    const action = { kind: 'open-gate', after: state.gateOpenedAfter, verdict: { severity: 'within' } } as const;
    return { state: without(state, 'gateOpenedAfter'), action };
  }
  const { rung, stoppedAtMs } = state.ladder;
  if (rung !== 'killed' && rung !== 'terminating') return { state: without(state, 'signaled'), action: NONE };
  // The processes that had the SIGTERM have ended; those that are over now have had none.
  const isReplaced = facts.verdict.severity !== 'within' && facts.afterSignal?.holdsMemory === false;
  const isTooSoon = facts.nowMs - (state.restartedAtMs ?? -JUDGED_ANEW_MS) < JUDGED_ANEW_MS;
  if (rung !== 'terminating' || state.signaled === undefined || !isReplaced || isTooSoon)
    return { state, action: NONE };
  const ladder = { ...CALM, ...(stoppedAtMs !== undefined && { stoppedAtMs }) };
  return { state: without({ ...state, ladder, restartedAtMs: facts.nowMs }, 'signaled'), action: NONE };
}

/** One sample later. */
export function decide(before: EnforcementState, facts: EnforcementFacts, policy: EnforcementPolicy): Decision {
  if (isUnknown(facts)) return { state: before, action: NONE, reason: 'incomplete' };
  const stale = staleness(facts, policy);
  const rules = { ...policy, mode: facts.mode };
  const { restarted, found } = stale ? { restarted: before.restarted } : stepRestarted(before, facts, rules);
  const holdsMemory = before.signaled && facts.afterSignal ? facts.afterSignal.holdsMemory : facts.holdsMemory;
  const { state: ladder, action } = found ?? step(before.ladder, { ...facts, holdsMemory }, rules);
  const isStop = action.kind === 'kill' || action.kind === 'terminate';
  const state = without(
    restarted ? { ...before, restarted } : without(before, 'restarted'),
    ...(facts.verdict.severity === 'within' ? (['waitingSinceMs'] as const) : []),
    ...(isStop ? [] : (['dueSinceMs'] as const)),
    // Likely evidence must be seen in each fresh sample.
    ...(isStop && !stale ? [] : (['doubtedSinceMs'] as const)),
  );
  if (!isStop) return stale ? { state, action: NONE, reason: 'stale' } : advance(state, ladder, action, facts);
  return decideStop({ state, ladder, action, stale, facts, policy });
}

type Due = {
  readonly state: EnforcementState;
  readonly ladder: LadderState;
  readonly action: Extract<Action, { readonly reason: OverReason }>;
  readonly stale: Refusal | undefined;
  readonly facts: EnforcementFacts;
  readonly policy: EnforcementPolicy;
};

function decideStop({ state, ladder, action, stale, facts, policy }: Due): Decision {
  const { nowMs } = facts;
  const { verdict } = action;
  if (stale) return refuse(state, verdict, stale, nowMs);
  if (isNextSampleDue(state, facts)) {
    const dueSinceMs = state.dueSinceMs ?? nowMs;
    return { state: { ...state, dueSinceMs }, action: NONE, reason: 'waits-for-sample' };
  }
  const gpuUuid = verdict.severity === 'within' ? '' : verdict.worst.gpuUuid;
  if (action.reason === 'no-room' && facts.releasing.has(gpuUuid))
    return { state, action: NONE, reason: 'waits-for-release' };
  const { state: doubted, refusal } = weigh(state, verdict, facts, policy);
  if (refusal) return refuse(doubted, verdict, refusal, nowMs);
  const detail = state.isStopCounted
    ? undefined
    : rateRefusal(facts.recentStops, facts.grant, policy.mostStopsPerMinute);
  if (detail !== undefined) {
    const waiting = { ...doubted, waitingSinceMs: doubted.waitingSinceMs ?? nowMs };
    return refuse(waiting, verdict, { reason: 'rate-limited', detail }, nowMs);
  }
  return advance(doubted, ladder, action, facts);
}

/** The state after a stop. `signaled`: the processes that were found, and those that the sample showed. */
export const afterStop = (state: EnforcementState, signaled: ReadonlySet<string>): EnforcementState => ({
  ...without(state, 'restarted', 'gateOpenedAfter'),
  signaled,
});

/** The driver's data is incomplete: over by what it reports is over, but what it omits proves no release. */
const isUnknown = ({ isComplete, verdict }: EnforcementFacts): boolean => !isComplete && verdict.severity === 'within';

function staleness({ sampleAgeMs }: EnforcementFacts, { staleMs }: EnforcementPolicy): Refusal | undefined {
  return sampleAgeMs > staleMs || sampleAgeMs < -staleMs
    ? { reason: 'stale', detail: `the data is ${sampleAgeMs} ms old` }
    : undefined;
}

/**
 * Is there a newer sample to wait for? After a pause of the agent older samples come first, and newer ones may show
 * that all was released.
 */
const isNextSampleDue = ({ dueSinceMs }: EnforcementState, { nowMs, sampleAgeMs }: EnforcementFacts): boolean =>
  sampleAgeMs > FRESH_MS && (dueSinceMs === undefined || nowMs - sampleAgeMs < dueSinceMs);

/** Does the evidence allow a stop for memory? */
function weigh(
  state: EnforcementState,
  verdict: Verdict,
  { evidence, nowMs }: EnforcementFacts,
  tolerance: Tolerance,
): { readonly state: EnforcementState; readonly refusal?: Refusal } {
  if (verdict.severity === 'within' || verdict.reason === 'over-share') return { state };
  const found = evidence.get(verdict.worst.gpuUuid);
  if (found === undefined) return { state };
  const strength = evidenceStrength(verdict, found, tolerance);
  const doubtedSinceMs = strength === 'likely' ? (state.doubtedSinceMs ?? nowMs) : undefined;
  const next = doubtedSinceMs === undefined ? without(state, 'doubtedSinceMs') : { ...state, doubtedSinceMs };
  const lasts = doubtedSinceMs !== undefined && nowMs - doubtedSinceMs >= DOUBT_MS;
  if (strength === 'sure' || lasts) return { state: next };
  const detail = `the driver reports ${found.allBytes} bytes for processes on a GPU that has ${found.usedBytes} bytes in use`;
  return { state: next, refusal: { reason: 'inconsistent', detail } };
}

/** The ladder stays where it is, so that the next sample decides again. Recorded at most every `REPEAT_MS`. */
function refuse(state: EnforcementState, verdict: Verdict, refusal: Refusal, nowMs: number): Decision {
  const { reason } = refusal;
  if (!isRepeatDue(state.lastRefusalMs, nowMs)) return { state, action: NONE, reason };
  return { state: { ...state, lastRefusalMs: nowMs }, action: { kind: 'refuse', verdict, refusal }, reason };
}

/** The ladder moves on. */
function advance(state: EnforcementState, ladder: LadderState, action: Action, facts: EnforcementFacts): Decision {
  const next = without({ ...state, ladder }, 'dueSinceMs');
  switch (action.kind) {
    case 'none':
      return { state: next, action };
    case 'warn':
      // A container that is over and within in turn would fill the audit log, and push out records of other containers.
      return isRepeatDue(state.lastWarningMs, facts.nowMs)
        ? { state: { ...next, lastWarningMs: facts.nowMs }, action }
        : { state: next, action: NONE };
    case 'open-gate':
    case 'released':
    case 'stuck':
      return { state: without(next, 'lastWarningMs'), action: { ...action, verdict: facts.verdict } };
    default:
      return { state: without(next, 'lastWarningMs'), action };
  }
}

const isRepeatDue = (lastMs: number | undefined, nowMs: number): boolean =>
  lastMs === undefined || nowMs - lastMs >= REPEAT_MS;

/**
 * The ladder's step for the processes that started after the last stop: they must not wait for the release of the
 * stopped ones' memory, nor hide behind it. `found` absent: they cause no action.
 */
function stepRestarted(
  { ladder, signaled, restarted: from }: EnforcementState,
  { afterSignal, nowMs }: EnforcementFacts,
  rules: LadderPolicy,
): {
  readonly restarted?: LadderState | undefined;
  readonly found?: { readonly state: LadderState; readonly action: Action };
} {
  if (ladder.rung !== 'killed' || ladder.unsure || signaled === undefined || !afterSignal?.holdsMemory) return {};
  const { stoppedAtMs } = ladder;
  const start = from ?? { ...CALM, ...(stoppedAtMs !== undefined && { stoppedAtMs }) };
  const next = step(start, { verdict: afterSignal.verdict, holdsMemory: true, nowMs }, rules);
  // Kept until the kill is done: a refused one is decided again with the next sample.
  if (next.action.kind === 'kill') return { restarted: from, found: next };
  // Soft excess has no consequence before the stop is over, so its time does not run until then.
  const { kind } = next.action;
  const isHeldBack = kind === 'close-gate' || kind === 'terminate';
  const restarted: LadderState = isHeldBack ? { ...next.state, rung: 'warned' } : next.state;
  return kind === 'warn' ? { restarted, found: { state: ladder, action: next.action } } : { restarted };
}

function without<K extends keyof EnforcementState>(state: EnforcementState, ...names: readonly K[]): EnforcementState {
  if (names.every((name) => state[name] === undefined)) return state;
  const next = { ...state };
  for (const name of names) delete (next as Record<string, unknown>)[name];
  return next;
}
