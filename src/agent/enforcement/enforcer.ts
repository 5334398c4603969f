// The enforcer: at each sample, asks src/policy/enforcement.ts for every container what is due, carries it out (audit
// log, gate, signals) and keeps the new state. Makes no decision of its own and reads nothing but the node's state.

import type { Mode } from '../../api/request.ts';
import type { Logger } from '../../common/logger.ts';
import {
  adopt,
  afterStop,
  type Decision,
  decide,
  type EnforcementPolicy,
  type EnforcementState,
  INITIAL,
} from '../../policy/enforcement.ts';
import type { Verdict } from '../../policy/memory-verdict.ts';
import { effectiveMode } from '../../policy/mode.ts';
import { countStop, recentStops, type Stop, stopOrder } from '../../policy/stop-rate.ts';
import type { LiveGrant } from '../grants/live-grant.ts';
import type { Registry } from '../grants/registry.ts';
import type { Native } from '../os/addon.ts';
import type { ContainerState, NodeState } from '../usage/node-usage.ts';
import { type ActionRecord, type NewRecord, recordOf } from './action-record.ts';
import type { Audit } from './audit-log.ts';
import { factsOf } from './facts.ts';
import { restore } from './resume.ts';
import { createStopper, type StopPods } from './stop.ts';

export const ENFORCER_LIMITS = { staleMs: 3000, mostStopsPerMinute: 6 };

type Enforcer = {
  /** Acts on one state of the node; returns what was done. */
  act(node: NodeState): readonly ActionRecord[];
};

/** In milliseconds. The time of day can be set, which must neither cause nor prevent a stop. */
export type Clocks = {
  /** The time of day, for what people read and for the age of samples. */
  readonly now: () => number;
  /** Monotonic; for all durations. */
  readonly steady: () => number;
};

type EnforcerOptions = {
  readonly registry: Pick<Registry, 'get' | 'touch'>;
  readonly native: Native;
  readonly audit: Audit;
  readonly policy: EnforcementPolicy;
  /** Of the node now; an administrator can change it while the agent runs. */
  readonly mode: () => Mode;
  readonly clocks: Clocks;
  readonly pods?: StopPods;
  readonly log: Pick<Logger, 'warn'>;
};

type Done = { readonly state: EnforcementState; readonly record: ActionRecord };

/** Carries out decisions, one container at a time: records, gate, signals. Counts the stops of the last minute. */
function createCarryOut(options: EnforcerOptions, earlierStops: readonly Stop[]) {
  const { registry, native, audit, pods, log, clocks } = options;
  const { now, steady } = clocks;
  const stopContainer = createStopper({ native, audit, pods, log });
  let stops = earlierStops;

  /** Writes the record and counts the stop; the state that follows from that. */
  const write = (state: EnforcementState, record: ActionRecord): EnforcementState => {
    audit.add(record);
    const counted = countStop(stops, record, state.isStopCounted === true, steady());
    stops = counted.stops;
    return { ...state, isStopCounted: counted.isStopCounted === true };
  };
  const setGate = (live: LiveGrant, isClosed: boolean): void => {
    live.gateClosed = isClosed;
    registry.touch(live);
  };

  const stop = (container: ContainerState, live: LiveGrant, action: StopAction, state: EnforcementState): Done => {
    const { kind, verdict } = action;
    const atMs = now();
    const { outcome, hit, signaled } = stopContainer(container, kind, verdict, atMs);
    setGate(live, false); // the next process of this grant starts with an open gate
    const result = { result: outcome, processes: hit };
    const record = recordOf({ grant: container.grant, action: kind, verdict, atMs, ...result });
    return { state: write(afterStop(state, signaled), record), record };
  };

  return {
    recentStops: () => recentStops(stops, steady()),
    /** Where it throws, the decision has not come into force. Undefined: there is nothing to do. */
    carryOut(container: ContainerState, live: LiveGrant, { state, action }: Decision): Done | undefined {
      if (action.kind === 'none') return undefined;
      const { verdict } = action;
      if (action.kind === 'kill' || action.kind === 'terminate')
        return stop(container, live, { kind: action.kind, verdict }, state);
      const more: Partial<NewRecord> = {
        ...('refusal' in action && { refusal: action.refusal }),
        ...('after' in action && { after: action.after }),
      };
      const result = action.kind === 'refuse' ? 'refused' : action.kind === 'stuck' ? 'stuck' : 'done';
      const base = { grant: container.grant, action: action.kind, verdict, atMs: now(), result } as const;
      // The record comes first: an agent that ends in between leaves no gate closed without one.
      const record = recordOf({ ...base, ...more });
      const after = write(state, record);
      if (action.kind === 'close-gate' || action.kind === 'open-gate') setGate(live, action.kind === 'close-gate');
      return { state: after, record };
    },
  };
}

export function createEnforcer(options: EnforcerOptions): Enforcer {
  const { registry, audit, policy, clocks, log } = options;
  const { now, steady } = clocks;
  let interrupted = audit.interrupted ? [audit.interrupted] : [];
  for (const record of interrupted) audit.add(record);
  const restored = restore(audit.steps(), { dateMs: now(), steadyMs: steady() });
  const states = new Map<string, EnforcementState>(restored.states);
  const { carryOut, recentStops } = createCarryOut(options, restored.stops);

  /** One sample later for one container. */
  const actOn = (container: ContainerState, node: NodeState, records: ActionRecord[]): void => {
    const { id } = container.grant;
    const live = registry.get(id);
    if (!live) return;
    const { mode } = effectiveMode(options.mode(), live.grant.enforcement);
    const sampleAgeMs = now() - node.sample.atMs;
    const moment = { node, states, recentStops: recentStops(), nowMs: steady(), sampleAgeMs, policy };
    const facts = factsOf(container, mode, moment);
    for (const next of [adopt, decide]) {
      const decision = next(states.get(id) ?? INITIAL, facts, policy);
      const done = carryOut(container, live, decision);
      states.set(id, done?.state ?? decision.state);
      if (done) records.push(done.record);
    }
  };

  return {
    act(node) {
      const records = [...interrupted];
      interrupted = [];
      const alive = new Set(node.containers.map(({ grant }) => grant.id));
      for (const id of states.keys()) if (!alive.has(id)) states.delete(id);
      for (const container of inStopOrder(node.containers, states, recentStops())) {
        try {
          actOn(container, node, records);
        } catch (error) {
          const { namespace, pod } = container.grant;
          log.warn(`cannot enforce the grant of ${namespace}/${pod}: ${(error as Error).stack ?? error}`);
        }
      }
      return records;
    },
  };
}

type StopAction = { readonly kind: 'kill' | 'terminate'; readonly verdict: Verdict };

/** Containers in the order in which the rate of stops serves them. */
function inStopOrder(
  containers: readonly ContainerState[],
  states: ReadonlyMap<string, EnforcementState>,
  recent: readonly Stop[],
): readonly ContainerState[] {
  const isWaiting = [...states.values()].some(({ waitingSinceMs }) => waitingSinceMs !== undefined);
  const isCalm = ({ verdict }: ContainerState) => verdict.severity === 'within';
  if (recent.length === 0 && !isWaiting && containers.every(isCalm)) return containers;
  const priorityOf = ({ grant: { id }, verdict }: ContainerState) => ({
    stops: recent.filter(({ grantId }) => grantId === id).length,
    waitingSinceMs: states.get(id)?.waitingSinceMs,
    overBytes: verdict.severity === 'within' || verdict.reason === 'over-share' ? 0 : verdict.overBytes,
  });
  return containers
    .map((container) => ({ container, priority: priorityOf(container) }))
    .toSorted((a, b) => stopOrder(a.priority, b.priority))
    .map(({ container }) => container);
}
