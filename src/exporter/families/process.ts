// Single processes, on request only: their number is bounded by the largest ones, and what was left out is counted.
import { CONTAINER_LABELS, containerLabels, type Family, metricSet } from '../format/family.ts';

export const MOST_PROCESSES = 50;
const LABELS = [...CONTAINER_LABELS, 'pid', 'process'];

export const process: Family = {
  name: 'process',
  create(registry, guard) {
    const set = metricSet(registry, guard);
    const used = set.gauge(
      'cotenant_process_memory_used_bytes',
      'Memory that the driver counts for a process.',
      LABELS,
    );
    const sm = set.gauge(
      'cotenant_process_sm_utilization_ratio',
      "Share of the GPU's compute over the last window.",
      LABELS,
    );
    return {
      clear: set.clear,
      fill(snapshot) {
        const all = [
          ...snapshot.containers.flatMap((entry) => entry.processes.map((one) => ({ entry, one }))),
          ...snapshot.assigned.flatMap((entry) => entry.processes.map((one) => ({ entry, one }))),
        ];
        const largest = all
          .toSorted((a, b) => (b.one.usedBytes ?? 0) - (a.one.usedBytes ?? 0))
          .slice(0, MOST_PROCESSES);
        guard?.leftOut(all.length - largest.length);
        for (const { entry, one } of largest) {
          const { gpuIndex } = entry;
          if (gpuIndex === undefined) continue;
          const labels = {
            ...containerLabels({ ...entry, gpuIndex }),
            pid: String(one.pid),
            process: one.command.replace(/[^A-Za-z0-9._-]/g, '_'),
          };
          used(labels, one.usedBytes);
          sm(labels, one.smPercent === undefined ? undefined : one.smPercent / 100);
        }
      },
    };
  },
};
