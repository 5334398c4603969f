// Evicts pods whose containers were stopped too often, where the settings ask for it. Counts the stops of each pod and
// requests the eviction from the API server; after a refusal the next stop requests it again, and where an agent ended
// before the answer, the next agent does. When an eviction is due: src/policy/eviction.ts.
import type { EvictCall } from '../../kube/eviction.ts';
import { type EvictionPolicy, isEvictionDue, stopsWithin } from '../../policy/eviction.ts';
import type { ActionRecord, Outcome } from './action-record.ts';
import type { Clocks } from './enforcer.ts';
import { CLOCK_SKEW_MS } from './resume.ts';

type Evictions = { see(records: readonly ActionRecord[]): void };

type EvictionsOptions = {
  readonly policy: EvictionPolicy;
  readonly evict: EvictCall;
  readonly clocks: Clocks;
  /** Records of earlier agents. */
  readonly earlier: readonly ActionRecord[];
  /** Called twice for each eviction: with the request and with the answer. */
  readonly report: (record: ActionRecord) => void;
};

export function createEvictions({ policy, evict, clocks, earlier, report }: EvictionsOptions): Evictions {
  const stops = new Map<string, readonly number[]>();
  /** The last eviction record of each pod before the restart. */
  const answers = new Map(earlier.filter(({ action }) => action === 'evict').map((one) => [one.podUid, one]));
  /** Requested and not answered, or accepted by the API server. */
  const asked = new Set([...answers].filter(([, { result }]) => result === 'sent').map(([podUid]) => podUid));
  const isStop = ({ action, result, podUid }: ActionRecord) =>
    podUid !== '' && action === 'kill' && (result === 'sent' || result === 'interrupted');
  const note = (podUid: string, atMs: number) =>
    stops.set(podUid, stopsWithin([...(stops.get(podUid) ?? []), atMs], clocks.steady(), policy));
  const nameOf = ({ atMs, grantId }: ActionRecord): string => `${atMs} ${grantId}`;
  // An interrupted stop is among the earlier records, and is reported once more by this agent.
  const counted = new Set(earlier.filter(isStop).map(nameOf));
  // The time of a record from the future is unknown.
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
    // Recorded first: an agent that ends before the answer leaves the request to the next one.
    report(record('asked', 'the agent requests its eviction'));
    try {
      await evict({ namespace, name: pod, uid: podUid });
    } catch (error) {
      asked.delete(podUid);
      report(record('refused', 'the API server refused its eviction', (error as Error).message));
      return;
    }
    report(record('sent', 'the pod is evicted'));
  };

  /** Requests of an earlier agent that saw no answer. */
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
      // Pods whose stops are long past are forgotten.
      for (const [podUid, own] of stops) {
        if (stopsWithin(own, clocks.steady(), policy).length > 0) continue;
        stops.delete(podUid);
        asked.delete(podUid);
      }
    },
  };
}
