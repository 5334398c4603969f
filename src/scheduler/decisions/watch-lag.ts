// Decides again, within bounds, while this replica's watches may be behind kube-scheduler's. kube-scheduler tries a
// refused pod again at the event that makes room for it, which may not have arrived here; without another event it would
// next try the pod after five minutes (its flush of unschedulable pods).
import { setTimeout as delay } from 'node:timers/promises';
import type { Allocations } from '../../placement/allocations.ts';

/** kube-scheduler places no other pod while it waits for an answer: 100 ms of each second at most. */
const LAG_MS = 100;
const BETWEEN_MS = 900;
const STEP_MS = 5;

export type DecideInLag = <T>(decide: () => Promise<T>, isRefused: (decided: T) => boolean) => Promise<T>;

export function createDecideInLag(allocations: Allocations): DecideInLag {
  let notBeforeMs = 0;
  return async (decide, isRefused) => {
    let decided = await decide();
    if (!isRefused(decided) || performance.now() < notBeforeMs) return decided;
    const untilMs = performance.now() + LAG_MS;
    notBeforeMs = untilMs + BETWEEN_MS;
    let { version } = allocations;
    while (isRefused(decided) && performance.now() < untilMs) {
      await delay(STEP_MS);
      if (allocations.version === version) continue;
      decided = await decide();
      ({ version } = allocations);
    }
    return decided;
  };
}
