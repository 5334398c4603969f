// PromQL queries on containers, and the figures for recommendations from their results. Pure.
import type { ContainerSeries, GpuSeries, Spread } from '../../policy/rightsizing.ts';
import type { Series } from './client.ts';

/** Containers to select; undefined: all. */
export type Selection = {
  readonly job: string;
  readonly namespace?: string | undefined;
  readonly pod?: string | undefined;
};

type Times = { readonly rangeSeconds: number; readonly windowSeconds: number };

const CONTAINER = ['instance', 'namespace', 'pod', 'container'] as const;
const KEY = [...CONTAINER, 'gpu_uuid'] as const;
const BY = KEY.join(', ');
/** Stops for memory that were carried out, as far as is known. */
const STOPS = ['reason!="over-share"', 'result=~"released|interrupted"'] as const;
/** Points per series that percentiles are taken of, at most. */
const MOST_POINTS = 2000;
const LEAST_STEP_SECONDS = 15;

const PERCENTILES = { p50: 0.5, p95: 0.95, p99: 0.99 } as const;
type Percentile = keyof typeof PERCENTILES;

/** Increase of counters, and their first value. */
type Counted = 'denied' | 'stops';

/** The answers by name; each is one instant query. */
type Query =
  | 'granted'
  | 'newest'
  | 'cores'
  | 'coresHeld'
  | 'plain'
  | 'memoryPeak'
  | `memory ${Percentile}`
  | 'computePeak'
  | `compute ${Percentile}`
  | 'gpus'
  | Counted
  | `${Counted} at first`;

const OF_CONTAINERS: readonly Query[] = ['gpus', 'stops', 'stops at first'];

export function selector(metric: string, { job, namespace, pod }: Selection, ...more: readonly string[]): string {
  const matchers = [
    `job=${JSON.stringify(job)}`,
    ...(namespace === undefined ? [] : [`namespace=${JSON.stringify(namespace)}`]),
    ...(pod === undefined ? [] : [`pod=${JSON.stringify(pod)}`]),
    ...more,
  ];
  return `${metric}{${matchers.join(', ')}}`;
}

/**
 * Memory that counts for the grant: the driver's figure plus managed memory, which the driver's figure lacks. Managed
 * memory counts up to the grant's free part, because the tenant writes that figure and the interposer grants no more.
 */
export function heldBytes(of: (metric: string, ...matchers: readonly string[]) => string): string {
  const used = of('cotenant_container_memory_used_bytes');
  const managed = of('cotenant_container_memory_ledger_bytes', 'kind="managed"');
  const unused = `clamp_min(${of('cotenant_container_memory_limit_bytes')} - ${used}, 0)`;
  const beyond = `clamp_min(${managed} - ignoring (kind) ${unused}, 0)`;
  return `(${used} + ignoring (kind) ${managed} - ignoring (kind) ${beyond} or ${used})`;
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
  // A counter's first value is not an increase in Prometheus, but it is one for a container that started within the
  // range. A series that was missing before proves such a start only if its agent was up: an agent serves no containers
  // before its first sample.
  const agent = selector('cotenant_up', { job: selection.job });
  const first = (counter: string) =>
    `max_over_time((min_over_time(${counter}[${step}]) unless ${counter} offset ${step} and on (instance) ${agent} offset ${step} == 1)[${range}:${step}])`;
  const denied = of('allocations_denied_total');
  const stops = of('kills_total', ...STOPS);
  const sum = (expression: string) => `sum by (${CONTAINER.join(', ')}) (${expression})`;
  // Metrics pages have no timestamps, so all samples of one scrape have the same time.
  const seenAt = (metric: string, ...more: readonly string[]) =>
    `max_over_time(timestamp(${of(metric, ...more)})[${range}:${step}])`;
  const newest = max(seenAt('memory_limit_bytes'));
  const cores = (...more: readonly string[]) =>
    max(
      `last_over_time(${of('sm_limit_ratio', ...more)}[${range}]) and (${seenAt('sm_limit_ratio', ...more)} == on (${BY}) group_left () ${newest})`,
    );
  const spread = (name: 'memory' | 'compute', expression: string, by: string): [Query, string][] =>
    Object.entries(PERCENTILES).map(([percentile, share]) => [
      `${name} ${percentile as Percentile}`,
      max(`quantile_over_time(${share}, ${expression}[${range}:${by}])`),
    ]);
  return new Map<Query, string>([
    ['granted', max(`last_over_time(${of('memory_limit_bytes')}[${range}])`)],
    ['newest', newest],
    ['cores', cores()],
    ['coresHeld', cores('enforced="true"')],
    ['plain', max(`last_over_time(${of('info', 'runtime="process"')}[${range}])`)],
    ['memoryPeak', max(`max_over_time(${of('memory_peak_bytes')}[${range}])`)],
    ...spread('memory', held, step),
    ['computePeak', max(`max_over_time(${share}[${range}:${windowStep}])`)],
    ...spread('compute', share, windowStep),
    ['denied', max(`increase(${denied}[${range}])`)],
    ['denied at first', max(first(denied))],
    ['stops', sum(`increase(${stops}[${range}])`)],
    ['stops at first', sum(first(stops))],
    // Containers with one name that ran one after the other, each on another GPU, count as one at a time.
    ['gpus', `max_over_time(count by (${CONTAINER.join(', ')}) (${max(of('info'))})[${range}:${step}])`],
  ]);
}

/** Only containers with a peak of memory: the agent has seen those. */
export function containersOf(answers: ReadonlyMap<Query, readonly Series[]>): readonly ContainerSeries[] {
  const keyOf = ({ labels }: Series, by: readonly string[]) => JSON.stringify(by.map((label) => labels[label] ?? ''));
  const values = new Map(
    [...answers].map(([name, series]) => {
      const by = OF_CONTAINERS.includes(name) ? CONTAINER : KEY;
      return [name, { by, of: new Map(series.map((one) => [keyOf(one, by), one.value])) }];
    }),
  );
  const lookUp = (name: Query, one: Series) => {
    const found = values.get(name);
    return found?.of.get(keyOf(one, found.by));
  };
  const counted = (name: Counted, one: Series) =>
    Math.round((lookUp(name, one) ?? 0) + (lookUp(`${name} at first`, one) ?? 0));
  const spreadOf = (name: 'memory' | 'compute', one: Series): Spread | undefined => {
    const peak = lookUp(`${name}Peak`, one);
    if (peak === undefined) return undefined;
    const known = Object.keys(PERCENTILES).flatMap((percentile) => {
      const value = lookUp(`${name} ${percentile as Percentile}`, one);
      return value === undefined ? [] : [[percentile, value] as const];
    });
    return { ...Object.fromEntries(known), peak };
  };
  const gpuOf = (one: Series, isNewest: boolean): GpuSeries => {
    const cores = isNewest ? lookUp('cores', one) : undefined;
    return {
      gpuUuid: one.labels.gpu_uuid ?? '',
      grantedBytes: isNewest ? lookUp('granted', one) : undefined,
      grantedCoresPercent: cores === undefined ? undefined : Math.round(cores * 100),
      coresHeld: isNewest && lookUp('coresHeld', one) !== undefined,
      memory: spreadOf('memory', one) ?? { peak: one.value },
      compute: spreadOf('compute', one),
      denied: counted('denied', one),
    };
  };
  // Namespace and name identify a pod in a cluster; the name of a process grant is unique only on its node.
  const isPlain = (one: Series) => lookUp('plain', one) !== undefined;
  const containers = Map.groupBy(answers.get('memoryPeak') ?? [], (one) =>
    keyOf(one, isPlain(one) ? CONTAINER : CONTAINER.slice(1)),
  );
  return [...containers.values()]
    .flatMap((all) => {
      const [first] = all;
      if (first === undefined) return [];
      const { namespace = '', pod = '', container = '' } = first.labels;
      const seenAt = (one: Series) => lookUp('newest', one) ?? 0;
      // Its earlier grants on other GPUs have ended.
      const lastSeen = Math.max(...all.map(seenAt));
      const gpus = all
        .map((one) => gpuOf(one, seenAt(one) === lastSeen))
        .toSorted((a, b) => (a.gpuUuid < b.gpuUuid ? -1 : 1));
      const onNodes = [...Map.groupBy(all, (one) => keyOf(one, CONTAINER)).values()];
      // A container that lived for less than a step is in no sample.
      const counts = onNodes.map((own) => Math.min(own.length, lookUp('gpus', own[0] ?? first) ?? own.length));
      return [
        {
          namespace,
          pod,
          container,
          plain: isPlain(first),
          gpuCount: Math.max(...counts),
          stops: onNodes.reduce((sum, [one]) => sum + counted('stops', one ?? first), 0),
          gpus,
        },
      ];
    })
    .toSorted((a, b) => (nameOf(a) < nameOf(b) ? -1 : 1));
}

const nameOf = ({ namespace, pod, container }: ContainerSeries): string => JSON.stringify([namespace, pod, container]);
