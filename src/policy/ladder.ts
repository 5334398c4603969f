// The enforcement ladder as a state machine: one step per fresh sample, at most one action out. Pure: time is an argument,
// the state is a plain value that can be stored over a restart. It never names a process; whom an action hits is worked
// out, and checked again, where it is carried out.

import type { Mode } from '../api/request.ts';
import type { OverReason, Verdict } from './memory-verdict.ts';

/** Times in seconds. */
export type LadderPolicy = {
  readonly mode: Mode;
  /** Soft path: SIGTERM after so long and so many consecutive fresh samples over the limit. */
  readonly softSeconds: number;
  readonly softSamples: number;
  /** Hard path: SIGKILL after so many consecutive fresh samples, or one more where others lie between them. */
  readonly hardSamples: number;
  /** Between SIGTERM and SIGKILL on the soft path. */
  readonly graceSeconds: number;
  /** After a stop the soft path rests for so long; the hard path, too, while what was stopped is stuck. */
  readonly coolDownSeconds: number;
  /** A container that has not let go of its memory so long after SIGKILL is stuck. */
  readonly releaseSeconds: number;
};

export const DEFAULT_LADDER: LadderPolicy = {
  mode: 'enforce',
  softSeconds: 10,
  softSamples: 5,
  hardSamples: 2,
  graceSeconds: 10,
  coolDownSeconds: 30,
  releaseSeconds: 15,
};

/** Who gives back for a moment gains nothing by it: hard samples belong together that come within so long of one another. */
const APART_MS = 10_000;

/** `reported`: in report mode, where a stop would have been. */
export type Rung = 'calm' | 'warned' | 'reported' | 'gated' | 'terminating' | 'killed';

export type LadderState = {
  readonly rung: Rung;
  /** When it first was over, in this run of consecutive samples. */
  readonly overSinceMs?: number;
  readonly samples: number;
  readonly hardSamples: number;
  /** Hard samples, whatever lies between them, and when the last one was. */
  readonly hardApart?: { readonly samples: number; readonly lastMs: number };
  /** When the present rung was reached. */
  readonly rungSinceMs: number;
  /** The last stop, for the cool-down. */
  readonly stoppedAtMs?: number;
  /** That stop released nothing: another signal will not help, and would use up the node's rate of stops. */
  readonly stuck?: boolean;
  /** Whether that stop's signal was sent is not known: an agent ended while it did it. */
  readonly unsure?: boolean;
  /** What it was last over by. */
  readonly reason?: OverReason;
};

export const CALM: LadderState = { rung: 'calm', samples: 0, hardSamples: 0, rungSinceMs: 0 };

export type Action =
  | { readonly kind: 'none' }
  | {
      readonly kind: 'warn' | 'close-gate' | 'terminate' | 'kill';
      readonly reason: OverReason;
      readonly verdict: Verdict;
    }
  | { readonly kind: 'would-stop'; readonly reason: OverReason; readonly verdict: Verdict }
  /** `after`: what it was over by. */
  | { readonly kind: 'open-gate' | 'released' | 'stuck'; readonly after: OverReason | undefined };

const NONE: Action = { kind: 'none' };

/** One fresh sample later. `holdsMemory`: the container still holds memory of any GPU (tells release from being stuck). */
export function step(
  state: LadderState,
  verdict: Verdict,
  holdsMemory: boolean,
  nowMs: number,
  policy: LadderPolicy,
): { readonly state: LadderState; readonly action: Action } {
  if (state.rung === 'killed' && !(state.unsure && holdsMemory)) return afterKill(state, holdsMemory, nowMs, policy);
  // It lives on, so that it was not hit: all begins anew.
  if (state.rung === 'killed') return step({ ...CALM, ...stoppedAt(state) }, verdict, holdsMemory, nowMs, policy);
  if (policy.mode === 'off')
    return verdict.severity === 'within' ? calmDown(state, nowMs) : { state: CALM, action: NONE };
  if (verdict.severity === 'within') {
    const { state: calm, action } = calmDown(state, nowMs);
    const isRecent = state.hardApart && nowMs - state.hardApart.lastMs <= APART_MS;
    return { state: { ...calm, ...(isRecent && { hardApart: state.hardApart }) }, action };
  }

  // Time over a share is no time over a grant of memory.
  const isOfAnother =
    state.reason !== undefined && (state.reason === 'over-share') !== (verdict.reason === 'over-share');
  const samples = isOfAnother ? 1 : state.samples + 1;
  const isHard = verdict.severity === 'hard';
  const hardSamples = isHard ? state.hardSamples + 1 : 0;
  const hardApart = isHard ? oneMore(state.hardApart, nowMs) : state.hardApart;
  const overSinceMs = isOfAnother ? nowMs : (state.overSinceMs ?? nowMs);
  const { reason } = verdict;
  const over: LadderState = { ...state, samples, hardSamples, ...(hardApart && { hardApart }), overSinceMs, reason };
  const reach = (rung: Rung, action: Action): { state: LadderState; action: Action } => ({
    state: { ...over, rung, rungSinceMs: nowMs },
    action,
  });

  const resting = state.stoppedAtMs !== undefined && nowMs - state.stoppedAtMs < policy.coolDownSeconds * 1000;
  const isApartDue = isHard && (hardApart?.samples ?? 0) > policy.hardSamples;
  const hardDue = hardSamples >= policy.hardSamples || isApartDue;
  const timeIsUp = samples >= policy.softSamples && nowMs - overSinceMs >= policy.softSeconds * 1000;
  // Who is only suspected is put to the test by the closed gate, and is stopped when it fails.
  const softDue = timeIsUp && (reason !== 'over-share' || policy.mode === 'report');

  // Who is over again and again was warned before.
  if (state.rung === 'calm' && !isApartDue) return reach('warned', { kind: 'warn', reason, verdict });
  if (resting && (!hardDue || state.stuck)) return { state: over, action: NONE };
  if (policy.mode === 'report') {
    const due = (hardDue || softDue) && (state.rung === 'warned' || state.rung === 'calm');
    if (!due) return { state: over, action: NONE };
    const { hardApart: _, ...told } = over;
    return {
      state: { ...told, rung: 'reported', rungSinceMs: nowMs },
      action: { kind: 'would-stop', reason, verdict },
    };
  }
  if (hardDue) return stop(over, nowMs, { kind: 'kill', reason, verdict });
  if (state.rung === 'terminating') {
    const graceOver = nowMs - state.rungSinceMs >= policy.graceSeconds * 1000;
    return graceOver ? stop(over, nowMs, { kind: 'kill', reason, verdict }) : { state: over, action: NONE };
  }
  if (softDue) return reach('terminating', { kind: 'terminate', reason, verdict });
  const halfway = nowMs - overSinceMs >= policy.softSeconds * 500;
  if (state.rung === 'warned' && halfway) return reach('gated', { kind: 'close-gate', reason, verdict });
  return { state: over, action: NONE };
}

function oneMore(before: LadderState['hardApart'], nowMs: number): NonNullable<LadderState['hardApart']> {
  const goesOn = before !== undefined && nowMs - before.lastMs <= APART_MS;
  return { samples: goesOn ? before.samples + 1 : 1, lastMs: nowMs };
}

/**
 * Another mode holds for it from now on. What was begun under the one before ends with it, and counts start anew, so that nobody
 * is stopped for what he did while nothing would have come of it.
 */
export function changeMode(
  state: LadderState,
  nowMs: number,
): { readonly state: LadderState; readonly action: Action } {
  return state.rung === 'killed' ? { state, action: NONE } : calmDown(state, nowMs);
}

function stop(
  { hardApart: _, ...state }: LadderState,
  nowMs: number,
  action: Action,
): { state: LadderState; action: Action } {
  return { state: { ...state, rung: 'killed', rungSinceMs: nowMs, stoppedAtMs: nowMs, stuck: false }, action };
}

function afterKill(
  state: LadderState,
  holdsMemory: boolean,
  nowMs: number,
  policy: LadderPolicy,
): { state: LadderState; action: Action } {
  const rested: LadderState = { ...CALM, rungSinceMs: nowMs, ...stoppedAt(state) };
  if (!holdsMemory) return { state: rested, action: { kind: 'released', after: state.reason } };
  if (nowMs - state.rungSinceMs < policy.releaseSeconds * 1000) return { state, action: NONE };
  return { state: { ...rested, stuck: true }, action: { kind: 'stuck', after: state.reason } };
}

function calmDown(state: LadderState, nowMs: number): { state: LadderState; action: Action } {
  const gateWasClosed = state.rung === 'gated' || state.rung === 'terminating';
  return {
    state: { ...CALM, rungSinceMs: nowMs, ...stoppedAt(state) },
    action: gateWasClosed ? { kind: 'open-gate', after: state.reason } : NONE,
  };
}

function stoppedAt(state: LadderState): { stoppedAtMs?: number } {
  return state.stoppedAtMs === undefined ? {} : { stoppedAtMs: state.stoppedAtMs };
}
