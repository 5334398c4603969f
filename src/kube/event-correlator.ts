// Which Events are written: an Event that was written before counts up instead of being written anew, many that differ
// in their message alone become one, and each object has a quota. The rules and figures of client-go's EventCorrelator
// (k8s.io/client-go/tools/record/events_cache.go), which Kubernetes' own components follow. Pure: time is an argument.
import { createQuota, EVENT_QUOTA, remember } from '../common/quota.ts';

export type PodEvent = {
  readonly namespace: string;
  readonly pod: string;
  readonly podUid: string;
  /** Absent: the Event is about the whole pod. */
  readonly container?: string;
  readonly reason: string;
  /** What the agent did, for programs that read the Event. */
  readonly action?: string;
  readonly type: 'Warning' | 'Normal';
  readonly message: string;
  readonly atMs: number;
  /** The agent of a node, or a replica of another component. */
  readonly by: { readonly component: 'agent' | 'scheduler'; readonly instance: string };
};

export type EventWrite = {
  readonly event: PodEvent;
  /** Of the series: a write with a count above 1 replaces the one before. */
  readonly key: string;
  readonly count: number;
  readonly firstMs: number;
};

/** So many different messages of one reason about one object, within the time, are written one by one. */
const MOST_MESSAGES = 10;
const SIMILAR_MS = 600_000;
const COMBINED = '(combined from similar events): ';

type Series = { readonly count: number; readonly firstMs: number };

/** Undefined: the Event is not written now. It counts nevertheless, so a later write of its series says how many. */
export function createEventCorrelator(): (event: PodEvent) => EventWrite | undefined {
  const quota = createQuota();
  const messages = new Map<string, { readonly texts: Set<string>; readonly lastMs: number }>();
  const series = new Map<string, Series>();
  const most = EVENT_QUOTA.mostKeys;
  return (event) => {
    const { by, namespace, pod, podUid, container = '', type, reason, message, atMs } = event;
    const object = JSON.stringify([by.component, by.instance, namespace, pod, podUid]);
    const group = JSON.stringify([object, type, reason]);
    const before = messages.get(group);
    const isRecent = before !== undefined && atMs - before.lastMs <= SIMILAR_MS;
    const texts = isRecent ? before.texts : new Set<string>();
    const isOneOfMany = texts.size >= MOST_MESSAGES && !texts.has(message);
    if (!isOneOfMany) texts.add(message);
    remember(messages, group, { texts, lastMs: atMs }, most);
    const key = isOneOfMany ? group : JSON.stringify([group, container, message]);
    const known = series.get(key);
    const next = { count: (known?.count ?? 0) + 1, firstMs: known?.firstMs ?? atMs };
    remember(series, key, next, most);
    if (!quota.take(object, atMs)) return undefined;
    return { event: isOneOfMany ? { ...event, message: `${COMBINED}${message}` } : event, key, ...next };
  };
}
