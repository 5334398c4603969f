// Counts of stops, per container and outcome. A counter that is born at 1 shows no increase, so the outcomes that may come
// are there with 0 from the moment that a grant is seen.
import type { OverReason } from '../quota/limits.ts';
import type { NodeState } from './compare.ts';
import type { ActionRecord } from './enforcement/record.ts';
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

export type KillBook = {
  see(state: NodeState): void;
  add(records: readonly ActionRecord[]): void;
  totals(): readonly KillTotal[];
  decisions(): SelfView['decisions'];
};

export function createKillBook(): KillBook {
  const totals = new Map<string, KillTotal & { seenMs: number }>();
  const decisions = new Map<string, { decision: Decision; reason: string; count: number }>();

  const entry = (record: Omit<KillTotal, 'count' | 'lastMs'>, seenMs: number) => {
    const key = JSON.stringify([
      record.namespace,
      record.pod,
      record.container,
      record.gpuUuid,
      record.reason,
      record.action,
      record.result,
    ]);
    const found = totals.get(key) ?? { ...record, count: 0, lastMs: 0, seenMs };
    totals.set(key, { ...found, seenMs });
    return key;
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

  return {
    see(state) {
      const now = state.sample.atMs;
      for (const { grant } of state.containers) {
        const { namespace, pod, container } = grant;
        for (const { gpuUuid } of grant.cards) {
          for (const reason of REASONS)
            entry({ namespace, pod, container, gpuUuid, reason, action: 'kill', result: 'released' }, now);
        }
      }
      const alive = new Set(state.containers.map(({ grant }) => grant.id));
      for (const id of stopped.keys()) if (!alive.has(id)) stopped.delete(id);
      for (const [key, total] of totals) if (now - total.seenMs > KEEP_MS) totals.delete(key);
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
        const key = entry({ namespace, pod, container, gpuUuid, reason, action: record.action, result }, atMs);
        const found = totals.get(key);
        // When it was last stopped, not when that was last tried.
        const lastMs = result === 'released' || result === 'interrupted' ? atMs : found?.lastMs;
        if (found && lastMs !== undefined) totals.set(key, { ...found, count: found.count + 1, lastMs });
      }
      for (const record of records.filter((one) => one.action === 'stuck')) {
        const { namespace, pod, container, atMs } = record;
        const { gpuUuid, reason } = stopped.get(record.grantId) ?? record;
        const key = entry({ namespace, pod, container, gpuUuid, reason, action: 'kill', result: 'stuck' }, atMs);
        const found = totals.get(key);
        if (found) totals.set(key, { ...found, count: found.count + 1 });
      }
    },
    totals: () => [...totals.values()].map(({ seenMs: _, ...total }) => total),
    decisions: () => [...decisions.values()],
  };
}
