// The wait of these tests for a condition. It is long: one kubectl takes seconds where two clusters share two processors,
// and kubelet, controllers and kube-scheduler pause before they try again. What they try last, they do after five
// minutes (kubernetes/pkg/scheduler/backend/queue: DefaultPodMaxInUnschedulablePodsDuration), so less than that.
import { eventually as untilIt } from '../../support/native/node.ts';

export const WAIT_MS = 240_000;

/** Waits until `look` returns something other than undefined; throws after `ms`. */
export const eventually = <T>(
  look: () => T | undefined | Promise<T | undefined>,
  what: string,
  ms = WAIT_MS,
): Promise<T> => untilIt(look, what, ms);
