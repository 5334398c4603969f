// What a family of metrics is: it registers its names once and fills them from a snapshot. One file per family lies beside.
import type { Snapshot } from '../../agent/snapshot/snapshot.ts';
import type { Exposition, Labels, MetricType } from './text.ts';

export type Family = {
  /** Value of the `collector` label. */
  readonly name: string;
  /** Registers the metrics; the answer fills them anew, after `clear`. `guard` bounds what the page may hold. */
  create(
    page: Exposition,
    guard?: Guard,
  ): {
    readonly fill: (snapshot: Snapshot) => void;
    /** After all families were filled, in what room they have left: of what has ended. */
    readonly fillEnded?: (snapshot: Snapshot) => void;
    readonly clear: () => void;
  };
};

/** Keeps a page from growing with whatever tenants make up. */
export type Guard = {
  /** May one more series be shown? One that may not is counted as left out. */
  take(): boolean;
  /** Series that a family left out by itself. */
  leftOut(count: number): void;
};
const NO_GUARD: Guard = { take: () => true, leftOut: () => {} };

/** Metrics that are set whole from each snapshot: series of what is gone disappear with the next one. */
export function metricSet(page: Exposition, guard: Guard = NO_GUARD) {
  const clears: (() => void)[] = [];
  const registered = (type: MetricType, name: string, help: string, labelNames: readonly string[]) => {
    const series = page.register({ name, type, help, labelNames });
    clears.push(series.clear);
    return series;
  };
  return {
    gauge(name: string, help: string, labelNames: readonly string[] = NO_LABELS) {
      const series = registered('gauge', name, help, labelNames);
      return (labels: Labels, value: number | undefined) => {
        // Absent rather than a number that says nothing.
        if (value !== undefined && Number.isFinite(value) && guard.take()) series.set(labels, value);
      };
    },
    /** `value` is the total, not an increase. */
    counter(name: string, help: string, labelNames: readonly string[] = NO_LABELS) {
      const series = registered('counter', name, help, labelNames);
      return (labels: Labels, value: number | undefined) => {
        if (value !== undefined && Number.isFinite(value) && value >= 0 && guard.take()) series.add(labels, value);
      };
    },
    clear() {
      for (const clear of clears) clear();
    },
  };
}

const NO_LABELS: readonly string[] = [];
export const DEVICE_LABELS = ['gpu', 'gpu_uuid'];
export const CONTAINER_LABELS = [...DEVICE_LABELS, 'namespace', 'pod', 'container', 'mode'];

export function deviceLabels(index: number, uuid: string): Labels {
  return { gpu: String(index), gpu_uuid: uuid };
}

export function containerLabels(of: {
  gpuIndex: number;
  gpuUuid: string;
  namespace: string;
  pod: string;
  container: string;
  /** How it has the GPU; a grant is a share. */
  mode?: string;
}): Labels {
  return {
    ...deviceLabels(of.gpuIndex, of.gpuUuid),
    namespace: of.namespace,
    pod: of.pod,
    container: of.container,
    mode: of.mode ?? 'shared',
  };
}
