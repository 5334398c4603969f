// The last step: a pod whose containers were stopped too often leaves the node, where the configuration asks for that. Counts
// the stops of each pod and asks the API server, which may refuse; then the next stop asks again, and where an agent ended before
// it heard the answer, the next agent does. When it is due is
// quota/eviction.ts' business.
import type { EvictCall } from '../../kube/eviction.ts';
import { type EvictionPolicy, isEvictionDue, stopsWithin } from '../../policy/eviction.ts';
import type { ActionRecord, Outcome } from './action-record.ts';
import type { Clocks } from './enforcer.ts';
import { CLOCK_SKEW_MS } from './resume.ts';

export type Evictions = { see(records: readonly ActionRecord[]): void };

export function createEvictions(
  policy: EvictionPolicy,
  evict: EvictCall,
  clocks: Clocks,
  /** Of before a restart. */
  earlier: readonly ActionRecord[],
  /** Of each eviction twice: when it is asked for, and with the answer. */
  tell: (record: ActionRecord) => void,
): Evictions {
  const stops = new Map<string, readonly number[]>();
  /** What was said last of each pod before the restart. */
  const answers = new Map(earlier.filter(({ action }) => action === 'evict').map((one) => [one.podUid, one]));
  /** Asked for and not answered, or taken by the API server. */
  const asked = new Set([...answers].filter(([, { result }]) => result === 'sent').map(([podUid]) => podUid));
  const isStop = ({ action, result, podUid }: ActionRecord) =>
    podUid !== '' && action === 'kill' && (result === 'sent' || result === 'interrupted');
  const note = (podUid: string, atMs: number) =>
    stops.set(podUid, stopsWithin([...(stops.get(podUid) ?? []), atMs], clocks.steady(), policy));
  const nameOf = ({ atMs, grantId }: ActionRecord): string => `${atMs} ${grantId}`;
  // An interrupted stop is told among the earlier ones, and once more as news.
  const counted = new Set(earlier.filter(isStop).map(nameOf));
  // Of what is said to be still to come nobody knows when it was.
  for (const record of earlier.filter((one) => isStop(one) && one.atMs <= clocks.now() + CLOCK_SKEW_MS))
    note(record.podUid, clocks.steady() - Math.max(0, clocks.now() - record.atMs));

  const attempt = async (last: ActionRecord, count: number): Promise<void> => {
    const { namespace, pod, podUid } = last;
    asked.add(podUid);
    const minutes = Math.ceil(policy.evictWindowSeconds / 60);
    const record = (result: Outcome, what: string, detail?: string): ActionRecord => {
      const message = `the agent stopped containers of ${namespace}/${pod} ${count} times within ${minutes} min; ${what}`;
      const { refusal: _, detail: __, ...base } = last;
      const refused = detail !== undefined && ({ refusal: 'eviction', detail } as const);
      return { ...base, action: 'evict', atMs: clocks.now(), message, result, ...refused, processes: [] };
    };
    // First written down: an agent that ends before the answer leaves it to the next one.
    tell(record('asked', 'the agent requests its eviction'));
    try {
      await evict({ namespace, name: pod, uid: podUid });
    } catch (error) {
      asked.delete(podUid);
      tell(record('refused', 'the API server refused its eviction', (error as Error).message));
      return;
    }
    tell(record('sent', 'the pod is evicted'));
  };

  /** Of before a restart, and nobody has heard the answer. */
  let unanswered = [...answers.values()].filter(({ result }) => result === 'asked' && policy.evictAfterStops > 0);

  return {
    see(records) {
      for (const one of unanswered)
        void attempt(one, Math.max(policy.evictAfterStops, stops.get(one.podUid)?.length ?? 0));
      unanswered = [];
      for (const record of records.filter(isStop)) {
        if (!counted.delete(nameOf(record))) note(record.podUid, clocks.steady());
        const own = stops.get(record.podUid) ?? [];
        if (isEvictionDue(own, clocks.steady(), policy) && !asked.has(record.podUid)) void attempt(record, own.length);
      }
      // Nobody is asked about pods whose stops are long past.
      for (const [podUid, own] of stops) {
        if (stopsWithin(own, clocks.steady(), policy).length > 0) continue;
        stops.delete(podUid);
        asked.delete(podUid);
      }
    },
  };
}
