// A day and an hour of a small fleet as promtool's input, a sample a minute: nodes whose scrapes fail now and then and
// whose agents restart (counters begin at 0, one page has no sample), containers that come and go, values with noise.
// A quiet day has nothing that someone should be called for; `troubles` are what an alert is about, from 8 to 16
// o'clock, with interruptions of a minute or two. The random numbers are the same in each run.
import type { MetricName } from '../../../../dashboards/lib/metrics.ts';
import type { InputSeries } from '../node-page.ts';

/** The last hour is for rules that wait for a day. */
export const MINUTES = 25 * 60;
const FROM = 8 * 60;
const TO = 16 * 60;
const GIB = 2 ** 30;

type Labels = Readonly<Record<string, string>>;
/** At a minute; undefined: the series is not on the page. */
export type Value = (minute: number) => number | undefined;
/** What a target answers to a scrape: a page, a page without a fresh sample, or nothing. */
type Answer = 'page' | 'blind' | 'none';
export type Target = { readonly answers: (minute: number) => Answer; readonly restarts: ReadonlySet<number> };

/** Numbers from 0 to 1, the same for the same seed (mulberry32). */
export function random(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** A value of each minute that does not depend on the order of questions. */
export const each = (make: (minute: number) => number): Value => {
  const values = Array.from({ length: MINUTES }, (_, minute) => make(minute));
  return (minute) => values[minute];
};
export const always =
  (value: number): Value =>
  () =>
    value;
/** Around a value. */
export const about = (value: number, by: number, next: () => number): Value =>
  each(() => value + by * (2 * next() - 1));

type Failures = {
  readonly gaps: number;
  readonly restarts: number;
  readonly isDown?: (minute: number) => boolean;
};

/** Agents are scraped; `gaps` scrapes fail, and each of `restarts` costs one scrape and a page without a sample. */
function target(next: () => number, { gaps, restarts, isDown }: Failures): Target {
  const pick = (count: number) => Array.from({ length: count }, () => 60 + Math.floor(next() * (MINUTES - 120)));
  const missed = new Set(pick(gaps));
  const started = new Set(pick(restarts));
  const answers = (minute: number): Answer => {
    if (missed.has(minute) || started.has(minute) || isDown?.(minute)) return 'none';
    return started.has(minute - 1) ? 'blind' : 'page';
  };
  return { answers, restarts: started };
}

const text = (value: number | undefined): string =>
  value === undefined ? 'stale' : Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(6)));

/** With runs of one value written as promtool does. */
function written(name: string, labels: Labels, value: Value): InputSeries {
  const parts: string[] = [];
  let run = 0;
  for (let minute = 0; minute < MINUTES; minute += 1) {
    const now = text(value(minute));
    if (minute + 1 < MINUTES && now === text(value(minute + 1))) {
      run += 1;
      continue;
    }
    parts.push(run === 0 ? now : now === 'stale' ? `stale _x${run}` : `${now}x${run}`);
    run = 0;
  }
  const set = Object.entries(labels).map(([label, of]) => `${label}="${of}"`);
  return { series: `${name}{${set.join(', ')}}`, values: parts.join(' ') };
}

export type Fleet = ReturnType<typeof createFleet>;

/** What is made of it, in order, is the same for the same seed. */
export function createFleet(seed: number) {
  const series: InputSeries[] = [];
  const next = random(seed);
  return {
    series,
    next,
    /** A gauge on the page of a target. */
    gauge(of: Target, name: MetricName, labels: Labels, value: Value): void {
      series.push(written(name, labels, (minute) => (of.answers(minute) === 'none' ? undefined : value(minute))));
    },
    /** A counter that grows by so much a minute; it is not on a page without a sample. */
    counter(of: Target, name: MetricName, labels: Labels, perMinute: Value): void {
      let sum = 0;
      const sums = Array.from({ length: MINUTES }, (_, minute) => {
        if (of.restarts.has(minute)) sum = 0;
        const by = perMinute(minute);
        sum += by ?? 0;
        return of.answers(minute) !== 'page' || by === undefined ? undefined : sum;
      });
      series.push(written(name, labels, (minute) => sums[minute]));
    },
    /** A target of the job, with its own state. */
    target(job: string, instance: string, failures: Failures) {
      const of = target(next, failures);
      const labels = { job, instance };
      series.push(written('up', labels, (minute) => (of.answers(minute) === 'none' ? 0 : 1)));
      return { of, labels };
    },
  };
}

export type Node = ReturnType<typeof node>;
/** An agent that does well. */
export function node(fleet: Fleet, instance: string, gaps = 5, restarts = 3) {
  const { of, labels } = fleet.target('cotenant', instance, { gaps, restarts });
  fleet.gauge(of, 'cotenant_up', labels, (minute) => (of.answers(minute) === 'blind' ? 0 : 1));
  fleet.gauge(of, 'cotenant_enforcement_mode', { ...labels, enforcement: 'enforce' }, always(1));
  return { of, labels, gpus: new Map<string, Labels>() };
}

/** A GPU of 80 GiB, of which some is granted. */
export function gpu(fleet: Fleet, { of, labels }: Node, index: number, granted: Value = always(60 * GIB)): Labels {
  const id = { ...labels, gpu: String(index), gpu_uuid: `GPU-${labels.instance}-${index}` };
  fleet.gauge(of, 'cotenant_device_info', { ...id, model: 'H100', mig_mode: 'disabled' }, always(1));
  fleet.gauge(of, 'cotenant_device_memory_total_bytes', id, always(80 * GIB));
  fleet.gauge(of, 'cotenant_device_memory_allocated_bytes', id, granted);
  return id;
}

/** A container with 10 GiB and half of a GPU, on its page from the one minute to the other. */
export function container(fleet: Fleet, on: { of: Target; gpu: Labels }, pod: string, lives = [0, MINUTES]) {
  const id = { ...on.gpu, namespace: 'team', pod, container: 'main' };
  const alive =
    (value: Value): Value =>
    (minute) =>
      minute >= (lives[0] ?? 0) && minute < (lives[1] ?? MINUTES) ? value(minute) : undefined;
  const gauge = (name: MetricName, value: Value, more: Labels = {}) =>
    fleet.gauge(on.of, name, { ...id, ...more }, alive(value));
  const counter = (name: MetricName, value: Value, more: Labels = {}) =>
    fleet.counter(on.of, name, { ...id, ...more }, alive(value));
  gauge('cotenant_container_memory_limit_bytes', always(10 * GIB));
  return { id, gauge, counter };
}

/** What every container does on a good day, unless it is another one's subject. */
export function ordinary(fleet: Fleet, one: ReturnType<typeof container>, but: readonly MetricName[] = []): void {
  const { next } = fleet;
  const gauges: Partial<Record<MetricName, Value>> = {
    cotenant_container_memory_used_bytes: about(8.6 * GIB, 0.7 * GIB, next),
    cotenant_container_memory_over_limit: each(() => (next() < 0.005 ? 1 : 0)),
    cotenant_container_memory_bypass_bytes: each(() => (next() < 0.01 ? 0.1 * GIB : 0)),
    cotenant_container_sm_limit_effective_ratio: about(0.5, 0.05, next),
  };
  const counters: Partial<Record<MetricName, Value>> = {
    cotenant_container_allocations_denied_total: each(() => (next() < 0.02 ? 20 : 0)),
    cotenant_container_sm_seconds_total: about(28, 2.6, next),
    cotenant_container_sm_charged_seconds_total: always(28),
    cotenant_container_sm_throttled_seconds_total: about(18, 17, next),
  };
  for (const [name, value] of Object.entries(gauges) as [MetricName, Value][])
    if (!but.includes(name)) one.gauge(name, value);
  for (const [name, value] of Object.entries(counters) as [MetricName, Value][])
    if (!but.includes(name)) one.counter(name, value);
}

/** While there is trouble, but for a minute or two in about every fifteen. */
export function trouble(fleet: Fleet, bad: number, good: number, often = 0.05): Value {
  const { next } = fleet;
  let pause = 0;
  return each((minute) => {
    if (minute < FROM || minute >= TO) return good;
    if (pause === 0 && next() < often) pause = next() < 0.5 ? 1 : 2;
    if (pause > 0) {
      pause -= 1;
      return good;
    }
    return bad;
  });
}

/** Without interruption: what the driver or the agent says until it is mended. */
export const lasting = (bad: number, good: number): Value =>
  each((minute) => (minute >= FROM && minute < TO ? bad : good));

/** The time of the last event, which come 3 to 20 minutes apart; none before the first. */
export function events(fleet: Fleet): Value {
  let last: number | undefined;
  let due = FROM;
  const times = Array.from({ length: MINUTES }, (_, minute) => {
    if (minute >= due && minute < TO) {
      last = minute * 60;
      due = minute + 3 + Math.floor(fleet.next() * 18);
    }
    return last;
  });
  return (minute) => times[minute];
}

/** For some minutes after each of these. */
export const after = (starts: readonly number[], minutes: number, value: number, otherwise: number): Value =>
  each((minute) => (starts.some((start) => minute >= start && minute < start + minutes) ? value : otherwise));
