// Who is in a container beside those that a signal was for: whether they are over by themselves, and where they stand on the ladder
// while the memory of those that were hit is on its way back.
import { type Action, CALM, type LadderPolicy, type LadderState, step } from '../../policy/ladder.ts';
import type { Tolerance } from '../../policy/memory-verdict.ts';
import type { ContainerState, NodeState } from '../usage/node-usage.ts';
import { verdictWithout } from './evidence.ts';
import { keyOf } from './targets.ts';

/** Does the container hold memory, or do these of its processes? */
export const holdsOf = ({ gpus }: ContainerState, hit: ReadonlySet<string> | undefined): boolean =>
  hit
    ? gpus.some(({ processes }) => processes.some((process) => hit.has(keyOf(process))))
    : gpus.some(({ usedBytes }) => usedBytes > 0);

/** Is it over by what others than these hold? */
export const isOther = (container: ContainerState, hit: ReadonlySet<string> | undefined): boolean =>
  container.verdict.severity !== 'within' && hit !== undefined && !holdsOf(container, hit);

export type Newcomers = {
  /**
   * One sample later for those of a container whom its last stop was not for. Undefined: this sample asks for nothing.
   * `before`: where the container stands.
   */
  step(
    container: ContainerState,
    before: LadderState,
    hit: ReadonlySet<string> | undefined,
    state: NodeState,
    rules: LadderPolicy,
  ): { readonly state: LadderState; readonly action: Action } | undefined;
  forget(grantId: string): void;
  forgetAllBut(grantIds: ReadonlySet<string>): void;
};

/** `steady`: a clock that nobody sets, in milliseconds. */
export function createNewcomers(tolerance: Tolerance, steady: () => number): Newcomers {
  const ladders = new Map<string, LadderState>();
  return {
    step(container, before, hit, state, rules) {
      const { id } = container.grant;
      if (before.rung !== 'killed' || before.unsure || hit === undefined || !holdsOf(container, hit)) {
        ladders.delete(id);
        return undefined;
      }
      const { stoppedAtMs } = before;
      const from = ladders.get(id) ?? { ...CALM, ...(stoppedAtMs !== undefined && { stoppedAtMs }) };
      const next = step(from, verdictWithout(container, hit, state, tolerance), true, steady(), rules);
      // Not before it is done: what is refused is decided again by the next sample.
      if (next.action.kind === 'kill') return next;
      // Softly over they are asked for nothing before the stop is over, so that no time of theirs runs until then.
      const { kind } = next.action;
      const isAsked = kind === 'close-gate' || kind === 'terminate';
      ladders.set(id, isAsked ? { ...next.state, rung: 'warned' } : next.state);
      return next.action.kind === 'warn' ? { state: before, action: next.action } : undefined;
    },
    forget: (grantId) => void ladders.delete(grantId),
    forgetAllBut(grantIds) {
      for (const id of ladders.keys()) if (!grantIds.has(id)) ladders.delete(id);
    },
  };
}
