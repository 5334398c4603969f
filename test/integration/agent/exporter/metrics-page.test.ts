// The page as scrapers get it from a running agent: well-formed by Prometheus' own judgement, rendered at most once per
// sample, and never telling of now what was true once.
import { spawnSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { gunzipSync } from 'node:zlib';
import test from 'ava';
import { ask } from '../../../../src/cli/lib/agent-client.ts';
import { testUnless } from '../../../support/gate.ts';
import { OUT_OF_MEMORY } from '../../../support/native/client.ts';
import { BUILD, eventually, startNode } from '../../../support/native/node.ts';
import { runTenant, seriesOf, startAgent, tell } from '../../../support/product/agent.ts';
import { checkMetrics, findPromtool } from '../../../support/services/promtool.ts';

const CLIENT = join(BUILD, 'tests/client');
const promtool = findPromtool();

testUnless('reason' in promtool ? promtool.reason : undefined)(
  'promtool accepts the page of a busy node, and rejects a broken one',
  async (t) => {
    const node = await startNode(t, '--gpu', 'l4', '--gpu', 'a10');
    const agent = await startAgent(t, node, { settings: { processMetrics: true, intervalMs: 100 } });
    const tenant = runTenant(t, node, agent, ['--gpu-memory', '2Gi', '--gpu-cores', '30', '--name', 'one'], [CLIENT]);
    await tell(tenant, 'init');
    await tell(tenant, 'context 0');
    const page = await eventually(async () => {
      const text = await agent.metrics();
      return (seriesOf(text, 'cotenant_container_memory_used_bytes', { pod: 'one' }) ?? 0) > 0 ? text : undefined;
    }, 'a page with the tenant');
    t.deepEqual(checkMetrics(page), { status: 0, said: '' });
    t.not(checkMetrics(page.replace('# TYPE cotenant_up gauge', '# TYPE cotenant_up nonsense')).status, 0);
    t.not(checkMetrics(page.replace(/^cotenant_up 1$/m, 'cotenant_up one')).status, 0);
  },
);

test('all scrapes of a sample share one rendering', async (t) => {
  const node = await startNode(t, '--gpu', 'l4');
  const agent = await startAgent(t, node, { settings: { intervalMs: 500 } });
  await eventually(async () => ((await agent.metric('cotenant_up')) === 1 ? true : undefined), 'the first page');
  const byRendering = new Map<string, Set<string>>();
  const renderingOf = (text: string) =>
    String(seriesOf(text, 'cotenant_exporter_collector_last_success_timestamp_seconds', { collector: 'device' }));
  while (byRendering.size < 4) {
    const answers = await Promise.all(
      Array.from({ length: 10 }, (_, index) =>
        fetch(`${agent.url}/metrics`, { headers: { 'accept-encoding': index % 2 === 0 ? 'identity' : 'gzip' } }),
      ),
    );
    for (const answer of answers) {
      const text = await answer.text();
      const key = renderingOf(text);
      byRendering.set(key, (byRendering.get(key) ?? new Set()).add(text));
    }
  }
  // What the process says of its own time differs with every rendering, so equal bytes are one rendering.
  for (const [rendering, bodies] of byRendering) t.is(bodies.size, 1, rendering);
  const [first, second] = [...byRendering.values()].flatMap((bodies) => [...bodies]);
  t.not(first, second);
});

test('the compressed page equals the plain one', async (t) => {
  const node = await startNode(t, '--gpu', 'l4');
  const agent = await startAgent(t, node, { settings: { intervalMs: 60_000, silenceMs: 600_000 } });
  await eventually(async () => ((await agent.metric('cotenant_up')) === 1 ? true : undefined), 'the first page');
  const { port } = new URL(agent.url);
  const { stdout } = spawnSync('curl', ['-s', '-H', 'Accept-Encoding: gzip', `http://127.0.0.1:${port}/metrics`]);
  t.is(stdout.readUInt16BE(0), 0x1f8b);
  t.is(gunzipSync(stdout).toString(), await agent.metrics());
});

/** Processes that this one has started, as the kernel lists them. */
const childrenOf = (pid: number): number[] =>
  readdirSync(`/proc/${pid}/task`).flatMap((task) =>
    readFileSync(`/proc/${pid}/task/${task}/children`, 'utf8').split(' ').filter(Boolean).map(Number),
  );

test('a scrape makes no driver call: it works with a stopped sampler', async (t) => {
  const node = await startNode(t, '--gpu', 'l4');
  const agent = await startAgent(t, node, { settings: { intervalMs: 100, silenceMs: 60_000 } });
  await eventually(async () => ((await agent.metric('cotenant_up')) === 1 ? true : undefined), 'the first page');
  const sampler = childrenOf(agent.child.pid ?? 0).filter((pid) =>
    readFileSync(`/proc/${pid}/cmdline`, 'utf8').includes('cotenant-sampler'),
  );
  t.is(sampler.length, 1);
  for (const pid of sampler) process.kill(pid, 'SIGSTOP');
  t.teardown(() => {
    for (const pid of sampler) process.kill(pid, 'SIGCONT');
  });
  // One sample may be on its way.
  const still = await eventually(async () => {
    const before = await agent.metrics();
    await new Promise((resolve) => setTimeout(resolve, 300));
    return before === (await agent.metrics()) ? before : undefined;
  }, 'a page that stands still');
  for (let scrape = 0; scrape < 100; scrape += 1) t.is(await agent.metrics(), still);
});

test('while the driver hangs, cotenant_up is 0 and grants wait', async (t) => {
  t.timeout(120_000);
  const node = await startNode(t, '--gpu', 'l4');
  const agent = await startAgent(t, node, { settings: { intervalMs: 100, silenceMs: 4000 } });
  const tenant = runTenant(t, node, agent, ['--gpu-memory', '1Gi', '--name', 'one'], [CLIENT]);
  await tell(tenant, 'init');
  await tell(tenant, 'context 0');
  const used = () => agent.metric('cotenant_container_memory_used_bytes', { pod: 'one' });
  const before = await eventually(
    async () => ((await used()) || undefined) && (await used()),
    'the tenant on the page',
  );
  const granted = await agent.metric('cotenant_container_sm_seconds_total', { pod: 'one' });

  node.child.kill('SIGSTOP');
  t.teardown(() => node.child.kill('SIGCONT'));
  await eventually(async () => ((await agent.metric('cotenant_up')) === 0 ? true : undefined), 'cotenant_up 0');
  t.is(await used(), undefined);
  t.is(await agent.metric('cotenant_device_memory_used_bytes'), undefined);
  t.is(await agent.metric('cotenant_container_sm_seconds_total', { pod: 'one' }), granted);
  t.true((await agent.metric('cotenant_exporter_samplers_abandoned_total')) !== undefined);
  const ready = await fetch(`${agent.url}/readyz`);
  t.is(ready.status, 503);
  // A sampler that was abandoned is counted as held by the driver until it has ended.
  t.regex(await ready.text(), /^the last sample is \d+ s old(; samplers hung in the driver: \d+)?$/m);
  t.is((await fetch(`${agent.url}/livez`)).status, 200);
  const snapshot = await agent.snapshot();
  t.is(snapshot?.self.up, false);
  t.deepEqual(snapshot?.containers, []);
  const refusal = await ask(agent.state, 'POST', '/v1/grants', {
    name: 'two',
    container: 'two',
    shares: [{ memory: { kind: 'bytes', bytes: 1 << 30 } }],
    gpuUuids: [],
    isolateMemory: true,
    pid: process.pid,
    startTicks: 1,
  });
  t.is(refusal.status, 503);
  t.regex(JSON.stringify(refusal.body), /no fresh sample/);
  node.child.kill('SIGCONT');
  const after = await eventually(async () => (await used()) || undefined, 'the tenant again');
  t.true(after >= before);
  // On a busy machine the next sample may be away for longer than these settings let it.
  await eventually(async () => (await agent.metric('cotenant_up')) === 1 || undefined, 'it is up');
  // The tenant kept its limit and what it holds.
  t.is((await tell(tenant, `alloc ${2 ** 31}`))[0], OUT_OF_MEMORY);
  t.is((await tell(tenant, `alloc ${2 ** 20}`))[0], 0);
});
