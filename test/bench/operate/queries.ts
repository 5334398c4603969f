// How long a Prometheus with 50,000 of our series takes to answer each query of the boards, as Grafana sends it when a
// board is opened: all nodes, GPUs, namespaces and pods chosen, the last hour in the 60 points of a panel.
import { recordedFleet } from '../../boards/recorded.ts';
import { panelQueries } from '../../integration/dashboards/answers.ts';
import { prometheusReason } from '../../support/services/prometheus.ts';
import { type BenchOptions, withTeardown } from '../bench.ts';
import type { Row } from '../row.ts';

const SERIES = 50_000;
const FLEET = { gpus: 8, tenants: 1040 };
const MOST_MS = 1000;
const TIMES = { rateInterval: '4m', interval: '1m', range: '1h' };
const [RANGE_SECONDS, STEP_SECONDS] = [3600, 60];
/** The rate interval of what is scraped each 15 seconds, of which there is one sample a minute here. */
const asScraped = (expr: string) => expr.replaceAll('[1h:4m]', '[1h:1m]');
/** The fastest of these is the query's time: what else the machine does comes and goes. */
const TRIES = 2;
const SHOWN = 5;

export async function queries({ note }: BenchOptions): Promise<readonly Row[]> {
  const rows = (
    series: number | null,
    slowest?: { readonly ms: number; readonly cpuMs: number },
    skipped?: string,
  ): readonly Row[] => [
    {
      ...{ name: 'boards.slowest_query_ms', value: slowest?.ms ?? null, unit: 'ms', goal: { most: MOST_MS } },
      // Far above the time of its processor: the machine had no time for it.
      ...{ reference: { value: slowest?.cpuMs ?? null, what: 'ms of processor time of that query' } },
      ...(skipped && { skipped }),
    },
    {
      ...{ name: 'boards.queried_series', value: series, unit: 'series', goal: { least: SERIES } },
      ...{ reference: { value: SERIES, what: 'series of a large cluster' }, ...(skipped && { skipped }) },
    },
  ];
  const reason = prometheusReason();
  if (reason !== undefined) return rows(null, undefined, reason);
  return await withTeardown(async (scope) => {
    const { prometheus, toSeconds, series } = await recordedFleet(scope, FLEET);
    const timed: { readonly where: string; readonly ms: number; readonly cpuMs: number }[] = [];
    const cpuMs = async () => {
      const page = await (await fetch(`${prometheus.url}/metrics`)).text();
      return 1000 * Number(/^process_cpu_seconds_total (\S+)/m.exec(page)?.[1]);
    };
    for (const { board, title, refId, expr, isInstant } of panelQueries(TIMES)) {
      const when = isInstant
        ? { time: toSeconds }
        : { start: toSeconds - RANGE_SECONDS, end: toSeconds, step: STEP_SECONDS };
      const asked = new URLSearchParams({ query: asScraped(expr), ...textsOf(when) });
      const url = `${prometheus.url}/api/v1/query${isInstant ? '' : '_range'}?${asked}`;
      const tries: number[] = [];
      const spent = await cpuMs();
      for (let count = 0; count < TRIES; count += 1) {
        const before = performance.now();
        const answer = await fetch(url);
        const text = await answer.text();
        if (!answer.ok) throw new Error(`${board}, ${title}: ${text}`);
        tries.push(performance.now() - before);
      }
      const each = ((await cpuMs()) - spent) / TRIES;
      timed.push({ where: `${board}, ${title} ${refId}`, ms: Math.min(...tries), cpuMs: each });
    }
    timed.sort((left, right) => right.ms - left.ms);
    for (const each of timed.slice(0, SHOWN))
      note(`${Math.round(each.ms)} ms, ${Math.round(each.cpuMs)} ms of processor time: ${each.where}`);
    return rows(series, timed[0]);
  });
}

const textsOf = (values: Readonly<Record<string, number>>): Readonly<Record<string, string>> =>
  Object.fromEntries(Object.entries(values).map(([name, value]) => [name, String(value)]));
