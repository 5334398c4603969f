// Metrics of a container with a grant as a whole, whatever GPUs it has: its enforcement mode, the engines of the
// interposer that its processes run, and what keeps the interposer from working.
import { defineCollector, gauge, HOLDER_LABELS, holderLabels, secondsOf } from './collector.ts';

const ofContainer = (help: string, ...labels: readonly string[]) => gauge(help, [...HOLDER_LABELS, ...labels]);

export const containerState = defineCollector({
  name: 'container-state',
  metrics: {
    cotenant_container_enforcement: ofContainer(
      'Enforcement mode of the container, and the setting it comes from; always 1.',
      'enforcement',
      'source',
    ),
    cotenant_container_engine_processes: ofContainer(
      "Running processes, by the number of the interposer's engine that they use.",
      'engine',
    ),
    cotenant_container_engine_refused_processes: ofContainer(
      'Running processes that could not switch to the engine they were ordered to use.',
    ),
    cotenant_container_engine_outdated: ofContainer(
      '1 while the agent could not order its newest engine for the container; the log says why.',
    ),
    cotenant_container_gpu_missing: ofContainer(
      '1 while the container has none of its GPUs, because the container runtime created it without the agent.',
    ),
    cotenant_container_pod_gone_timestamp_seconds: ofContainer(
      'Unix time since when the pod is gone from the API server while the container holds its grant; absent: it is not.',
    ),
    cotenant_container_observed_processes: ofContainer(
      'Running processes that a debugger or profiler observed when they initialized CUDA.',
      'observer',
    ),
  },
  collect({ containers }, { set }) {
    for (const entry of new Map(containers.map((one) => [one.grantId, one])).values()) {
      const labels = holderLabels(entry);
      const { engines, enforcement, observed } = entry;
      const { mode, by: source } = enforcement;
      set('cotenant_container_enforcement', { ...labels, enforcement: mode, source }, 1);
      for (const { engine, count } of engines.processes)
        set('cotenant_container_engine_processes', { ...labels, engine }, count);
      set('cotenant_container_engine_refused_processes', labels, engines.refused);
      set('cotenant_container_engine_outdated', labels, engines.outdated ? 1 : 0);
      set('cotenant_container_gpu_missing', labels, entry.withoutGpus ? 1 : 0);
      const { podGoneSinceMs } = entry;
      set('cotenant_container_pod_gone_timestamp_seconds', labels, podGoneSinceMs && secondsOf(podGoneSinceMs));
      set('cotenant_container_observed_processes', { ...labels, observer: 'debugger' }, observed.debugger);
      set('cotenant_container_observed_processes', { ...labels, observer: 'profiler' }, observed.profiler);
    }
  },
});
