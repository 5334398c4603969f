// Counts of stops per container and outcome, and of enforcement decisions on the node.

import { REFUSAL_REASONS } from '../../policy/enforcement.ts';
import type { OverReason } from '../../policy/memory-verdict.ts';
import type { ActionRecord, Outcome } from '../enforcement/action-record.ts';
import type { NodeState } from '../usage/node-usage.ts';

/** Stops of a container by outcome. */
export type StopCount = {
  readonly namespace: string;
  readonly pod: string;
  readonly container: string;
  readonly gpuUuid: string;
  readonly reason: string;
  readonly action: 'kill' | 'terminate';
  readonly result: string;
  readonly count: number;
  /** 0: none yet. */
  readonly lastMs: number;
};

type Decision = 'would_kill' | 'killed' | 'refused' | 'evicted';
/** Enforcement decisions of the node. */
export type DecisionCount = { readonly decision: Decision; readonly reason: string; readonly count: number };
/** Why stops that were due were not carried out. */
export type RefusalCount = { readonly reason: string; readonly count: number };

const DECISIONS: readonly Decision[] = ['would_kill', 'killed', 'refused', 'evicted'];
const REASONS: readonly OverReason[] = ['bypass', 'far-over-limit', 'no-room', 'over-limit', 'over-share'];
/** The label `result`, by the record's result; all others count as refused. */
const RESULTS: Partial<Record<Outcome, string>> = {
  sent: 'released',
  'none-left': 'none_left',
  interrupted: 'interrupted',
};
const KEEP_MS = 5 * 60 * 1000;

const containerName = ({ namespace, pod, container }: Pick<StopCount, 'namespace' | 'pod' | 'container'>): string =>
  `${namespace} ${pod} ${container}`;

export type StopCounts = {
  /** With each sample: counts of containers that ended are dropped after a while. */
  update(state: NodeState): void;
  add(records: readonly ActionRecord[]): void;
  totals(): readonly StopCount[];
  decisions(): readonly DecisionCount[];
  /** Of the decisions, the refused. */
  refusals(): readonly RefusalCount[];
};

/** `seenMs`: time since boot of the last sample with its container. */
type Entry = { total: StopCount; seenMs: number; readonly name: string };

/** `recent`: records of earlier agents; a stuck container counts under the reason of its last stop there. */
export function createStopCounts(recent: readonly ActionRecord[] = []): StopCounts {
  const totals = new Map<string, Entry>();
  const decisions = new Map<string, DecisionCount>();

  let nowMs = 0;
  const entry = (record: Omit<StopCount, 'count' | 'lastMs'>): Entry => {
    const { namespace, pod, container, gpuUuid, reason, action, result } = record;
    const key = JSON.stringify([namespace, pod, container, gpuUuid, reason, action, result]);
    const none = { namespace, pod, container, gpuUuid, reason, action, result, count: 0, lastMs: 0 };
    const found = totals.get(key) ?? { total: none, seenMs: nowMs, name: containerName(record) };
    found.seenMs = nowMs;
    totals.set(key, found);
    return found;
  };
  /** The last stop of each grant; a stuck container counts under its reason. */
  const stopped = new Map<string, ActionRecord>();

  const decide = (decision: Decision, reason: string) => {
    const key = `${decision} ${reason}`;
    const found = decisions.get(key) ?? { decision, reason, count: 0 };
    decisions.set(key, { ...found, count: found.count + 1 });
  };
  for (const decision of DECISIONS) {
    for (const reason of REASONS) decisions.set(`${decision} ${reason}`, { decision, reason, count: 0 });
  }
  const refusals = new Map<string, number>(REFUSAL_REASONS.map((refusal) => [refusal, 0]));
  const refuse = (refusal: string, reason: string): void => {
    decide('refused', reason);
    refusals.set(refusal, (refusals.get(refusal) ?? 0) + 1);
  };
  for (const record of recent) if (record.action === 'kill') stopped.set(record.grantId, record);

  return {
    update({ sample, containers }) {
      nowMs = sample.bootNs / 1e6;
      const alive = new Set(containers.map(({ grant }) => grant.id));
      for (const id of stopped.keys()) if (!alive.has(id)) stopped.delete(id);
      const there = new Set(containers.map(({ grant }) => containerName(grant)));
      for (const [key, one] of totals) {
        if (there.has(one.name)) one.seenMs = nowMs;
        else if (nowMs - one.seenMs > KEEP_MS) totals.delete(key);
      }
    },
    add(records) {
      for (const record of records) {
        const { namespace, pod, container, gpuUuid, reason, atMs } = record;
        if (record.action === 'would-stop') decide('would_kill', reason);
        if (record.action === 'evict' && record.result === 'sent') decide('evicted', reason);
        if (record.refusal !== undefined) refuse(record.refusal, reason);
        if (record.action !== 'kill' && record.action !== 'terminate') continue;
        if (record.action === 'kill') {
          decide('killed', reason);
          stopped.set(record.grantId, record);
        }
        // A stop counts before its memory is free. If the memory stays in use, "stuck" is counted in addition.
        const result = RESULTS[record.result] ?? 'refused';
        const found = entry({ namespace, pod, container, gpuUuid, reason, action: record.action, result });
        const { total } = found;
        // When it was last stopped, not when that was last tried.
        const lastMs = result === 'released' || result === 'interrupted' ? atMs : total.lastMs;
        found.total = { ...total, count: total.count + 1, lastMs };
      }
      for (const record of records.filter((one) => one.action === 'stuck')) {
        const { namespace, pod, container } = record;
        const { gpuUuid, reason } = stopped.get(record.grantId) ?? record;
        const found = entry({ namespace, pod, container, gpuUuid, reason, action: 'kill', result: 'stuck' });
        found.total = { ...found.total, count: found.total.count + 1 };
      }
    },
    totals: () => [...totals.values()].map(({ total }) => total),
    decisions: () => [...decisions.values()],
    refusals: () => [...refusals].map(([reason, count]) => ({ reason, count })),
  };
}
