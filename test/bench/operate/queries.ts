// How long a Prometheus with 50,000 of our series takes to answer each query of the boards, as Grafana sends it when a
// board is opened: all nodes, GPUs, namespaces and pods chosen, the last hour in steps of 15 seconds.
import { recordedFleet } from '../../boards/recorded.ts';
import { panelQueries } from '../../integration/dashboards/answers.ts';
import { prometheusReason } from '../../support/services/prometheus.ts';
import { type BenchOptions, withTeardown } from '../bench.ts';
import type { Row } from '../row.ts';

const SERIES = 50_000;
const FLEET = { gpus: 8, tenants: 1040 };
const MOST_MS = 1000;
const TIMES = { rateInterval: '4m', interval: '15s', range: '1h' };
const [RANGE_SECONDS, STEP_SECONDS] = [3600, 15];
/** The fastest of these is the query's time: what else the machine does comes and goes. */
const TRIES = 3;
const SHOWN = 5;

export async function queries({ note }: BenchOptions): Promise<readonly Row[]> {
  const rows = (series: number | null, slowest: number | null, skipped?: string): readonly Row[] => [
    {
      ...{ name: 'boards.slowest_query_ms', value: slowest, unit: 'ms', goal: { most: MOST_MS } },
      ...{
        reference: { value: MOST_MS, what: 'ms that a reader waits for a panel at most' },
        ...(skipped && { skipped }),
      },
    },
    {
      ...{ name: 'boards.queried_series', value: series, unit: 'series', goal: { least: SERIES } },
      ...{ reference: { value: SERIES, what: 'series of a large cluster' }, ...(skipped && { skipped }) },
    },
  ];
  const reason = prometheusReason();
  if (reason !== undefined) return rows(null, null, reason);
  return await withTeardown(async (scope) => {
    const { prometheus, toSeconds, series } = await recordedFleet(scope, FLEET);
    const timed: { readonly where: string; readonly ms: number }[] = [];
    for (const { board, title, refId, expr, isInstant } of panelQueries(TIMES)) {
      const when = isInstant
        ? { time: toSeconds }
        : { start: toSeconds - RANGE_SECONDS, end: toSeconds, step: STEP_SECONDS };
      const asked = new URLSearchParams({ query: expr, ...textsOf(when) });
      const url = `${prometheus.url}/api/v1/query${isInstant ? '' : '_range'}?${asked}`;
      const tries: number[] = [];
      for (let count = 0; count < TRIES; count += 1) {
        const before = performance.now();
        const answer = await fetch(url);
        const text = await answer.text();
        if (!answer.ok) throw new Error(`${board}, ${title}: ${text}`);
        tries.push(performance.now() - before);
      }
      timed.push({ where: `${board}, ${title} ${refId}`, ms: Math.min(...tries) });
    }
    timed.sort((left, right) => right.ms - left.ms);
    for (const { where, ms } of timed.slice(0, SHOWN)) note(`${Math.round(ms)} ms: ${where}`);
    return rows(series, timed[0]?.ms ?? null);
  });
}

const textsOf = (values: Readonly<Record<string, number>>): Readonly<Record<string, string>> =>
  Object.fromEntries(Object.entries(values).map(([name, value]) => [name, String(value)]));
