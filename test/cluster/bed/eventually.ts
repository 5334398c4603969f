// The wait of these tests for a condition. It is long: one kubectl takes seconds where two clusters share two processors,
// and kubelet, controllers and kube-scheduler pause before they try again. What they try last, they do after five
// minutes (kubernetes/pkg/scheduler/backend/queue: DefaultPodMaxInUnschedulablePodsDuration), so less than that.
import { eventually as untilIt } from '../../support/native/node.ts';

export const WAIT_MS = 240_000;

type Found<T> = Exclude<T, undefined | null | false>;

/** As that of other tests. */
export const eventually = <T>(look: () => T | Promise<T>, what: string, ms = WAIT_MS): Promise<Found<T>> =>
  untilIt(look, what, ms);
