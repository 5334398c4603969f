// What was done to whom: stops by container, decisions of the node, the mode.

import type { StopCount } from '../../agent/counters/stop-counts.ts';
import type { Snapshot } from '../../agent/snapshot/snapshot.ts';
import { MODES } from '../../api/request.ts';
import { type Family, metricSet } from '../format/family.ts';

const WHO = ['namespace', 'pod', 'container', 'gpu_uuid', 'reason', 'action'];

const nameOf = ({ namespace, pod, container }: Pick<StopCount, 'namespace' | 'pod' | 'container'>): string =>
  JSON.stringify([namespace, pod, container]);

/** What its last time is told by. */
const stopOf = (kill: StopCount): string => `${nameOf(kill)} ${kill.gpuUuid} ${kill.reason} ${kill.action}`;

export const enforcement: Family = {
  name: 'enforcement',
  create(registry, guard) {
    const set = metricSet(registry, guard);
    const kills = set.counter(
      'cotenant_container_kills_total',
      'Times that a container was stopped, by reason and outcome.',
      [...WHO, 'result'],
    );
    const last = set.gauge('cotenant_container_last_kill_timestamp_seconds', 'When a container was last stopped.', WHO);
    const decisions = set.counter(
      'cotenant_enforcement_decisions_total',
      'Decisions of this node about containers over their grant.',
      ['decision', 'reason'],
    );
    const refusals = set.counter(
      'cotenant_enforcement_refusals_total',
      'Stops and evictions that were due and were refused, by reason.',
      ['reason'],
    );
    const mode = set.gauge(
      'cotenant_enforcement_mode',
      'The mode of the node: the most that is done to any of its containers.',
      ['mode'],
    );
    const told = (kill: StopCount, newestMs: ReadonlyMap<string, number>) => {
      const { namespace, pod, container, gpuUuid, reason, action, result, count } = kill;
      const who = { namespace, pod, container, gpu_uuid: gpuUuid, reason, action };
      kills({ ...who, result }, count);
      const lastMs = newestMs.get(stopOf(kill)) ?? 0;
      if (lastMs > 0) last(who, lastMs / 1000);
    };
    /** Of several outcomes, and of several grants of one name, the newest stop is the last one. */
    const newestOf = (all: readonly StopCount[]): ReadonlyMap<string, number> => {
      const newest = new Map<string, number>();
      for (const kill of all) newest.set(stopOf(kill), Math.max(kill.lastMs, newest.get(stopOf(kill)) ?? 0));
      return newest;
    };
    /** Zeros are as many as the containers that come and go, and say of those that are gone that nothing more happened. */
    const isZeroOfEnded = ({ containers }: Snapshot) => {
      const there = new Set(containers.map(nameOf));
      return (kill: StopCount) => kill.count === 0 && !there.has(nameOf(kill));
    };
    return {
      clear: set.clear,
      fill(snapshot) {
        for (const name of MODES) mode({ mode: name }, snapshot.self.mode === name ? 1 : 0);
        for (const { decision, reason, count } of snapshot.self.decisions) decisions({ decision, reason }, count);
        for (const { reason, count } of snapshot.self.refusals ?? []) refusals({ reason }, count);
        const isLast = isZeroOfEnded(snapshot);
        const newestMs = newestOf(snapshot.kills);
        for (const kill of snapshot.kills) if (kill.count > 0) told(kill, newestMs);
        for (const kill of snapshot.kills) if (kill.count === 0 && !isLast(kill)) told(kill, newestMs);
      },
      fillEnded(snapshot) {
        for (const kill of snapshot.kills.filter(isZeroOfEnded(snapshot))) told(kill, new Map());
      },
    };
  },
};
