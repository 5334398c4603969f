// Shares of compute as users get them: the agent with a policy, and programs that `cotenant run` starts.
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import test, { type ExecutionContext } from 'ava';
import { ask } from '../../../../src/cli/lib/agent-client.ts';
import { serving, startWatch } from '../../../support/machine/scheduling-delays.ts';
import { BUILD, eventually, type SimulatedNode, startNode, temporaryFolder } from '../../../support/native/node.ts';
import { hold, sharesOf } from '../../../support/native/shares.ts';
import { type RunningAgent, runTenant, startAgent } from '../../../support/product/agent.ts';

const CLIENT = join(BUILD, 'tests/client');

const start = (t: ExecutionContext, node: SimulatedNode, state: string, computePolicy: string) =>
  startAgent(t, node, { state, settings: { intervalMs: 100, calibrate: false, computePolicy } });

/** A program that launches kernels of half a millisecond until it is stopped. */
function startWork(t: ExecutionContext, node: SimulatedNode, agent: RunningAgent, name: string, cores?: number) {
  const flags = ['--gpu-memory', '1Gi', '--name', name, ...(cores === undefined ? [] : ['--gpu-cores', String(cores)])];
  return runTenant(t, node, agent, flags, [CLIENT, 'libcuda.so.1', 'init', 'context 0', 'load async 600000 500']);
}

const workers = (node: SimulatedNode, count: number): Promise<number[]> =>
  eventually(() => {
    const clients = node
      .usage()
      .clients.filter(({ command, alive, gpus }) => command === 'client' && alive && (gpus[0]?.smNs ?? 0) > 0);
    return clients.length === count ? clients.map(({ pid }) => pid) : undefined;
  }, `${count} are at work`);

test('fixed shares hold, a tenant without one yields, and a new agent continues', async (t) => {
  t.timeout(120_000);
  const node = await startNode(t, '--gpu', 'l4');
  const state = join(temporaryFolder(t), 'state');
  const agent = await start(t, node, state, 'fixed');
  startWork(t, node, agent, 'free');
  const [free = 0] = await workers(node, 1);
  await eventually(async () => ((await sharesOf(node, [free]))[0] ?? 0) > 80 || undefined, 'alone it has the GPU');
  t.is(await agent.metric('cotenant_container_sm_charged_seconds_total', { pod: 'free' }), undefined);

  const second = startWork(t, node, agent, 'quarter', 25);
  const pids = await workers(node, 2);
  const quarter = pids.find((pid) => pid !== free) ?? 0;
  await hold(t, node, [quarter], [25]);
  t.is(await agent.metric('cotenant_container_sm_limit_ratio', { pod: 'quarter', enforced: 'true' }), 0.25);
  await eventually(
    async () =>
      ((await agent.metric('cotenant_container_sm_throttled_seconds_total', { pod: 'quarter' })) ?? 0) > 1 || undefined,
    'it has waited',
  );
  t.true(((await agent.metric('cotenant_container_sm_charged_seconds_total', { pod: 'free' })) ?? 0) > 0);
  t.is(await agent.metric('cotenant_container_sm_limit_effective_ratio', { pod: 'quarter' }), 0.25);
  t.true(
    second.output.some((line) => /25 % of each GPU's compute$/.test(line)),
    second.output.join('\n'),
  );

  await agent.stop('SIGKILL');
  await hold(t, node, [quarter], [25]); // by its own credit
  const next = await start(t, node, state, 'fixed');
  await eventually(
    async () =>
      ((await next.metric('cotenant_container_sm_charged_seconds_total', { pod: 'quarter' })) ?? 0) > 0 || undefined,
    'the next agent knows it',
  );
  // What it had saved of its own credit, a quantum at most, is in the first window.
  await sharesOf(node, [quarter]);
  await hold(t, node, [quarter], [25]);
  await next.stop();

  const native = await start(t, node, state, 'native');
  await eventually(
    async () => ((await sharesOf(node, [quarter]))[0] ?? 0) > 35 || undefined,
    'nothing holds it any more',
  );
  t.is(await native.metric('cotenant_container_sm_limit_ratio', { pod: 'quarter', enforced: 'false' }), 0.25);
});

const ABOVE = 3;

/** From 500 ms after the change, and what a busy machine takes of them, no container has more than its new share, and soon
 * all have theirs in one and the same window. */
async function settles(
  t: ExecutionContext,
  { node, agent, pids }: { node: SimulatedNode; agent: RunningAgent; pids: readonly number[] },
  path: string,
  change: object,
  percents: readonly number[],
  /** Whose percentage only is what it may have at most. */
  lent: readonly number[] = [],
  lends = false,
): Promise<void> {
  const answer = await ask(agent.state, 'PATCH', path, change);
  t.is(answer.status, 200, JSON.stringify(answer.body));
  const watch = startWatch([agent.child.pid ?? 0, ...serving()]);
  while (watch().ownMs < 500) await delay(50);
  await hold(t, node, pids, percents, { above: ABOVE, lent, lends, what: JSON.stringify(change) });
}

test('policies, shares, weights and priority change under load and survive a restart', async (t) => {
  t.timeout(600_000);
  const node = await startNode(t, '--gpu', 'l4');
  const state = join(temporaryFolder(t), 'state');
  const agent = await start(t, node, state, 'native');
  for (const [index, name] of ['one', 'two'].entries()) {
    startWork(t, node, agent, name, 30);
    await workers(node, index + 1);
  }
  const pidOf = async (pod: string) =>
    eventually(
      async () => (await agent.snapshot())?.containers.find((entry) => entry.pod === pod)?.processes[0]?.pid,
      `${pod} is seen`,
    );
  const pids = [await pidOf('one'), await pidOf('two')];
  const idOf = async (pod: string) => (await agent.snapshot())?.containers.find((entry) => entry.pod === pod)?.grantId;
  const [one, two] = [`/v1/grants/${await idOf('one')}`, `/v1/grants/${await idOf('two')}`];
  const bench = { node, agent, pids };
  t.is(await agent.metric('cotenant_container_compute_policy', { pod: 'one', policy: 'native' }), 1);

  await settles(t, bench, '/v1/compute', { policy: 3 }, [30, 30]);
  await settles(t, bench, two, { coresPercent: 60 }, [30, 60]);
  await settles(t, bench, '/v1/compute', { policy: 'preemptive' }, [50, 50], [], true);
  await settles(t, bench, '/v1/compute', { policy: 'weighted' }, [33, 66], [], true);
  await settles(t, bench, one, { weight: 180 }, [75, 25], [], true);
  await settles(t, bench, one, { policy: 'fixed' }, [30, 70], [], true);
  await settles(t, bench, '/v1/compute', { policy: 'fixed', gpuUuid: node.uuid(0) }, [30, 60]);
  await settles(t, bench, two, { coresPercent: 20, coresLimitPercent: 40 }, [30, 40]);
  await settles(t, bench, one, { priority: 'high' }, [100, 0]);
  await settles(t, bench, '/v1/compute', { highCapPercent: 70 }, [70, 30], [1]);
  await eventually(
    async () =>
      (await agent.metric('cotenant_container_compute_policy', { pod: 'one', policy: 'fixed', priority: 'high' })) ===
        1 || undefined,
    'metrics follow',
  );

  await agent.stop();
  const next = await start(t, node, state, 'native');
  await eventually(
    async () =>
      (await next.metric('cotenant_container_sm_limit_effective_ratio', { pod: 'one' })) === 0.7 &&
      (await next.metric('cotenant_container_sm_limit_effective_ratio', { pod: 'two' })) === 0.4
        ? true
        : undefined,
    'a new agent goes on with what was set',
  );
  t.is(await next.metric('cotenant_device_compute_policy', { policy: 'fixed', source: 'set' }), 1);
  const wrong = await ask(state, 'PATCH', '/v1/compute', { policy: 'fair' });
  t.deepEqual(wrong, {
    status: 400,
    body: { error: 'policy: "fair" is not one of average, preemptive, weighted, fixed, soft, native' },
  });
  t.is((await ask(state, 'PATCH', '/v1/compute', { policy: 'soft', gpuUuid: 'GPU-0' })).status, 409);
  t.is((await ask(state, 'PATCH', one, { coresPercent: 101 })).status, 400);
  t.is((await ask(state, 'PATCH', one, { coresPercent: 90 })).status, 409);
  t.is((await ask(state, 'PATCH', one, {})).status, 400);
  // All of a change, or nothing of it.
  const has = async () => (await next.snapshot())?.containers.find(({ pod }) => pod === 'one');
  const before = await has();
  t.is((await ask(state, 'PATCH', one, { memoryBytes: 2 ** 30 / 2, coresPercent: 90 })).status, 409);
  t.is((await ask(state, 'PATCH', one, { memoryBytes: 2 ** 50, coresPercent: 10 })).status, 409);
  const { atMs = 0 } = (await next.snapshot()) ?? {};
  await eventually(async () => ((await next.snapshot())?.atMs ?? 0) > atMs || undefined, 'another sample');
  const after = await has();
  t.deepEqual([after?.limitBytes, after?.coresPercent], [before?.limitBytes, before?.coresPercent]);
});
