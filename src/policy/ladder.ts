// The enforcement ladder: a state machine with one step per fresh sample and at most one action per step (warn, close
// the gate, SIGTERM, SIGKILL). Pure: time is an argument and the state a plain value. It names no process; the enforcer
// finds the processes.

import type { Mode } from '../api/request.ts';
import type { OverReason, Verdict } from './memory-verdict.ts';

/** Times in seconds. */
export type LadderPolicy = {
  readonly mode: Mode;
  /** Soft path: SIGTERM after this time and this many consecutive fresh samples over the limit. */
  readonly softSeconds: number;
  readonly softSamples: number;
  /** Hard path: SIGKILL after this many consecutive fresh samples, or one more where other samples lie between them. */
  readonly hardSamples: number;
  /** Between SIGTERM and SIGKILL on the soft path. */
  readonly graceSeconds: number;
  /** Pause of the soft path after a stop; of the hard path, too, where the stop released no memory. */
  readonly coolDownSeconds: number;
  /** A container that still holds memory this long after SIGKILL is stuck. */
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

/** Hard samples within this time count together, so that releasing memory for a moment gains nothing. */
const APART_MS = 10_000;

/** `reported`: a stop was due in report mode. */
type Rung = 'calm' | 'warned' | 'reported' | 'gated' | 'terminating' | 'killed';

export type LadderState = {
  readonly rung: Rung;
  /** When this run of consecutive samples over the limit began. */
  readonly overSinceMs?: number;
  readonly samples: number;
  readonly hardSamples: number;
  /** Hard samples that need not be consecutive, and when the last one was. */
  readonly hardApart?: { readonly samples: number; readonly lastMs: number };
  /** When the present rung was reached. */
  readonly rungSinceMs: number;
  /** The last stop, for the cool-down. */
  readonly stoppedAtMs?: number;
  /** That stop released no memory: another signal would not help, and would use up the node's rate of stops. */
  readonly stuck?: boolean;
  /** An agent ended during that stop: whether the signal was sent is unknown. */
  readonly unsure?: boolean;
  /** The reason of the last excess. */
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
  /** `after`: the reason of the excess that ended. */
  | { readonly kind: 'open-gate' | 'released' | 'stuck'; readonly after: OverReason | undefined };

const NONE: Action = { kind: 'none' };

/** One fresh sample. `holdsMemory`: the container holds memory on any GPU; after a stop this separates released from
 * stuck. */
type LadderSample = { readonly verdict: Verdict; readonly holdsMemory: boolean; readonly nowMs: number };

export function step(
  state: LadderState,
  sample: LadderSample,
  policy: LadderPolicy,
): { readonly state: LadderState; readonly action: Action } {
  const { verdict, holdsMemory, nowMs } = sample;
  if (state.rung === 'killed' && !(state.unsure && holdsMemory)) return afterKill(state, holdsMemory, nowMs, policy);
  // It still runs, so the signal did not reach it: start again.
  if (state.rung === 'killed') return step({ ...CALM, ...stoppedAt(state) }, sample, policy);
  if (policy.mode === 'off')
    return verdict.severity === 'within' ? calmDown(state, nowMs) : { state: CALM, action: NONE };
  if (verdict.severity === 'within') {
    const { state: calm, action } = calmDown(state, nowMs);
    const isRecent = state.hardApart && nowMs - state.hardApart.lastMs <= APART_MS;
    return { state: { ...calm, ...(isRecent && { hardApart: state.hardApart }) }, action };
  }

  // Time over a compute share does not count as time over a memory grant.
  const isOtherResource =
    state.reason !== undefined && (state.reason === 'over-share') !== (verdict.reason === 'over-share');
  const samples = isOtherResource ? 1 : state.samples + 1;
  const isHard = verdict.severity === 'hard';
  const hardSamples = isHard ? state.hardSamples + 1 : 0;
  const hardApart = isHard ? oneMore(state.hardApart, nowMs) : state.hardApart;
  const overSinceMs = isOtherResource ? nowMs : (state.overSinceMs ?? nowMs);
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
  // An excess of compute is only suspected until the closed gate has tested it.
  const softDue = timeIsUp && (reason !== 'over-share' || policy.mode === 'report');

  // A container with earlier hard samples was warned already.
  if (state.rung === 'calm' && !isApartDue) return reach('warned', { kind: 'warn', reason, verdict });
  if (resting && (!hardDue || state.stuck)) return { state: over, action: NONE };
  if (policy.mode === 'report') {
    const due = (hardDue || softDue) && (state.rung === 'warned' || state.rung === 'calm');
    if (!due) return { state: over, action: NONE };
    const { hardApart: _, ...reported } = over;
    return {
      state: { ...reported, rung: 'reported', rungSinceMs: nowMs },
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
  const continues = before !== undefined && nowMs - before.lastMs <= APART_MS;
  return { samples: continues ? before.samples + 1 : 1, lastMs: nowMs };
}

/**
 * Another mode is in force from now on. A closed gate opens and counts start from zero, so that excess under the
 * previous mode is not counted.
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
