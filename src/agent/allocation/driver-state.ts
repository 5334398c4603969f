// Whether grants can be made by the driver's last sample: not while it is released, not read yet, or does not answer.
import { err, ok, type Result } from '../../common/result.ts';
import type { Refusal } from '../grants/refusal.ts';
import { driverReleasedText } from '../snapshot/snapshot.ts';
import type { NodeState } from '../usage/node-usage.ts';

/** `releasedMs`: since when the driver is released. */
export function usableState(
  state: NodeState | undefined,
  isStale: boolean,
  releasedMs: number | undefined,
): Result<NodeState, Refusal> {
  if (releasedMs !== undefined) return err({ refused: driverReleasedText(releasedMs), later: true });
  if (!state) return err({ refused: 'the driver has not been read yet', later: true });
  if (isStale) return err({ refused: 'the driver does not answer: there is no fresh sample', later: true });
  if (state.sample.problem !== undefined) return err({ refused: `there is no GPU: ${state.sample.problem}` });
  return ok(state);
}
