// What an agent that is killed has counted, its successor goes on from: no counter falls, none begins anew, and a stop that nobody
// had scraped yet is there.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { type RunningAgent, runTenant, seriesOf, startAgent, tell } from '../../../support/agent.ts';
import { MIB } from '../../../support/grant.ts';
import { BUILD, eventually, startNode } from '../../../support/node.ts';

const CLIENT = join(BUILD, 'tests/client');
const GOES_ON = /^(cotenant_(?:container|enforcement|device_xid|foreign)_\w+_total\{.*\}) (\S+)$/;

const countersOf = (page: string): ReadonlyMap<string, number> =>
  new Map(
    page.split('\n').flatMap((line) => {
      const [, series, value] = GOES_ON.exec(line) ?? [];
      return series === undefined ? [] : [[series, Number(value)] as const];
    }),
  );

test('counters of a killed agent go on with the next one, with stops that nobody had scraped', async (t) => {
  t.timeout(120_000);
  const node = await startNode(t, '--gpu', 't4');
  const settings = { intervalMs: 200, urgentIntervalMs: 100, calibrate: false, computePolicy: 'fixed' };
  let agent: RunningAgent = await startAgent(t, node, { settings });
  const words = ['libcuda.so.1', 'init', 'context 0', 'load async 600000 3000'];
  const flags = ['--gpu-memory', '1Gi', '--gpu-cores', '40', '--name', 'busy'];
  runTenant(t, node, agent, flags, [CLIENT, ...words]);
  const cheats: { readonly atMs: number; readonly pod: string }[] = [];
  for (let round = 0; round < 3; round += 1) {
    const before = (await agent.metric('cotenant_container_sm_charged_seconds_total', { pod: 'busy' })) ?? 0;
    await eventually(async () => {
      const now = (await agent.metric('cotenant_container_sm_charged_seconds_total', { pod: 'busy' })) ?? 0;
      return now > before + 0.5 || undefined;
    }, 'it is charged for what it does');
    const file = join(agent.state, 'counters.json');
    await eventually(() => /"chargedSeconds"/.test(readFileSync(file, 'utf8')) || undefined, 'the file knows of it');
    const pod = `cheat-${round}`;
    const cheat = runTenant(
      t,
      node,
      agent,
      ['--gpu-memory', '256Mi', '--name', pod],
      ['env', '-u', 'LD_PRELOAD', CLIENT],
    );
    await tell(cheat, 'init');
    await tell(cheat, 'context 0');
    const scraped = countersOf(await agent.metrics());
    const scrapedMs = performance.now();
    const smSeconds = `cotenant_container_sm_seconds_total{gpu="0",gpu_uuid="${node.uuid(0)}",namespace="local",pod="busy",container="client",mode="shared"}`;
    t.true((scraped.get(smSeconds) ?? 0) > 0, [...scraped.keys()].join('\n'));
    const ofOthers = (series: string) => /cheat-\d/.test(series) && /_sm_|_memory_busy_|coder_/.test(series);
    cheat.write(`alloc ${400 * MIB}`);
    const stop = await eventually(
      () => agent.audit().find((one) => one.action === 'kill' && one.pod === pod),
      'it is stopped',
    );
    cheats.push({ atMs: stop.atMs, pod });
    // At once, and in one round after some samples more: both the next agent must know.
    if (round === 1) await cheat.ended;
    await agent.stop('SIGKILL');

    const { state } = agent;
    agent = await startAgent(t, node, { settings, state });
    const next = agent;
    const page = await eventually(async () => {
      const text = await next.metrics();
      // What the driver and the arbiter have not told the new agent yet is absent for a moment.
      const told = ['cotenant_container_sm_charged_seconds_total', 'cotenant_container_sm_seconds_total'];
      return told.every((name) => seriesOf(text, name, { pod: 'busy' }) !== undefined) ? text : undefined;
    }, 'driver and arbiter have told');
    const now = countersOf(page);
    // A GPU has one second in each, whoever counts it: nothing is counted twice.
    const passedSeconds = (performance.now() - scrapedMs) / 1000 + 1;
    const mostOf = (series: string) => (/_sm_(charged_|contended_)?seconds_total/.test(series) ? passedSeconds : 60);
    for (const [series, value] of scraped) {
      // Those that are 0 of who has ended go with it.
      const after = value === 0 || ofOthers(series) ? (now.get(series) ?? value) : now.get(series);
      t.true(
        after !== undefined && after >= value && after < value + mostOf(series),
        `${series}: ${value}, then ${after}`,
      );
    }
    for (const one of cheats) {
      const labels = { pod: one.pod, action: 'kill', reason: 'bypass' };
      t.is(await agent.metric('cotenant_container_kills_total', { ...labels, result: 'released' }), 1, one.pod);
      t.is(await agent.metric('cotenant_container_last_kill_timestamp_seconds', labels), one.atMs / 1000);
    }
    t.is(
      await agent.metric('cotenant_enforcement_decisions_total', { decision: 'killed', reason: 'bypass' }),
      cheats.length,
    );
    t.is(cheats.length, agent.audit().filter(({ action }) => action === 'kill').length);
  }
  t.deepEqual(
    agent.log.filter((line) => /count/.test(line)),
    [],
  );
});
