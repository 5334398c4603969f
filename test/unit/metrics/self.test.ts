// What the process tells of itself: all that prom-client would, and turns of the event loop without a timer that looks for them.
import { setTimeout as delay } from 'node:timers/promises';
import test from 'ava';
import { collectDefaultMetrics, Registry } from 'prom-client';
import { selfMetrics } from '../../../src/agent/metrics/self.ts';
import { seriesOf } from '../../support/agent.ts';
import { eventually } from '../../support/node.ts';

const namesOf = (page: string): string[] =>
  [...page.matchAll(/^# TYPE (\S+ \S+)$/gm)].map(([, name = '']) => name).sort();

test("the names are those of prom-client's default metrics, with their types", async (t) => {
  const register = new Registry();
  collectDefaultMetrics({ register });
  const names = namesOf(await selfMetrics().metrics());
  t.deepEqual(names, namesOf(await register.metrics()));
  t.true(names.includes('nodejs_eventloop_lag_max_seconds gauge'));
});

test('a turn of the event loop that took long is told on the next page, and not on those after it', async (t) => {
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
