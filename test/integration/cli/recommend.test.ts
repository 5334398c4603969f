// `cotenant recommend` on a node: a pod at the recommended size runs without a refusal, and one
// granule less fails.
import { join } from 'node:path';
import test from 'ava';
import { testUnless } from '../../support/gate.ts';
import { OUT_OF_MEMORY } from '../../support/native/client.ts';
import { BUILD, eventually, startNode } from '../../support/native/node.ts';
import { type RunningTenant, runTenant, startAgent, tell } from '../../support/product/agent.ts';
import { runCotenant } from '../../support/product/cli.ts';
import { MIB } from '../../support/product/grant.ts';
import { prometheusReason, scraping, startPrometheus } from '../../support/services/prometheus.ts';

const CLIENT = join(BUILD, 'tests/client');
const GRANULE = 2 * MIB;
const testWithPrometheus = testUnless(prometheusReason());

/** A program with every kind of memory, as it does its work; true: nothing was refused. */
async function work(tenant: RunningTenant): Promise<boolean> {
  const steps = [
    'init',
    'context 0',
    `alloc ${301 * MIB + 17}`,
    `pool-alloc ${50 * MIB}`,
    `vmm ${64 * MIB}`,
    `managed ${96 * MIB}`,
    'launch 10 500',
    'sync',
    `alloc ${33 * MIB}`,
  ];
  for (const step of steps) {
    const [result] = await tell(tenant, step);
    if (result === OUT_OF_MEMORY) return false;
    if (result !== 0) throw new Error(`${step}: ${result}`);
  }
  return true;
}

test('a tenant runs at the recommended size and fails with one granule less', async (t) => {
  t.timeout(120_000);
  const node = await startNode(t, '--gpu', 'l4');
  const agent = await startAgent(t, node, { settings: { intervalMs: 200, urgentIntervalMs: 100 } });
  await agent.measured(1);
  const start = (bytes: number, name: string) =>
    runTenant(t, node, agent, ['--gpu-memory', String(bytes), '--name', name], [CLIENT]);
  const large = start(4096 * MIB, 'large');
  const sampled = async () => {
    const done = Date.now();
    await eventually(
      async () => (((await agent.snapshot())?.atMs ?? 0) > done + 500 ? true : undefined),
      'it was sampled',
    );
  };
  t.true(await work(large));
  await sampled();
  const { code, out } = await runCotenant('recommend', 'local/large', '--state', agent.state, '--json');
  t.is(code, 0);
  const [found] = JSON.parse(out) as { memoryBytes: { amount: number; atLeast: boolean }; resources: object }[];
  const size = found?.memoryBytes.amount ?? 0;
  t.false(found?.memoryBytes.atLeast);
  t.true(size > 500 * MIB && size < 1500 * MIB, String(size));
  const table = await runCotenant('recommend', '--state', agent.state);
  t.true(
    table.out.includes(`\n# local/large/client, ${Math.round((1 - size / (4096 * MIB)) * 100)} % less than granted\n`),
  );
  t.regex(table.out, new RegExp(`\ncotenant run --gpu-memory ${size / MIB}Mi\n`));

  t.true(await work(start(size, 'fitting')), 'the recommended size');
  t.false(await work(start(size - GRANULE, 'small')), 'one granule less');
  await sampled();
  const again = await runCotenant('recommend', 'small', '-n', 'local', '--state', agent.state, '--json');
  const [refused] = JSON.parse(again.out) as { memoryBytes: { amount: number; atLeast: boolean } }[];
  t.deepEqual(refused?.memoryBytes, { amount: size - GRANULE, atLeast: true }, again.err);
  const missing = await runCotenant('recommend', 'absent', '--state', agent.state);
  t.is(missing.code, 1);
  t.regex(missing.out, /no container with a grant was found/);
});

test('a tenant that the agent stopped twice under one name needs more than it had', async (t) => {
  t.timeout(120_000);
  const node = await startNode(t, '--gpu', 'l4');
  const agent = await startAgent(t, node, { settings: { intervalMs: 100, urgentIntervalMs: 100 } });
  await agent.measured(1);
  const bypassing = ['env', '-u', 'LD_PRELOAD', CLIENT];
  for (let life = 0; life < 2; life++) {
    const rogue = runTenant(t, node, agent, ['--gpu-memory', '1Gi', '--name', 'rogue'], bypassing);
    for (const step of ['init', 'context 0', `alloc ${1200 * MIB}`]) await tell(rogue, step);
    await rogue.ended;
    await eventually(async () => (await agent.snapshot())?.containers.length === 0 || undefined, 'its end');
  }
  const { out, err } = await runCotenant('recommend', '--state', agent.state);
  t.is(out.match(/^ +1 +local\/rogue\/env +- .* >1[34]\d\d +- /gm)?.length, 1, out + err);
  t.is(out.match(/^# local\/rogue\/env, at least: it was stopped for its memory$/gm)?.length, 1, out);
});

testWithPrometheus('the size from Prometheus for an ended tenant is the smallest that is enough', async (t) => {
  t.timeout(120_000);
  const node = await startNode(t, '--gpu', 'l4');
  const agent = await startAgent(t, node, { settings: { intervalMs: 200, urgentIntervalMs: 100 } });
  await agent.measured(1);
  const prometheus = await startPrometheus(t, { configuration: scraping([agent.url, { instance: 'node-a' }]) });
  const start = (bytes: number, name: string) =>
    runTenant(t, node, agent, ['--gpu-memory', String(bytes), '--name', name], [CLIENT]);
  const recorded = start(4096 * MIB, 'recorded');
  t.true(await work(recorded));
  const series = (name: string) => `cotenant_container_${name}{pod="recorded"}`;
  const held = () => agent.metric('cotenant_container_memory_used_bytes', { pod: 'recorded' });
  const most = await eventually(async () => {
    const [before, reported] = [await held(), await prometheus.query(series('memory_used_bytes'))];
    return before !== undefined && before > 500 * MIB && reported[0]?.value === before ? before : undefined;
  }, 'all that it holds is recorded');
  recorded.child.stdin?.end();
  await recorded.ended;
  await eventually(async () => (await held()) === undefined || undefined, 'the agent has forgotten it');

  const argv = ['--prometheus', prometheus.url, '--range', '5m', '--window', '1m', '--json'];
  const { code, out, err } = await runCotenant('recommend', 'local/recorded', ...argv);
  t.is(code, 0, err);
  const [found] = JSON.parse(out) as { memoryBytes: { amount: number; atLeast: boolean } }[];
  const size = found?.memoryBytes.amount ?? 0;
  t.true(size >= most && size < most + 200 * MIB, `${size} for ${most}`);
  t.true(await work(start(size, 'fitting')), 'the recommended size');
  t.false(await work(start(size - GRANULE, 'small')), 'one granule less');
});
