// Where containers stood on the ladder when an agent before this one ended, by what it wrote down: pure. What was begun is gone on
// with as far as it is sure whom it hit: a stop is not repeated while its memory is on its way back, nor a SIGTERM to those that
// have it, and whoever has come since is judged anew.
import { CALM, type LadderState } from '../../policy/ladder.ts';
import type { OverReason } from '../../policy/memory-verdict.ts';
import type { ActionRecord } from './action-record.ts';
import { keyOf } from './targets.ts';

export type Resumed = {
  readonly state: LadderState;
  /** Whom the last signal was for; undefined: whoever is in the container. */
  readonly hit: ReadonlySet<string> | undefined;
  /** The gate was closed; it opened with the agent's end. */
  readonly wasGated: OverReason | undefined;
};

/** By the grant's id. `nowMs`, and what `steadyOf` makes of a record's time of day: of the clock that the ladder goes by. */
export function resumedOf(
  records: readonly ActionRecord[],
  steadyOf: (atMs: number) => number,
  nowMs: number,
): ReadonlyMap<string, Resumed> {
  const resumed = new Map<string, Resumed>();
  for (const record of records) {
    const next = after(resumed.get(record.grantId), record, steadyOf(record.atMs), nowMs);
    if (next) resumed.set(record.grantId, next);
  }
  return resumed;
}

function after(
  before: Resumed | undefined,
  { action, result, reason, processes }: ActionRecord,
  atMs: number,
  nowMs: number,
): Resumed | undefined {
  const { stoppedAtMs } = before?.state ?? CALM;
  const calm: LadderState = { ...CALM, ...(stoppedAtMs !== undefined && { stoppedAtMs }) };
  const of = reason === 'none' ? {} : { reason };
  const hit = processes.length === 0 ? undefined : new Set(processes.map(keyOf));
  const begun = { hit, wasGated: undefined };
  switch (action) {
    case 'kill': {
      const unsure = result === 'interrupted' && { unsure: true };
      const state: LadderState = { ...calm, ...of, ...unsure, rung: 'killed', rungSinceMs: atMs, stoppedAtMs: atMs };
      return { ...begun, state };
    }
    case 'terminate':
      // Its grace begins anew: nobody saw what it did meanwhile. Where the agent ended just then it may have had its SIGTERM, and a
      // second one tells many programs to end at once.
      if (result !== 'sent' && result !== 'interrupted') return { ...begun, state: calm, hit: undefined };
      return { ...begun, state: { ...calm, ...of, rung: 'terminating', rungSinceMs: nowMs } };
    case 'close-gate':
      return { state: calm, hit: undefined, wasGated: reason === 'none' ? 'over-limit' : reason };
    case 'stuck':
      return { state: { ...calm, stuck: true }, hit: undefined, wasGated: undefined };
    case 'warn':
    case 'open-gate':
    case 'released':
      return { state: calm, hit: undefined, wasGated: undefined };
    default:
      return before; // says nothing of where it stands
  }
}
