// Carries out what the ladder says, container by container, in the order that the rate of stops gives them. Refuses, with a
// written reason, whenever the ground is not firm: data that is old or does not add up, too many stops in a minute. Reads
// nothing but the node's state.

import type { Mode } from '../../api/request.ts';
import { type Action, CALM, changeMode, type LadderPolicy, type LadderState, step } from '../../policy/ladder.ts';
import { groundOf } from '../../policy/memory-evidence.ts';
import type { OverReason, Tolerance, Verdict } from '../../policy/memory-verdict.ts';
import { effectiveMode } from '../../policy/mode.ts';
import type { ContainerBook } from '../attribution/container-index.ts';
import type { Grant } from '../grants/grant.ts';
import type { LiveGrant, Registry } from '../grants/registry.ts';
import type { Native } from '../os/addon.ts';
import type { ContainerState, NodeState } from '../usage/node-usage.ts';
import { type ActionRecord, describe, recordOf } from './action-record.ts';
import type { Audit } from './audit-log.ts';
import { toldOf } from './evidence.ts';
import { byTurn, createStops, whyNotNow } from './rate-limit.ts';
import { createNewcomers, holdsOf, isOther } from './restarted-processes.ts';
import { type Resumed, resumedOf } from './resume.ts';
import { findTargets, keyOf, killTargets, type Signaled, signalTargets, type Target, unifiedMount } from './targets.ts';

export type EnforcerPolicy = LadderPolicy &
  Tolerance & {
    /** A sample older than this is no ground for acting. */
    readonly staleMs: number;
    readonly mostStopsPerMinute: number;
  };

export const ENFORCER_LIMITS = { staleMs: 3000, mostStopsPerMinute: 6 };

export type Enforcer = {
  /** Acts on one state; returns what was done. */
  act(state: NodeState): readonly ActionRecord[];
  readonly policy: EnforcerPolicy;
};

/** In milliseconds. People set the time of day, and nobody may be stopped or spared for that. */
export type Clocks = {
  /** The time of day, for what people read and for the age of samples. */
  readonly now: () => number;
  /** Since whenever; never jumps. For all that lasts. */
  readonly steady: () => number;
};

const SIGTERM = 15;
const SIGKILL = 9;
/** What is said over and over of one container is written down so often. */
const SAID_EVERY_MS = 10_000;
/** Nobody is stopped for an older sample, unless it was taken after the stop was due: a driver may be slow every time. */
const FRESH_MS = 250;
/** For so long a container's largest process must be over by itself, where more is told for processes than for the GPU. */
const DOUBT_MS = 3000;
/** Whose container has others in the place of those that had the SIGTERM a second time within so long is not let off again. */
const LET_OFF_MS = 60_000;
/** A clock may have been set a little between two agents. */
export const AHEAD_MS = 5000;
/** What a stop gives back is waited for so long, before somebody else is stopped for want of room. */
const ROOM_COMES_MS = 5000;

export function createEnforcer(
  registry: Registry,
  native: Native,
  audit: Audit,
  policy: EnforcerPolicy,
  clocks: Clocks,
  pods?: {
    readonly containers: Pick<ContainerBook, 'nameOf'>;
    /** What its people read afterwards must be written while the container still is there. */
    readonly beforeStop: (grant: Grant, message: string) => void;
  },
  onProblem: (text: string) => void = (text) => {
    throw new Error(text);
  },
): Enforcer {
  const ladders = new Map<string, LadderState>();
  /** That was in force for it with the sample before. */
  const modes = new Map<string, Mode>();
  const refusedAtMs = new Map<string, number>();
  /** While nothing else was done than to warn. */
  const warnedAtMs = new Map<string, number>();
  /** Since when a stop is due that the rate does not allow. */
  const waitingSinceMs = new Map<string, number>();
  /** Since when a stop is due for which the sample at hand was too old. */
  const dueSinceMs = new Map<string, number>();
  const letOffMs = new Map<string, number>();
  /** Since when a stop is due that what is told for the GPU speaks against. */
  const doubtedSinceMs = new Map<string, number>();
  const mount = unifiedMount();
  const { now, steady } = clocks;
  const stops = createStops(steady);
  const newcomers = createNewcomers(policy, steady);
  let untold: readonly ActionRecord[] = [];
  if (audit.interrupted) {
    untold = [audit.interrupted];
    audit.add(audit.interrupted);
  }
  // A stop of before a restart counts for the cool-down and the rate, and what was begun is gone on with.
  const steadyOf = (atMs: number): number => steady() - Math.max(0, now() - atMs);
  // A record of a time to come is of no known time: a clock that is behind must not have old stops use up the rate.
  for (const record of audit.steps()) if (record.atMs <= now() + AHEAD_MS) stops.count(record, steadyOf(record.atMs));
  /** Whom the last signal was for, also of an agent before this one. */
  const resumed = new Map<string, Resumed>(resumedOf(audit.steps(), steadyOf, steady()));
  for (const [id, { state }] of resumed) ladders.set(id, state);

  const done = (
    container: ContainerState,
    name: ActionRecord['action'],
    verdict: Verdict,
    result: string,
    hit: readonly Signaled[] = [],
    after?: OverReason,
    atMs = now(),
  ) => {
    const record = recordOf(container.grant, name, verdict, atMs, result, hit, after);
    audit.add(record);
    stops.count(record, steady());
    return record;
  };

  const stop = (
    container: ContainerState,
    live: LiveGrant,
    action: Action & { verdict: Verdict },
    signal: number,
  ): ActionRecord => {
    const name = signal === SIGKILL ? 'kill' : 'terminate';
    const seen: Target[] = container.gpus.flatMap((gpu) => gpu.processes);
    const hit: Signaled[] = [];
    const atMs = now();
    pods?.beforeStop(container.grant, describe(container.grant, name, action.verdict));
    const reached = new Set<string>();
    /** Who was reached was reached, and is told, counted and waited for, also where nobody else can be looked for. */
    const others = (): Target[] => {
      try {
        const all = findTargets(container.grant, native, seen, pods?.containers);
        return all.filter((target) => !reached.has(keyOf(target)));
      } catch (error) {
        if (hit.length === 0) throw error;
        const { namespace, pod } = container.grant;
        onProblem(`not all of ${namespace}/${pod} could be looked for: ${(error as Error).stack ?? error}`);
        return [];
      }
    };
    // A fork may slip past one round; a group is killed whole.
    for (let round = 0; round < 10; round++) {
      const targets = others();
      if (targets.length === 0) break;
      if (round === 0) {
        const begun = targets.map((target) => ({ ...target, result: 'not known' }));
        audit.begin(recordOf(container.grant, name, action.verdict, atMs, 'begun', begun));
      }
      if (signal !== SIGKILL) {
        hit.push(...signalTargets(targets, native, signal));
        break;
      }
      const killed = killTargets(container.grant, targets, native, mount, pods?.containers);
      hit.push(...killed.hit);
      if (killed.whole) break;
      // The end of a process takes its time, and another signal would not make it shorter.
      for (const target of killed.hit) if (target.result !== 'moved') reached.add(keyOf(target));
    }
    live.gateClosed = false; // whoever comes next in this grant starts afresh
    registry.touch(live);
    const sent = hit.some((target) => target.result === 'sent');
    const isOver = hit.every(({ result }) => result === 'gone' || result === 'reused');
    const result = sent ? 'sent' : isOver ? 'nobody left' : 'refused';
    // Who starts anew before the memory of those is back is another matter: it must not wait for that, nor hide behind it.
    const state = ladders.get(container.grant.id) ?? CALM;
    resumed.set(container.grant.id, { state, hit: new Set([...seen, ...hit].map(keyOf)), wasGated: undefined });
    newcomers.forget(container.grant.id);
    return done(container, name, action.verdict, result, hit, undefined, atMs);
  };

  const stale = (state: NodeState): string | undefined => {
    const ageMs = now() - state.sample.atMs;
    return ageMs > policy.staleMs || ageMs < -policy.staleMs ? `the data is ${ageMs} ms old` : undefined;
  };

  /**
   * Is there a sample to wait for? After a while in which nothing ran, older ones come first, and newer ones may say that all was given
   * back. By the steady clock, so that a time of day that is set does not put off a stop for ever.
   */
  const isForNext = ({ grant: { id } }: ContainerState, { sample }: NodeState): boolean => {
    const ageMs = now() - sample.atMs;
    const dueMs = dueSinceMs.get(id);
    if (ageMs <= FRESH_MS || (dueMs !== undefined && steady() - ageMs >= dueMs)) return false;
    if (dueMs === undefined) dueSinceMs.set(id, steady());
    return true;
  };

  const tooMany = ({ grant }: ContainerState): string | undefined => {
    if (stops.isBegun(grant.id)) return undefined;
    const why = whyNotNow(stops.recent(), grant, policy.mostStopsPerMinute);
    if (why !== undefined && !waitingSinceMs.has(grant.id)) waitingSinceMs.set(grant.id, steady());
    return why;
  };

  /** Has another one on that GPU been stopped just now, so that there may be room without this stop? */
  const isRoomComing = ({ grant }: ContainerState, gpuUuid: string, { containers }: NodeState): boolean =>
    containers.some((other) => {
      const { rung, rungSinceMs } = ladders.get(other.grant.id) ?? CALM;
      const isStopped = rung === 'killed' && steady() - rungSinceMs < ROOM_COMES_MS;
      return isStopped && other.grant.id !== grant.id && other.gpus.some((gpu) => gpu.gpuUuid === gpuUuid);
    });

  /** Containers in the order in which they may be stopped. */
  const inTurn = (containers: readonly ContainerState[]): readonly ContainerState[] => {
    const recent = stops.recent();
    const isCalm = ({ verdict }: ContainerState) => verdict.severity === 'within';
    if (recent.length === 0 && waitingSinceMs.size === 0 && containers.every(isCalm)) return containers;
    const turnOf = ({ grant: { id }, verdict }: ContainerState) => ({
      stops: recent.filter(({ grantId }) => grantId === id).length,
      waitingSinceMs: waitingSinceMs.get(id),
      overBytes: verdict.severity === 'within' || verdict.reason === 'over-share' ? 0 : verdict.overBytes,
    });
    return containers
      .map((container) => ({ container, turn: turnOf(container) }))
      .toSorted((a, b) => byTurn(a.turn, b.turn))
      .map(({ container }) => container);
  };

  /** More memory is told for processes than for the GPU, so that it may not be over at all. */
  const doubt = (container: ContainerState, verdict: Verdict, state: NodeState): string | undefined => {
    if (verdict.severity === 'within' || verdict.reason === 'over-share') return undefined;
    const { id } = container.grant;
    const told = toldOf(container, verdict.worst.gpuUuid, state);
    if (told === undefined) return undefined;
    const ground = groundOf(verdict, told, policy);
    if (ground !== 'likely') doubtedSinceMs.delete(id);
    else if (!doubtedSinceMs.has(id)) doubtedSinceMs.set(id, steady());
    const lasts = steady() - (doubtedSinceMs.get(id) ?? steady()) >= DOUBT_MS;
    return ground === 'sure' || (ground === 'likely' && lasts)
      ? undefined
      : `processes are said to hold ${told.allBytes} bytes of a GPU of which ${told.usedBytes} are used`;
  };

  const isNews = (saidAtMs: Map<string, number>, { grant: { id } }: ContainerState): boolean => {
    const last = saidAtMs.get(id);
    if (last !== undefined && steady() - last < SAID_EVERY_MS) return false;
    saidAtMs.set(id, steady());
    return true;
  };

  /** Another mode holds for it than before: what the one before has begun is ended. */
  const changed = (container: ContainerState, live: LiveGrant, mode: Mode): ActionRecord | undefined => {
    const { id } = container.grant;
    const before = modes.get(id);
    modes.set(id, mode);
    if (before === undefined || before === mode) return undefined;
    const { state, action } = changeMode(ladders.get(id) ?? CALM, steady());
    ladders.set(id, state);
    waitingSinceMs.delete(id);
    newcomers.forget(id);
    if (action.kind !== 'open-gate') return undefined;
    live.gateClosed = false;
    registry.touch(live);
    return done(container, 'open-gate', container.verdict, 'done', [], action.after);
  };

  /** Of a container that an agent before this one had to do with: what is left of that by now. */
  const resume = (container: ContainerState): ActionRecord | undefined => {
    const { id } = container.grant;
    const before = resumed.get(id);
    if (before?.wasGated) {
      resumed.set(id, { ...before, wasGated: undefined });
      return done(container, 'open-gate', { severity: 'within' }, 'done', [], before.wasGated);
    }
    const { rung, stoppedAtMs } = ladders.get(id) ?? CALM;
    if (rung !== 'killed' && rung !== 'terminating') resumed.delete(id);
    // Who had the SIGTERM has ended: whoever is over now has had none.
    else if (
      rung === 'terminating' &&
      isOther(container, before?.hit) &&
      steady() - (letOffMs.get(id) ?? -LET_OFF_MS) >= LET_OFF_MS
    ) {
      letOffMs.set(id, steady());
      ladders.set(id, { ...CALM, ...(stoppedAtMs !== undefined && { stoppedAtMs }) });
      resumed.delete(id);
    }
    return undefined;
  };

  /** One sample later for one container. */
  const actOn = (container: ContainerState, state: NodeState, records: ActionRecord[]): void => {
    const live = registry.get(container.grant.id);
    if (!live) return;
    const { mode } = effectiveMode(policy.mode, live.grant.enforcement);
    const opened = changed(container, live, mode);
    if (opened) records.push(opened);
    // Over by what the driver does tell is over; what it does not tell is no proof of anything given back.
    if (!container.told && container.verdict.severity === 'within') return;
    const old = stale(state);
    const told = old === undefined && resumed.has(container.grant.id) ? resume(container) : undefined;
    if (told) records.push(told);
    const before = ladders.get(container.grant.id) ?? CALM;
    const holds = holdsOf(container, resumed.get(container.grant.id)?.hit);
    const rules = { ...policy, mode };
    const { state: after, action } =
      (old === undefined
        ? newcomers.step(container, before, resumed.get(container.grant.id)?.hit, state, rules)
        : undefined) ?? step(before, container.verdict, holds, steady(), rules);
    const isStop = action.kind === 'kill' || action.kind === 'terminate';
    const verdict = 'verdict' in action ? action.verdict : container.verdict;
    const worst = verdict.severity === 'within' ? '' : verdict.worst.gpuUuid;
    if (container.verdict.severity === 'within') waitingSinceMs.delete(container.grant.id);
    if (!isStop) dueSinceMs.delete(container.grant.id);
    // What is doubted for a while must be seen to be so all the time.
    if (!isStop || old !== undefined) doubtedSinceMs.delete(container.grant.id);
    if (old !== undefined && !isStop) return; // an old sample is none of the fresh ones that a step takes
    if (isStop && old === undefined && isForNext(container, state)) return;
    if (isStop && action.reason === 'no-room' && isRoomComing(container, worst, state)) return;
    const why = isStop ? (old ?? doubt(container, verdict, state) ?? tooMany(container)) : undefined;
    if (why !== undefined) {
      // The ladder stays where it was: the next firm sample decides again. It is written down now and then only.
      if (isNews(refusedAtMs, container)) records.push(done(container, 'refuse', verdict, why));
      return;
    }
    dueSinceMs.delete(container.grant.id);
    ladders.set(container.grant.id, after);
    if (action.kind !== 'none' && action.kind !== 'warn') warnedAtMs.delete(container.grant.id);
    switch (action.kind) {
      case 'none':
        break;
      case 'warn':
        // Who is over and within in turn would fill the audit, and push out of it what was done to others.
        if (isNews(warnedAtMs, container)) records.push(done(container, 'warn', verdict, 'done'));
        break;
      case 'kill':
        records.push(stop(container, live, action, SIGKILL));
        break;
      case 'terminate':
        records.push(stop(container, live, action, SIGTERM));
        break;
      case 'close-gate':
      case 'open-gate': {
        const after = 'after' in action ? action.after : undefined;
        // Its line first: an agent that ends in between leaves nobody held back without a word.
        records.push(done(container, action.kind, container.verdict, 'done', [], after));
        live.gateClosed = action.kind === 'close-gate';
        registry.touch(live);
        break;
      }
      case 'released':
      case 'stuck': {
        const result = action.kind === 'stuck' ? 'stuck' : 'done';
        records.push(done(container, action.kind, container.verdict, result, [], action.after));
        break;
      }
      default:
        records.push(done(container, action.kind, verdict, 'done'));
    }
  };

  return {
    policy,
    act(state) {
      const records: ActionRecord[] = [...untold];
      untold = [];
      const alive = new Set(state.containers.map((container) => container.grant.id));
      const said = [refusedAtMs, warnedAtMs, waitingSinceMs, dueSinceMs, doubtedSinceMs, letOffMs];
      newcomers.forgetAllBut(alive);
      for (const map of [ladders, modes, resumed, ...said]) {
        for (const id of map.keys()) if (!alive.has(id)) map.delete(id);
      }
      stops.forgetAllBut(alive);
      for (const container of inTurn(state.containers)) {
        const { id } = container.grant;
        const before = ladders.get(id);
        try {
          actOn(container, state, records);
        } catch (error) {
          // What went wrong with one must not let the others go, nor be taken for done.
          ladders.set(id, before ?? CALM);
          onProblem(
            `${container.grant.namespace}/${container.grant.pod} cannot be held to its grant: ${(error as Error).stack ?? error}`,
          );
        }
      }
      return records;
    },
  };
}
