// What a collector is: it declares its metrics (name, type, help, labels) and sets their series from a snapshot.
// render.ts registers the declarations with prom-client anew for each page, so a series that is not set is not on the
// page.
import type { SampledGpu } from '../../agent/sampling/sample.ts';
import type { Snapshot } from '../../agent/snapshot/snapshot.ts';

export type Labels = Readonly<Record<string, string>>;
export type Metric = {
  readonly type: 'gauge' | 'counter';
  readonly help: string;
  readonly labels: readonly string[];
  /** Each GPU has one series, with this field of the sample by this divisor. Absent: the collector sets its series. */
  readonly reading?: { readonly field: NumberField; readonly divisor: number } | undefined;
};
type NumberField = {
  [K in keyof SampledGpu]-?: NonNullable<SampledGpu[K]> extends number ? K : never;
}[keyof SampledGpu];

/** Where a collector puts its series. */
export type Series<Name extends string> = {
  /**
   * Sets one series. The value of a counter is its total; totals with the same labels are added up. Without a finite
   * value the series is left out: absent rather than wrong.
   */
  set(name: Name, labels: Labels, value: number | undefined): void;
  /** Counts series that the collector leaves out by itself. */
  drop(count: number): void;
};

export type Collector<Name extends string = string> = {
  /** Value of the label `collector`. */
  readonly name: string;
  readonly metrics: Readonly<Record<Name, Metric>>;
  collect(snapshot: Snapshot, series: Series<Name>): void;
  /** Series of ended containers. They come after all others, so that a full page loses these first. */
  collectEnded?(snapshot: Snapshot, series: Series<Name>): void;
};

/** Infers the names of the metrics, so that a misspelled one does not compile. */
export const defineCollector = <Name extends string>(collector: Collector<Name>): Collector<Name> => collector;

const metric =
  (type: Metric['type']) =>
  (help: string, labels: readonly string[] = [], field?: NumberField, divisor = 1): Metric => ({
    type,
    help,
    labels,
    reading: field && { field, divisor },
  });
export const gauge = metric('gauge');
export const counter = metric('counter');

/** A gauge of each GPU that is a field of the sample. */
export const reading = (help: string, field: NumberField, divisor = 1): Metric =>
  gauge(help, GPU_LABELS, field, divisor);

/** Sets the metrics that are fields of the sample. */
export function setReadings<Name extends string>(
  metrics: Readonly<Record<Name, Metric>>,
  gpu: SampledGpu,
  labels: Labels,
  set: Series<Name>['set'],
): void {
  for (const name in metrics) {
    const { reading } = metrics[name];
    const value = reading && gpu[reading.field];
    if (reading && value !== undefined) set(name, labels, value / reading.divisor);
  }
}

export const GPU_LABELS = ['gpu', 'gpu_uuid'] as const;
/** A container, and how it got its GPU. */
export const HOLDER_LABELS = ['namespace', 'pod', 'container', 'mode'] as const;
export const CONTAINER_LABELS = [...GPU_LABELS, ...HOLDER_LABELS] as const;

export function gpuLabels({ index, uuid }: { readonly index: number; readonly uuid: string }): Labels {
  return { gpu: String(index), gpu_uuid: uuid };
}

type HolderNames = {
  readonly namespace: string;
  readonly pod: string;
  readonly container: string;
  /** Absent: by a grant, which is a share of the GPU. */
  readonly mode?: string;
};

export function holderLabels({ namespace, pod, container, mode = 'shared' }: HolderNames): Labels {
  return { namespace, pod, container, mode };
}

export function containerLabels(of: HolderNames & { readonly gpuIndex: number; readonly gpuUuid: string }): Labels {
  return { ...gpuLabels({ index: of.gpuIndex, uuid: of.gpuUuid }), ...holderLabels(of) };
}

export const secondsOf = (ms: number | undefined): number | undefined => (ms === undefined ? undefined : ms / 1000);
export const scaled = (value: number | undefined, factor: number): number | undefined =>
  value === undefined ? undefined : value * factor;
