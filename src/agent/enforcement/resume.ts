// The enforcement state of each grant when the agent starts, from the audit log of the agent before it. Pure. A stop is
// not repeated while its memory is being released, nor a SIGTERM sent again to the same processes; processes that
// started since are judged without regard to it.
import type { EnforcementState } from '../../policy/enforcement.ts';
import { CALM, type LadderState } from '../../policy/ladder.ts';
import { countStop, type Stop } from '../../policy/stop-rate.ts';
import type { ActionRecord } from './action-record.ts';
import { keyOf } from './targets.ts';

/** How far the clock may have been set back between two agents. */
export const CLOCK_SKEW_MS = 5000;

/** The time of day and a clock that is never set, in milliseconds, of one moment. */
type Now = { readonly dateMs: number; readonly steadyMs: number };

type Restored = {
  readonly states: ReadonlyMap<string, EnforcementState>;
  readonly stops: readonly Stop[];
};

export function restore(records: readonly ActionRecord[], { dateMs, steadyMs }: Now): Restored {
  const states = new Map<string, EnforcementState>();
  let stops: readonly Stop[] = [];
  for (const record of records) {
    const atMs = steadyMs - Math.max(0, dateMs - record.atMs);
    const before = states.get(record.grantId);
    // The time of a record from the future is unknown: a clock that was set back must not let old stops use up the
    // rate.
    const isFuture = record.atMs > dateMs + CLOCK_SKEW_MS;
    const counted = isFuture ? { stops } : countStop(stops, record, before?.isStopCounted === true, atMs);
    stops = counted.stops;
    const after = { ...stateAfter(before, record, atMs, steadyMs) };
    delete (after as { isStopCounted?: boolean }).isStopCounted;
    const isStopCounted = isFuture ? before?.isStopCounted : counted.isStopCounted;
    states.set(record.grantId, { ...after, ...(isStopCounted && { isStopCounted }) });
  }
  return { states, stops };
}

function stateAfter(
  before: EnforcementState = { ladder: CALM },
  { action, result, reason, processes }: ActionRecord,
  atMs: number,
  nowMs: number,
): EnforcementState {
  const { stoppedAtMs } = before.ladder;
  const calm: LadderState = { ...CALM, ...(stoppedAtMs !== undefined && { stoppedAtMs }) };
  const over = reason === 'none' ? {} : { reason };
  const signaled = processes.length > 0 && { signaled: new Set(processes.map(keyOf)) };
  switch (action) {
    case 'kill': {
      const unsure = result === 'interrupted' && { unsure: true };
      const stopped = { rung: 'killed', rungSinceMs: atMs, stoppedAtMs: atMs } as const;
      return { ladder: { ...calm, ...over, ...unsure, ...stopped }, ...signaled };
    }
    case 'terminate':
      // Its grace period starts again: the time between the two agents is unknown. An interrupted SIGTERM counts as
      // sent, because many programs end at once on a second one.
      if (result !== 'sent' && result !== 'interrupted') return { ladder: calm };
      return { ladder: { ...calm, ...over, rung: 'terminating', rungSinceMs: nowMs }, ...signaled };
    case 'close-gate':
      return { ladder: calm, gateOpenedAfter: reason === 'none' ? 'over-limit' : reason };
    case 'stuck':
      return { ladder: { ...calm, stuck: true } };
    case 'warn':
    case 'open-gate':
    case 'released':
      return { ladder: calm };
    default:
      return before;
  }
}
