// Containers that use a card without any grant: the card's other users can explain no shortage without them.
import { DEVICE_LABELS, deviceLabels, type Family, metricSet } from '../family.ts';

const LABELS = [...DEVICE_LABELS, 'namespace', 'pod', 'container'];

export const foreign: Family = {
  name: 'foreign',
  create(registry, guard) {
    const set = metricSet(registry, guard);
    const used = set.gauge(
      'cotenant_foreign_memory_used_bytes',
      'Memory held by a container that has no grant.',
      LABELS,
    );
    const smSeconds = set.counter(
      'cotenant_foreign_sm_seconds_total',
      'Compute time of a container that has no grant.',
      LABELS,
    );
    const labelsOf = (of: {
      gpuIndex: number;
      gpuUuid: string;
      namespace: string;
      pod: string;
      container: string;
      containerId: string;
      podUid: string;
    }) => ({
      ...deviceLabels(of.gpuIndex, of.gpuUuid),
      namespace: of.namespace,
      pod: of.pod,
      container: of.container || of.containerId.slice(0, 12) || (of.pod === '' ? of.podUid : ''),
    });
    return {
      clear: set.clear,
      fill(view) {
        for (const use of view.foreign) used(labelsOf(use), use.usedBytes);
        for (const totals of view.foreignTotals)
          smSeconds(labelsOf(totals), totals.computeTold ? totals.smSeconds : undefined);
      },
    };
  },
};
