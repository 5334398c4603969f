// Containers that use a GPU without a grant of it: the GPU's other users can explain no shortage without them.
import { type Counts, type Sum, sumsOf } from '../../agent/counters/series-sums.ts';
import type { Snapshot } from '../../agent/snapshot/snapshot.ts';
import { remembering } from '../../common/memo.ts';
import { DEVICE_LABELS, deviceLabels, type Family, metricSet } from '../format/family.ts';

/** The container's label; a container without a known name goes by its id. */
const foreignContainer = (of: {
  readonly containerId: string;
  readonly podUid: string;
  readonly pod: string;
  readonly container: string;
}): string => of.container || of.containerId.slice(0, 12) || (of.pod === '' ? of.podUid : '');

const LABELS = [...DEVICE_LABELS, 'namespace', 'pod', 'container'];

export const foreign: Family = {
  name: 'foreign',
  create(registry, guard) {
    const set = metricSet(registry, guard);
    const used = set.gauge(
      'cotenant_foreign_memory_used_bytes',
      'Memory held by a container that has no grant of the GPU.',
      LABELS,
    );
    const smSeconds = set.counter(
      'cotenant_foreign_sm_seconds_total',
      'Compute time of a container that has no grant of the GPU.',
      LABELS,
    );
    const labelsOf = (of: Pick<Counts, 'gpuIndex' | 'gpuUuid' | 'namespace' | 'pod' | 'container'>) => ({
      ...deviceLabels(of.gpuIndex, of.gpuUuid),
      namespace: of.namespace,
      pod: of.pod,
      container: of.container,
    });
    const shown = <T extends Parameters<typeof foreignContainer>[0]>(of: T) => ({
      ...of,
      container: foreignContainer(of),
      mode: 'none',
    });
    const counted = (sum: Sum) => smSeconds(labelsOf(sum), sum.computeTold ? sum.smSeconds : undefined);
    const countsOf = remembering((snapshot: Snapshot) => sumsOf(snapshot.foreignTotals.map(shown), snapshot));
    return {
      clear: set.clear,
      fill(snapshot) {
        for (const use of snapshot.foreign) used(labelsOf(shown(use)), use.usedBytes);
        for (const sum of countsOf(snapshot)) if (sum.lives) counted(sum);
      },
      fillEnded(snapshot) {
        for (const sum of countsOf(snapshot)) if (!sum.lives) counted(sum);
      },
    };
  },
};
