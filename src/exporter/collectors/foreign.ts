// Metrics of containers that use a GPU without having been allocated it.
import { sumsOf } from '../../agent/counters/series-sums.ts';
import type { Snapshot } from '../../agent/snapshot/snapshot.ts';
import { counter, defineCollector, GPU_LABELS, gauge, gpuLabels, type Labels, type Series } from './collector.ts';

/** The label `container`. A container without a known name goes by its id. */
const containerName = (of: {
  readonly containerId: string;
  readonly podUid: string;
  readonly pod: string;
  readonly container: string;
}): string => of.container || of.containerId.slice(0, 12) || (of.pod === '' ? of.podUid : '');

const LABELS = [...GPU_LABELS, 'namespace', 'pod', 'container'];

const METRICS = {
  cotenant_foreign_memory_used_bytes: gauge('GPU memory of a container that has no grant of the GPU.', LABELS),
  cotenant_foreign_sm_seconds_total: counter('Compute time of a container that has no grant of the GPU.', LABELS),
} as const;

type ForeignNames = {
  readonly gpuIndex: number;
  readonly gpuUuid: string;
  readonly namespace: string;
  readonly pod: string;
  readonly container: string;
};
const labelsOf = ({ gpuIndex, gpuUuid, namespace, pod, container }: ForeignNames): Labels => ({
  ...gpuLabels({ index: gpuIndex, uuid: gpuUuid }),
  namespace,
  pod,
  container,
});

function setCounters(snapshot: Snapshot, set: Series<keyof typeof METRICS>['set'], lives: boolean): void {
  const totals = snapshot.foreignTotals.map((of) => ({ ...of, container: containerName(of), mode: 'none' }));
  for (const sum of sumsOf(totals))
    if (sum.lives === lives && sum.utilizationKnown)
      set('cotenant_foreign_sm_seconds_total', labelsOf(sum), sum.smSeconds);
}

export const foreign = defineCollector({
  name: 'foreign',
  metrics: METRICS,
  collect(snapshot, { set }) {
    for (const use of snapshot.foreign) {
      const labels = labelsOf({ ...use, container: containerName(use) });
      set('cotenant_foreign_memory_used_bytes', labels, use.usedBytes);
    }
    setCounters(snapshot, set, true);
  },
  collectEnded(snapshot, { set }) {
    setCounters(snapshot, set, false);
  },
});
