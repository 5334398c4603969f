// Metrics of single processes, if the settings ask for them: those with the most memory, so that tenants cannot grow
// the page.
import { CONTAINER_LABELS, containerLabels, defineCollector, gauge } from './collector.ts';

export const MAX_PROCESSES = 50;
const LABELS = [...CONTAINER_LABELS, 'pid', 'process'];

/** Process names come from tenants; a label carries only letters, digits and `._-` of one. */
export const safeProcessName = (command: string): string => command.replace(/[^A-Za-z0-9._-]/g, '_');

export const processes = defineCollector({
  name: 'process',
  metrics: {
    cotenant_process_memory_used_bytes: gauge('GPU memory of the process, as the driver reports it.', LABELS),
    cotenant_process_sm_utilization_ratio: gauge("Fraction of the GPU's compute in the last sampling window.", LABELS),
  },
  collect({ containers, assigned }, { set, drop }) {
    const all = [...containers, ...assigned].flatMap((entry) => entry.processes.map((one) => ({ entry, one })));
    const largest = all.toSorted((a, b) => (b.one.usedBytes ?? 0) - (a.one.usedBytes ?? 0)).slice(0, MAX_PROCESSES);
    drop(all.length - largest.length);
    for (const { entry, one } of largest) {
      const { gpuIndex } = entry;
      if (gpuIndex === undefined) continue;
      const container = containerLabels({ ...entry, gpuIndex });
      const labels = { ...container, pid: String(one.pid), process: safeProcessName(one.command) };
      set('cotenant_process_memory_used_bytes', labels, one.usedBytes);
      set(
        'cotenant_process_sm_utilization_ratio',
        labels,
        one.smPercent === undefined ? undefined : one.smPercent / 100,
      );
    }
  },
});
