// The trace with arrivals and departures: pods of a list come at random times, on the mean as many at a time
// as fill all GPUs, stay as long as they did there, and wait in a queue while they fit nowhere. Owns the protocol.
import {
  createCluster,
  demandOf,
  fits,
  type Machine,
  type PodList,
  type Policy,
  randomOf,
  type Task,
  type Trace,
} from './openb.ts';

/** Pods of the trace stay from seconds to months; no longer here, so that the cluster is soon as it stays. */
const LONGEST_SECONDS = 7200;
/** The first of them fill the cluster; the others are measured. */
const SECONDS = 3 * LONGEST_SECONDS;

export type Churn = {
  /** Of all GPUs, the mean over time. */
  readonly allocatedPercent: number;
  readonly meanWaitSeconds: number;
  readonly p99WaitSeconds: number;
};

type Waiting = { readonly task: Task; readonly since: number };
type Departure = { readonly at: number; readonly leave: () => Machine };

const secondsOf = ({ seconds = 0 }: Task): number => Math.min(Math.max(seconds, 1), LONGEST_SECONDS);

/** Whether the list says how long its pods stayed. */
export const hasTimes = ({ tasks }: PodList): boolean => tasks.every(({ seconds }) => seconds !== undefined);

/** The queue is tried from its oldest pod on whenever one has left, as kube-scheduler does; a pod that does not fit holds
 * back no other. */
export function churn(trace: Trace, list: PodList, policy: Policy, seed: number): Churn {
  const random = randomOf(seed * 31 + 7);
  const arrives = randomOf(seed * 17 + 3);
  const cluster = createCluster({ trace, list, policy, names: seed }, random);
  const workPerPod = list.tasks.reduce((sum, task) => sum + demandOf(task) * secondsOf(task), 0) / list.tasks.length;
  const meanGap = workPerPod / cluster.totalMilli;
  /** The next one is the last. */
  const departures: Departure[] = [];
  const waits: number[] = [];
  let queue: Waiting[] = [];
  let [now, allocated, area] = [0, 0, 0];
  const isMeasured = (time: number) => time >= LONGEST_SECONDS;
  const advance = (to: number): void => {
    if (isMeasured(to)) area += allocated * (to - Math.max(now, LONGEST_SECONDS));
    now = to;
  };
  const begin = ({ task, since }: Waiting): boolean => {
    const placed = cluster.place(task);
    if (!placed) return false;
    allocated += demandOf(task);
    if (isMeasured(since)) waits.push(now - since);
    const leave = () => {
      cluster.remove(task, placed);
      allocated -= demandOf(task);
      return placed.machine;
    };
    const at = now + secondsOf(task);
    departures.splice(departures.findLastIndex((other) => other.at > at) + 1, 0, { at, leave });
    return true;
  };
  for (let next = 0; next < SECONDS; next += -Math.log(1 - arrives()) * meanGap) {
    for (let first = departures.at(-1); first && first.at <= next; first = departures.at(-1)) {
      departures.pop();
      advance(first.at);
      // A pod that waits fits on no other machine.
      const machine = first.leave();
      queue = queue.filter((waiting) => !fits(waiting.task, machine) || !begin(waiting));
    }
    advance(next);
    const task = list.tasks[Math.floor(arrives() * list.tasks.length)] as Task;
    const waiting = { task, since: now };
    if (!begin(waiting)) queue.push(waiting);
  }
  for (const { since } of queue) if (isMeasured(since)) waits.push(now - since);
  waits.sort((a, b) => a - b);
  return {
    allocatedPercent: (100 * area) / (now - LONGEST_SECONDS) / cluster.totalMilli,
    meanWaitSeconds: waits.reduce((sum, one) => sum + one, 0) / waits.length,
    p99WaitSeconds: waits[Math.floor(0.99 * waits.length)] ?? 0,
  };
}
