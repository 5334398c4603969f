// What is asked of a Prometheus about containers, and how its answers become the figures that sizes are made of. Pure.
import type { CardSeries, ContainerSeries, Spread } from '../../quota/recommend.ts';
import type { Series } from './api.ts';

/** Whom to look at; undefined: all. */
export type Selection = {
  readonly job: string;
  readonly namespace?: string | undefined;
  readonly pod?: string | undefined;
};

export type Times = { readonly rangeSeconds: number; readonly windowSeconds: number };

const KEY = ['instance', 'namespace', 'pod', 'container', 'gpu_uuid'] as const;
const BY = KEY.join(', ');
/** Points per series that percentiles are taken of, at most. */
const MOST_POINTS = 2000;
const LEAST_STEP_SECONDS = 15;

const PERCENTILES = { p50: 0.5, p95: 0.95, p99: 0.99 } as const;
type Percentile = keyof typeof PERCENTILES;

/** The answers by name; each is one instant query. */
export type Query =
  | 'granted'
  | 'cores'
  | 'coresHeld'
  | 'plain'
  | 'memoryPeak'
  | `memory ${Percentile}`
  | 'computePeak'
  | `compute ${Percentile}`
  | 'denied';

export function selector(metric: string, { job, namespace, pod }: Selection, ...more: readonly string[]): string {
  const matchers = [
    `job=${JSON.stringify(job)}`,
    ...(namespace === undefined ? [] : [`namespace=${JSON.stringify(namespace)}`]),
    ...(pod === undefined ? [] : [`pod=${JSON.stringify(pod)}`]),
    ...more,
  ];
  return `${metric}{${matchers.join(', ')}}`;
}

/** What its grant has to hold now: the driver's count, and managed memory, which is in no such count. */
export function heldBytes(of: (metric: string, ...matchers: readonly string[]) => string): string {
  const used = of('cotenant_container_memory_used_bytes');
  const managed = of('cotenant_container_memory_ledger_bytes', 'kind="managed"');
  return `(${used} + ignoring (kind) ${managed} or ${used})`;
}

export function queries(selection: Selection, { rangeSeconds, windowSeconds }: Times): ReadonlyMap<Query, string> {
  const of = (metric: string, ...more: readonly string[]) =>
    selector(`cotenant_container_${metric}`, selection, ...more);
  const range = `${rangeSeconds}s`;
  const step = `${Math.max(LEAST_STEP_SECONDS, Math.ceil(rangeSeconds / MOST_POINTS))}s`;
  const windowStep = `${Math.max(LEAST_STEP_SECONDS, Math.floor(windowSeconds / 2))}s`;
  const max = (expression: string) => `max by (${BY}) (${expression})`;
  const held = heldBytes((metric, ...more) => selector(metric, selection, ...more));
  const share = `rate(${of('sm_seconds_total')}[${windowSeconds}s])`;
  const denied = of('allocations_denied_total');
  // A counter's first value is no increase of it, but of a container that began within the range it is one.
  const refused = `(max_over_time(${denied}[${range}]) unless ${denied} offset ${range}) or increase(${denied}[${range}])`;
  const spread = (name: 'memory' | 'compute', expression: string, by: string): [Query, string][] =>
    Object.entries(PERCENTILES).map(([percentile, share]) => [
      `${name} ${percentile as Percentile}`,
      max(`quantile_over_time(${share}, ${expression}[${range}:${by}])`),
    ]);
  return new Map<Query, string>([
    ['granted', max(`last_over_time(${of('memory_limit_bytes')}[${range}])`)],
    ['cores', max(`last_over_time(${of('sm_limit_ratio')}[${range}])`)],
    ['coresHeld', max(`last_over_time(${of('sm_limit_ratio', 'enforced="true"')}[${range}])`)],
    ['plain', max(`last_over_time(${of('info', 'runtime="process"')}[${range}])`)],
    ['memoryPeak', max(`max_over_time(${of('memory_peak_bytes')}[${range}])`)],
    ...spread('memory', held, step),
    ['computePeak', max(`max_over_time(${share}[${range}:${windowStep}])`)],
    ...spread('compute', share, windowStep),
    ['denied', max(refused)],
  ]);
}

/** Only what has a peak of memory is there: it says that the agent saw the container. */
export function containersOf(answers: ReadonlyMap<Query, readonly Series[]>): readonly ContainerSeries[] {
  const keyOf = ({ labels }: Series) => JSON.stringify(KEY.map((label) => labels[label] ?? ''));
  const values = new Map(
    [...answers].map(([name, series]) => [name, new Map(series.map((one) => [keyOf(one), one.value]))]),
  );
  const lookUp = (name: Query, one: Series) => values.get(name)?.get(keyOf(one));
  const spreadOf = (name: 'memory' | 'compute', one: Series): Spread | undefined => {
    const peak = lookUp(`${name}Peak`, one);
    if (peak === undefined) return undefined;
    const known = Object.keys(PERCENTILES).flatMap((percentile) => {
      const value = lookUp(`${name} ${percentile as Percentile}`, one);
      return value === undefined ? [] : [[percentile, value] as const];
    });
    return { ...Object.fromEntries(known), peak };
  };
  const cardOf = (one: Series): CardSeries => {
    const cores = lookUp('cores', one);
    return {
      gpuUuid: one.labels.gpu_uuid ?? '',
      grantedBytes: lookUp('granted', one),
      grantedCoresPercent: cores === undefined ? undefined : Math.round(cores * 100),
      coresHeld: lookUp('coresHeld', one) !== undefined,
      memory: spreadOf('memory', one) ?? { peak: one.value },
      compute: spreadOf('compute', one),
      denied: Math.round(lookUp('denied', one) ?? 0),
    };
  };
  const containers = Map.groupBy(answers.get('memoryPeak') ?? [], ({ labels }) =>
    JSON.stringify([labels.namespace, labels.pod, labels.container, labels.instance]),
  );
  return [...containers.values()]
    .flatMap(([first, ...others]) => {
      if (first === undefined) return [];
      const { namespace = '', pod = '', container = '' } = first.labels;
      const cards = [first, ...others].map(cardOf).toSorted((a, b) => (a.gpuUuid < b.gpuUuid ? -1 : 1));
      return [{ namespace, pod, container, plain: lookUp('plain', first) !== undefined, cards }];
    })
    .toSorted((a, b) => (nameOf(a) < nameOf(b) ? -1 : 1));
}

const nameOf = ({ namespace, pod, container }: ContainerSeries): string => JSON.stringify([namespace, pod, container]);
