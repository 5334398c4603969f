// Metrics of the process itself under prom-client's names, and event loop iterations without a timer.
import { setTimeout as delay } from 'node:timers/promises';
import test from 'ava';
import { collectDefaultMetrics, Registry } from 'prom-client';
import { selfMetrics } from '../../../src/serving/process-metrics.ts';
import { eventually } from '../../support/native/node.ts';
import { seriesOf } from '../../support/product/agent.ts';

const namesOf = (page: string): string[] =>
  [...page.matchAll(/^# TYPE (\S+ \S+)$/gm)].map(([, name = '']) => name).sort();

test("process metrics have prom-client's names and types", async (t) => {
  const register = new Registry();
  collectDefaultMetrics({ register });
  const theirs = namesOf(await register.metrics());
  const names = namesOf(await selfMetrics().metrics());
  t.deepEqual(names, [
    'nodejs_eventloop_lag_max_seconds gauge',
    'nodejs_eventloop_lag_mean_seconds gauge',
    'nodejs_eventloop_lag_p99_seconds gauge',
    'nodejs_eventloop_lag_seconds gauge',
    'nodejs_external_memory_bytes gauge',
    'nodejs_heap_size_total_bytes gauge',
    'nodejs_heap_size_used_bytes gauge',
    'process_cpu_seconds_total counter',
    'process_cpu_system_seconds_total counter',
    'process_cpu_user_seconds_total counter',
    'process_heap_bytes gauge',
    'process_max_fds gauge',
    'process_open_fds gauge',
    'process_resident_memory_bytes gauge',
    'process_start_time_seconds gauge',
    'process_virtual_memory_bytes gauge',
  ]);
  t.deepEqual(
    names.filter((name) => !theirs.includes(name)),
    [],
  );
});

test('a long event loop iteration shows on the next page only', async (t) => {
  const self = selfMetrics();
  const longest = async () => seriesOf(await self.metrics(), 'nodejs_eventloop_lag_max_seconds') ?? -1;
  await longest();
  await delay(1);
  const until = performance.now() + 300;
  while (performance.now() < until);
  await delay(1);
  t.true((await longest()) >= 0.3);
  await eventually(async () => (await longest()) < 0.3 || undefined, 'a page without it');
});
