// The metrics that boards and rules may use are all that the agent serves.
import test from 'ava';
import { CLUSTER_METRICS, CONTROL_PLANE_METRICS, METRICS } from '../../../dashboards/lib/metrics.ts';
import { processes } from '../../../src/exporter/collectors/process.ts';
import { COLLECTORS, PAGE_METRICS } from '../../../src/exporter/render.ts';
import { createMetrics as schedulerMetrics } from '../../../src/scheduler/metrics.ts';
import { selfMetrics } from '../../../src/serving/process-metrics.ts';
import { createMetrics as webhookMetrics } from '../../../webhook/metrics.ts';

test('dashboards/lib/metrics.ts has the metrics of every collector', (t) => {
  const served = [...COLLECTORS, processes].flatMap(({ metrics }) => Object.entries(metrics));
  const ours = Object.entries(METRICS).filter(
    ([name]) => name.startsWith('cotenant_') && !Object.hasOwn(CONTROL_PLANE_METRICS, name),
  );
  t.deepEqual(new Map(ours), new Map([...served, ...Object.entries(PAGE_METRICS)]));
  t.is(ours.length, served.length + Object.keys(PAGE_METRICS).length, 'each name once');
});

test('the other metrics are of the process, of Prometheus and of kube-state-metrics', async (t) => {
  const own = [...(await selfMetrics().metrics()).matchAll(/^# TYPE (\S+)/gm)].map(([, name]) => name);
  const others = Object.keys(METRICS).filter((name) => !name.startsWith('cotenant_') && !own.includes(name));
  t.deepEqual(others, ['up', 'scrape_samples_scraped', ...Object.keys(CLUSTER_METRICS)]);
});

test('the control plane serves its metrics, with their labels', async (t) => {
  const scheduler = schedulerMetrics();
  const none = () => 0;
  scheduler.addState({
    ...{ epoch: () => 1, nodes: none, grantedPods: none, bindingsInFlight: none, overcommittedGpus: none },
    invalid: () => ({ nodes: 0, pods: 0 }),
  });
  scheduler.observe('filter', 'ok', 0.001);
  const webhook = webhookMetrics();
  webhook.observe('mutate', 'patched', 0.001);
  const text = `${await scheduler.render()}\n${await webhook.render()}`;
  for (const [name, { type, labels }] of Object.entries(CONTROL_PLANE_METRICS)) {
    const family = name.replace(/_bucket$/, '');
    const declared = new RegExp(`^# TYPE ${family} (\\w+)$`, 'm').exec(text)?.[1];
    t.is(declared, family === name ? type : 'histogram', name);
    const [, found = ''] = new RegExp(`^${name}(?:\\{(.*)\\})? `, 'm').exec(text) ?? [];
    t.deepEqual(
      [...found.matchAll(/(\w+)="/g)].map(([, label]) => label),
      [...labels],
      name,
    );
  }
});
