// Metrics of enforcement: stops of containers, the node's decisions, stops that were refused, and the node's mode.
import type { StopCount } from '../../agent/counters/stop-counts.ts';
import { MODES } from '../../api/request.ts';
import { counter, defineCollector, gauge, type Series, secondsOf } from './collector.ts';

/** A stop outlives the container, so it carries no GPU index and no mode. */
const STOP_LABELS = ['namespace', 'pod', 'container', 'gpu_uuid', 'reason', 'action'];

const METRICS = {
  cotenant_container_kills_total: counter('Stops of the container, by reason and result.', [...STOP_LABELS, 'result']),
  cotenant_container_last_kill_timestamp_seconds: gauge('Unix time of the last stop of the container.', STOP_LABELS),
  cotenant_enforcement_decisions_total: counter(
    'Decisions of the agent about containers that use more than their grant.',
    ['decision', 'reason'],
  ),
  cotenant_enforcement_refusals_total: counter(
    'Stops and evictions that were due and not carried out, by what prevented them.',
    ['reason'],
  ),
  cotenant_enforcement_mode: gauge(
    'Enforcement mode of the node, the strictest that any of its containers can have: 1 for the mode that applies.',
    ['enforcement'],
  ),
} as const;

const labelsOf = ({ namespace, pod, container, gpuUuid, reason, action }: StopCount) => ({
  namespace,
  pod,
  container,
  gpu_uuid: gpuUuid,
  reason,
  action,
});

function setStops(kills: readonly StopCount[], set: Series<keyof typeof METRICS>['set']): void {
  /** The newest of all results, and of all grants with these names. */
  const lastMs = new Map<string, number>();
  for (const kill of kills) {
    const key = JSON.stringify(labelsOf(kill));
    lastMs.set(key, Math.max(kill.lastMs, lastMs.get(key) ?? 0));
  }
  for (const kill of kills) {
    const labels = labelsOf(kill);
    const newestMs = lastMs.get(JSON.stringify(labels));
    set('cotenant_container_kills_total', { ...labels, result: kill.result }, kill.count);
    if (newestMs) set('cotenant_container_last_kill_timestamp_seconds', labels, secondsOf(newestMs));
  }
}

export const enforcement = defineCollector({
  name: 'enforcement',
  metrics: METRICS,
  collect({ self, kills }, { set }) {
    for (const enforcement of MODES)
      set('cotenant_enforcement_mode', { enforcement }, self.mode === enforcement ? 1 : 0);
    for (const { decision, reason, count } of self.decisions)
      set('cotenant_enforcement_decisions_total', { decision, reason }, count);
    for (const { reason, count } of self.refusals ?? []) set('cotenant_enforcement_refusals_total', { reason }, count);
    setStops(kills, set);
  },
});
