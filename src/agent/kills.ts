// Counts of stops, per container and outcome. A counter that is born at 1 shows no increase, so the outcomes that may come
// are there with 0 from the moment that a grant is seen.
import type { OverReason } from '../quota/limits.ts';
import type { NodeState } from './compare.ts';
import type { ActionRecord } from './enforcement/record.ts';
import type { Grant } from './grants/grant.ts';
import type { KillTotal, SelfView } from './view.ts';

type Decision = SelfView['decisions'][number]['decision'];
const DECISIONS: readonly Decision[] = ['would_kill', 'killed', 'refused', 'evicted'];
const REASONS: readonly OverReason[] = ['bypass', 'far-over-limit', 'over-limit', 'over-share'];
/** As the audit log has them, as the metrics do; all others are refusals. */
const RESULTS: Readonly<Record<string, string>> = {
  sent: 'released',
  'nobody left': 'nobody_left',
  interrupted: 'interrupted',
};
const KEEP_MS = 5 * 60 * 1000;
/** What is kept no longer goes so much later, where nothing else happens. */
const SEE_AGAIN_MS = 10_000;

export type KillBook = {
  see(state: NodeState): void;
  add(records: readonly ActionRecord[]): void;
  totals(): readonly KillTotal[];
  decisions(): SelfView['decisions'];
};

type Entry = { total: KillTotal; seenMs: number };

export function createKillBook(): KillBook {
  const totals = new Map<string, Entry>();
  const decisions = new Map<string, { decision: Decision; reason: string; count: number }>();
  /** Those that each grant has from the beginning. */
  const usual = new WeakMap<Grant, readonly Entry[]>();

  const entry = (record: Omit<KillTotal, 'count' | 'lastMs'>, seenMs: number): Entry => {
    const { namespace, pod, container, gpuUuid, reason, action, result } = record;
    const key = JSON.stringify([namespace, pod, container, gpuUuid, reason, action, result]);
    const found = totals.get(key) ?? { total: { ...record, count: 0, lastMs: 0 }, seenMs };
    found.seenMs = seenMs;
    totals.set(key, found);
    return found;
  };
  const usualOf = (grant: Grant, seenMs: number): readonly Entry[] => {
    const { namespace, pod, container, cards } = grant;
    const made = cards.flatMap(({ gpuUuid }) =>
      REASONS.map((reason) =>
        entry({ namespace, pod, container, gpuUuid, reason, action: 'kill', result: 'released' }, seenMs),
      ),
    );
    usual.set(grant, made);
    return made;
  };

  /** The last stop of each grant: what is stuck afterwards was stopped for its reason. */
  const stopped = new Map<string, ActionRecord>();

  const decide = (decision: Decision, reason: string) => {
    const key = `${decision} ${reason}`;
    const found = decisions.get(key) ?? { decision, reason, count: 0 };
    decisions.set(key, { ...found, count: found.count + 1 });
  };
  for (const decision of DECISIONS) {
    for (const reason of REASONS) decisions.set(`${decision} ${reason}`, { decision, reason, count: 0 });
  }

  /** Those of the last sample, when that was, and since when they are the same. */
  let seen: { readonly containers: NodeState['containers']; readonly atMs: number; readonly sinceMs: number } = {
    containers: [],
    atMs: 0,
    sinceMs: 0,
  };
  const lookAt = (containers: NodeState['containers'], atMs: number): void => {
    for (const { grant } of containers) {
      for (const one of usual.get(grant) ?? usualOf(grant, atMs)) one.seenMs = atMs;
    }
  };

  return {
    see({ sample, containers }) {
      // Of the very same containers nothing is to be done until they are others.
      if (containers !== seen.containers || sample.atMs - seen.sinceMs > SEE_AGAIN_MS) {
        lookAt(seen.containers, seen.atMs);
        lookAt(containers, sample.atMs);
        const alive = new Set(containers.map(({ grant }) => grant.id));
        for (const id of stopped.keys()) if (!alive.has(id)) stopped.delete(id);
        for (const [key, total] of totals) if (sample.atMs - total.seenMs > KEEP_MS) totals.delete(key);
        seen = { containers, atMs: sample.atMs, sinceMs: sample.atMs };
      }
      seen = { ...seen, atMs: sample.atMs };
    },
    add(records) {
      for (const record of records) {
        const { namespace, pod, container, gpuUuid, reason, atMs } = record;
        if (record.action === 'would-stop') decide('would_kill', reason);
        if (record.action === 'refuse') decide('refused', reason);
        if (record.action === 'evict') decide(record.result === 'sent' ? 'evicted' : 'refused', reason);
        if (record.action !== 'kill' && record.action !== 'terminate') continue;
        if (record.action === 'kill') {
          decide('killed', reason);
          stopped.set(record.grantId, record);
        }
        // Memory is back as a rule. A counter is not taken back where it is not: then "stuck" is counted beside it.
        const result = RESULTS[record.result] ?? 'refused';
        const found = entry({ namespace, pod, container, gpuUuid, reason, action: record.action, result }, atMs);
        const { total } = found;
        // When it was last stopped, not when that was last tried.
        const lastMs = result === 'released' || result === 'interrupted' ? atMs : total.lastMs;
        found.total = { ...total, count: total.count + 1, lastMs };
      }
      for (const record of records.filter((one) => one.action === 'stuck')) {
        const { namespace, pod, container, atMs } = record;
        const { gpuUuid, reason } = stopped.get(record.grantId) ?? record;
        const found = entry({ namespace, pod, container, gpuUuid, reason, action: 'kill', result: 'stuck' }, atMs);
        found.total = { ...found.total, count: found.total.count + 1 };
      }
    },
    totals: () => [...totals.values()].map(({ total }) => total),
    decisions: () => [...decisions.values()],
  };
}
