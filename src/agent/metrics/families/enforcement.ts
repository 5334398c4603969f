// What was done to whom: stops by container, decisions of the node, the mode.
import { MODES } from '../../../quota/mode.ts';
import { type Family, metricSet } from '../family.ts';

const WHO = ['namespace', 'pod', 'container', 'gpu_uuid', 'reason', 'action'];

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
    const mode = set.gauge(
      'cotenant_enforcement_mode',
      'The mode of the node: the most that is done to any of its containers.',
      ['mode'],
    );
    return {
      clear: set.clear,
      fill(view) {
        for (const { namespace, pod, container, gpuUuid, reason, action, result, count, lastMs } of view.kills) {
          const who = { namespace, pod, container, gpu_uuid: gpuUuid, reason, action };
          kills({ ...who, result }, count);
          if (lastMs > 0) last(who, lastMs / 1000);
        }
        for (const { decision, reason, count } of view.self.decisions) decisions({ decision, reason }, count);
        for (const name of MODES) mode({ mode: name }, view.self.mode === name ? 1 : 0);
      },
    };
  },
};
