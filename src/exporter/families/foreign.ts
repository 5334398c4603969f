// Containers that use a card without a grant of it: the card's other users can explain no shortage without them.
import { foreignContainer } from '../../agent/counters/retired-series.ts';
import { type Counts, type Sum, sumsOf } from '../../agent/counters/series-sums.ts';
import type { View } from '../../agent/snapshot/snapshot.ts';
import { remembering } from '../../common/memo.ts';
import { DEVICE_LABELS, deviceLabels, type Family, metricSet } from '../format/family.ts';

const LABELS = [...DEVICE_LABELS, 'namespace', 'pod', 'container'];

export const foreign: Family = {
  name: 'foreign',
  create(registry, guard) {
    const set = metricSet(registry, guard);
    const used = set.gauge(
      'cotenant_foreign_memory_used_bytes',
      'Memory held by a container that has no grant of the card.',
      LABELS,
    );
    const smSeconds = set.counter(
      'cotenant_foreign_sm_seconds_total',
      'Compute time of a container that has no grant of the card.',
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
    const countsOf = remembering((view: View) => sumsOf(view.foreignTotals.map(shown), view));
    return {
      clear: set.clear,
      fill(view) {
        for (const use of view.foreign) used(labelsOf(shown(use)), use.usedBytes);
        for (const sum of countsOf(view)) if (sum.lives) counted(sum);
      },
      fillEnded(view) {
        for (const sum of countsOf(view)) if (!sum.lives) counted(sum);
      },
    };
  },
};
