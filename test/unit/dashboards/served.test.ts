// The metrics that the board and the rules may use are those that the agent serves, of that type and with those labels.
import test from 'ava';
import { METRICS, type Metric } from '../../../dashboards/lib/metrics.ts';
import { createExposition } from '../../../src/exporter/format/text.ts';
import { selfMetrics } from '../../../src/exporter/process-metrics.ts';
import { FAMILIES, PROCESS_FAMILY } from '../../../src/exporter/render.ts';

/** Everything that the agent's page registers. */
function served(): ReadonlyMap<string, Metric> {
  const exposition = createExposition();
  for (const family of [...FAMILIES, PROCESS_FAMILY]) family.create(exposition);
  return new Map(
    exposition.metrics().map(({ name, type, labelNames }) => [name, { type, labels: [...labelNames].sort() }]),
  );
}

test('the agent serves every metric of dashboards/lib/metrics.ts, of that type and with those labels', (t) => {
  const found = served();
  // The page adds those about its own making.
  const aboutPage = /^cotenant_exporter_(collector_|render_|series_dropped_)/;
  const names = Object.keys(METRICS).filter((name) => name.startsWith('cotenant_') && !aboutPage.test(name));
  t.deepEqual(names.toSorted(), [...found.keys()].toSorted(), 'and no other');
  const metrics: Readonly<Record<string, Metric>> = METRICS;
  for (const name of names) {
    const { type, labels = [] } = metrics[name] ?? {};
    t.deepEqual(found.get(name), { type, labels: [...labels].sort() } as Metric, name);
  }
});

test('what is about its process it serves, too, and only what each target has is of Prometheus itself', async (t) => {
  const own = [...(await selfMetrics().metrics()).matchAll(/^# TYPE (\S+)/gm)].map(([, name]) => name);
  const others = Object.keys(METRICS).filter((name) => !name.startsWith('cotenant_') && !own.includes(name));
  t.deepEqual(others, ['up', 'scrape_samples_scraped']);
});
