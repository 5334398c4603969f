// What a family of metrics is: it registers its names once and fills them from a view. One file per family lies beside.
import type { View } from '../view.ts';
import { Counter, Gauge, type Registry } from './prom-client.ts';

export type Family = {
  /** Value of the `collector` label. */
  readonly name: string;
  /** Registers the metrics; the answer fills them anew, after `clear`. `guard` bounds what the page may hold. */
  create(registry: Registry, guard?: Guard): { readonly fill: (view: View) => void; readonly clear: () => void };
};

/** Keeps a page from growing with whatever tenants make up. */
export type Guard = {
  /** May one more series be shown? One that may not is counted as left out. */
  take(): boolean;
  /** Series that a family left out by itself. */
  leftOut(count: number): void;
};
const NO_GUARD: Guard = { take: () => true, leftOut: () => {} };

type Labels = Readonly<Record<string, string>>;

/** Metrics that are set whole from each view: series of what is gone disappear with the next one. */
export function metricSet(registry: Registry, guard: Guard = NO_GUARD) {
  const clears: (() => void)[] = [];
  const forget = (metric: Gauge | Counter, labelNames: readonly string[]) => {
    clears.push(() => {
      metric.reset();
      // Without labels a reset metric would show 0 although nothing is known.
      if (labelNames.length === 0) metric.remove({});
    });
  };
  return {
    gauge(name: string, help: string, labelNames: readonly string[] = []) {
      const gauge = new Gauge({ name, help, labelNames: [...labelNames], registers: [registry] });
      forget(gauge, labelNames);
      return (labels: Labels, value: number | undefined) => {
        // Absent rather than a number that says nothing.
        if (value !== undefined && Number.isFinite(value) && guard.take()) gauge.set(labels, value);
      };
    },
    /** `value` is the total, not an increase. */
    counter(name: string, help: string, labelNames: readonly string[] = []) {
      const counter = new Counter({ name, help, labelNames: [...labelNames], registers: [registry] });
      forget(counter, labelNames);
      return (labels: Labels, value: number | undefined) => {
        if (value !== undefined && Number.isFinite(value) && value >= 0 && guard.take()) counter.inc(labels, value);
      };
    },
    clear() {
      for (const clear of clears) clear();
    },
  };
}

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
  /** How it has the card; a grant is a share. */
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
