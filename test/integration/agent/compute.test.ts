// Shares of compute as users get them: the agent with a policy, and programs that `cotenant run` starts.
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { type RunningAgent, runTenant, startAgent } from '../../support/agent.ts';
import { BUILD, eventually, type SimulatedNode, startNode, temporaryFolder } from '../../support/node.ts';

const CLIENT = join(BUILD, 'tests/client');
const WINDOW_MS = 1000;

const start = (t: ExecutionContext, node: SimulatedNode, state: string, computePolicy: string) =>
  startAgent(t, node, { state, settings: { intervalMs: 100, calibrate: false, computePolicy } });

/** A program that launches kernels of half a millisecond until it is stopped. */
function startWork(t: ExecutionContext, node: SimulatedNode, agent: RunningAgent, name: string, cores?: number) {
  const flags = ['--gpu-memory', '1Gi', '--name', name, ...(cores === undefined ? [] : ['--gpu-cores', String(cores)])];
  return runTenant(t, node, agent, flags, [CLIENT, 'libcuda.so.1', 'init', 'context 0', 'load async 600000 500']);
}

/** Percent of the card for each that has a share, by what was measured of its processes in one window. */
async function sharesOf(node: SimulatedNode, pids: readonly number[]): Promise<number[]> {
  const ran = () =>
    pids.map((pid) => (node.books().clients.find((client) => client.pid === pid)?.cards[0]?.smNs ?? 0) / 1e6);
  const from = performance.now();
  const before = ran();
  await new Promise((resolve) => setTimeout(resolve, WINDOW_MS));
  const after = ran();
  return after.map((ms, index) => (100 * (ms - (before[index] ?? 0))) / (performance.now() - from));
}

const holds = (node: SimulatedNode, pids: readonly number[], percents: readonly number[]) =>
  eventually(
    async () => {
      const shares = await sharesOf(node, pids);
      return shares.every((share, index) => Math.abs(share - (percents[index] ?? 0)) <= 4) || undefined;
    },
    `shares of ${percents.join(' and ')} %`,
  );

const workers = (node: SimulatedNode, count: number): Promise<number[]> =>
  eventually(() => {
    const clients = node
      .books()
      .clients.filter(({ command, alive, cards }) => command === 'client' && alive && (cards[0]?.smNs ?? 0) > 0);
    return clients.length === count ? clients.map(({ pid }) => pid) : undefined;
  }, `${count} are at work`);

test('under a fixed policy shares hold, a tenant without one gives way, metrics say so, and a new agent goes on', async (t) => {
  t.timeout(120_000);
  const node = await startNode(t, '--card', 'l4');
  const state = join(temporaryFolder(t), 'state');
  const agent = await start(t, node, state, 'fixed');
  startWork(t, node, agent, 'free');
  const [free = 0] = await workers(node, 1);
  await eventually(async () => ((await sharesOf(node, [free]))[0] ?? 0) > 80 || undefined, 'alone it has the card');
  t.is(await agent.metric('cotenant_container_sm_charged_seconds_total', { pod: 'free' }), undefined);

  const second = startWork(t, node, agent, 'quarter', 25);
  const pids = await workers(node, 2);
  const quarter = pids.find((pid) => pid !== free) ?? 0;
  await holds(node, [quarter], [25]);
  t.is(await agent.metric('cotenant_container_sm_limit_ratio', { pod: 'quarter', enforced: 'true' }), 0.25);
  await eventually(
    async () =>
      ((await agent.metric('cotenant_container_sm_throttled_seconds_total', { pod: 'quarter' })) ?? 0) > 1 || undefined,
    'it has waited',
  );
  t.true(((await agent.metric('cotenant_container_sm_charged_seconds_total', { pod: 'free' })) ?? 0) > 0);
  t.is(await agent.metric('cotenant_container_sm_most_ratio', { pod: 'quarter' }), 0.25);
  t.true(
    second.output.some((line) => /25 % of each card's compute$/.test(line)),
    second.output.join('\n'),
  );

  await agent.stop('SIGKILL');
  await holds(node, [quarter], [25]); // by its own credit
  const next = await start(t, node, state, 'fixed');
  await eventually(
    async () =>
      ((await next.metric('cotenant_container_sm_charged_seconds_total', { pod: 'quarter' })) ?? 0) > 0 || undefined,
    'the next agent knows it',
  );
  await holds(node, [quarter], [25]);
  await next.stop();

  const native = await start(t, node, state, 'native');
  await eventually(
    async () => ((await sharesOf(node, [quarter]))[0] ?? 0) > 35 || undefined,
    'nothing holds it any more',
  );
  t.is(await native.metric('cotenant_container_sm_limit_ratio', { pod: 'quarter', enforced: 'false' }), 0.25);
});
