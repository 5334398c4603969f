// The metrics that boards and rules may use are all that the agent serves.
import test from 'ava';
import { METRICS } from '../../../dashboards/lib/metrics.ts';
import { processes } from '../../../src/exporter/collectors/process.ts';
import { COLLECTORS, PAGE_METRICS } from '../../../src/exporter/render.ts';
import { selfMetrics } from '../../../src/serving/process-metrics.ts';

test('dashboards/lib/metrics.ts has the metrics of every collector', (t) => {
  const served = [...COLLECTORS, processes].flatMap(({ metrics }) => Object.entries(metrics));
  const ours = Object.entries(METRICS).filter(([name]) => name.startsWith('cotenant_'));
  t.deepEqual(new Map(ours), new Map([...served, ...Object.entries(PAGE_METRICS)]));
  t.is(ours.length, served.length + Object.keys(PAGE_METRICS).length, 'each name once');
});

test("the other metrics are of the agent's process, and two of Prometheus", async (t) => {
  const own = [...(await selfMetrics().metrics()).matchAll(/^# TYPE (\S+)/gm)].map(([, name]) => name);
  const others = Object.keys(METRICS).filter((name) => !name.startsWith('cotenant_') && !own.includes(name));
  t.deepEqual(others, ['up', 'scrape_samples_scraped']);
});
