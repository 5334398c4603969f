// Shares of compute that are hard limits, held from outside: a container that launches past the gate is stopped; one
// that keeps to its share, with long kernels, too, or has more because the policy lends it, is not.
import { join } from 'node:path';
import test from 'ava';
import { ask } from '../../../../src/cli/lib/agent-client.ts';
import { startClient } from '../../../support/native/client.ts';
import { BUILD, eventually, startNode } from '../../../support/native/node.ts';
import { sharesOf } from '../../../support/native/shares.ts';
import { actedOn, type RunningAgent, runTenant, startAgent } from '../../../support/product/agent.ts';

const CLIENT = join(BUILD, 'tests/client');
/** The preload is what brings the gate in. Memory stays within the grant. */
const DODGE = ['env', '-u', 'LD_PRELOAD'];
const WINDOW_S = 20;

/** A process that the driver lists as a client of MPS: of a server that the tenant started. */
const SERVED = ['env', 'COTENANT_SIM_PROCESS_TYPE=mps'];

const chargedRatio = async (agent: RunningAgent, pod: string): Promise<number> =>
  ((await agent.metric('cotenant_container_sm_charged_seconds_total', { pod })) ?? 0) /
  ((await agent.metric('cotenant_container_sm_seconds_total', { pod })) ?? 1);

test('a tenant that bypasses the gate is stopped; one lent more than its share is not', async (t) => {
  t.timeout(240_000);
  const node = await startNode(t, '--gpu', 'l4', '--gpu', 'l4');
  const agent = await startAgent(t, node, {
    settings: {
      calibrate: false,
      computePolicy: 'soft',
      'enforcement.shareSeconds': WINDOW_S,
      'enforcement.softSeconds': 4,
    },
  });
  const answer = await ask(agent.state, 'PATCH', '/v1/compute', { policy: 'fixed', gpuUuid: node.uuid(0) });
  t.is(answer.status, 200);
  const start = (name: string, gpu: number, flags: readonly string[], load: string, args: readonly string[] = []) =>
    runTenant(
      t,
      node,
      agent,
      ['--gpu-memory', '1Gi', '--name', name, '--gpu', node.uuid(gpu), ...flags],
      [...args, CLIENT, 'libcuda.so.1', 'init', 'context 0', `load async 600000 ${load}`],
    );
  start('honest', 0, ['--gpu-cores', '30'], '150000');
  start('borrower', 1, ['--gpu-cores', '20'], '3000');
  start('capped', 1, ['--gpu-cores', '10'], '3000');
  const seen = async (count: number) =>
    eventually(async () => {
      const found = (await agent.snapshot())?.containers.filter(({ smPercent = 0 }) => smPercent > 0) ?? [];
      return found.length === count ? found : undefined;
    }, `${count} are at work`);
  const others = await seen(3);
  const capped = others.find(({ pod }) => pod === 'capped')?.grantId;
  t.is((await ask(agent.state, 'PATCH', `/v1/grants/${capped}`, { coresLimitPercent: 25 })).status, 200);
  const rogue = start('rogue', 0, ['--gpu-cores', '20'], '3000', DODGE);
  await seen(4);
  const borrower = others.find(({ pod }) => pod === 'borrower')?.processes[0]?.pid ?? 0;
  await eventually(
    async () => ((await sharesOf(node, [borrower], 3000))[0] ?? 0) > 40 || undefined,
    'the borrower has more than its 20 %',
  );

  const from = Date.now();
  const { code } = await rogue.ended;
  t.is(code, 137);
  t.log(`stopped after ${(Date.now() - from) / 1000} s`);
  const records = actedOn(agent.audit());
  const killed = records.findIndex(({ action }) => action === 'kill');
  const steps = records.slice(0, killed + 1).map(({ action, pod, reason }) => `${action} ${pod} ${reason}`);
  t.is(steps[0], 'warn rogue over-share');
  t.deepEqual(steps.slice(-2), ['close-gate rogue over-share', 'kill rogue over-share']);
  // On a busy machine the agent may miss samples of the driver; it does not judge across a gap, and begins anew.
  const between = new Set(steps.slice(1, -2));
  t.deepEqual(
    [...between].filter((step) => !/^(warn|close-gate) rogue over-share$|^open-gate rogue none$/.test(step)),
    [],
  );
  const kill = records[killed];
  t.is(kill?.limitRatio, 0.2);
  t.true((kill?.usedRatio ?? 0) > 0.5 && kill?.resource === 'compute' && kill.result === 'sent');
  t.regex(
    rogue.output.join('\n'),
    /stopped by the agent: local\/rogue\/\S+ exceeds its GPU compute share: \d+ % of 20 % on GPU-\S+ over 2\d s, and launches kernels past its closed gate/,
  );
  await eventually(
    async () =>
      (await agent.metric('cotenant_container_kills_total', {
        pod: 'rogue',
        reason: 'over-share',
        result: 'released',
      })) === 1 || undefined,
    'the metric says so',
  );
  t.true((await chargedRatio(agent, 'honest')) > 0.8);
  // Those that keep to it have been watched for longer than the one that did not, and are on.
  const atMs = (await agent.snapshot())?.atMs ?? 0;
  await eventually(
    async () => ((await agent.snapshot())?.atMs ?? 0) > atMs + WINDOW_S * 1000 || undefined,
    'another window',
  );
  t.deepEqual([...new Set(agent.audit().map(({ pod }) => pod))], ['rogue']);
  t.is((await seen(3)).length, 3);
});

test('a tenant gains nothing by starting MPS; others on the GPU are judged as before', async (t) => {
  t.timeout(240_000);
  const node = await startNode(t, '--gpu', 'l4');
  const agent = await startAgent(t, node, {
    settings: {
      calibrate: false,
      computePolicy: 'fixed',
      'enforcement.shareSeconds': WINDOW_S,
      'enforcement.softSeconds': 4,
    },
  });
  const start = (name: string, gpu: number, args: readonly string[]) =>
    runTenant(
      t,
      node,
      agent,
      ['--gpu-memory', '1Gi', '--name', name, '--gpu', node.uuid(gpu), '--gpu-cores', '20'],
      [...args, CLIENT, 'libcuda.so.1', 'init', 'context 0', 'load async 600000 3000'],
    );
  const served = (pod: string) => agent.metric('cotenant_container_mps_processes', { pod, judged: 'true' });
  const mixed = (pod: string) => agent.metric('cotenant_container_mps_processes', { pod, judged: 'false' });
  start('honest', 0, SERVED);
  await eventually(async () => (await served('honest')) === 1 || undefined, 'a client of MPS is reported');
  const past = start('past', 0, DODGE);
  t.is((await past.ended).code, 137, 'a client of MPS hides no other');

  const dodging = start('dodging', 0, [...DODGE, ...SERVED.slice(1)]);
  t.is((await dodging.ended).code, 137, 'nor itself, among clients of others');
  const stops = agent.audit().filter(({ action }) => action === 'kill');
  t.deepEqual(
    stops.map(({ pod, reason }) => `${pod} ${reason}`),
    ['past over-share', 'dodging over-share'],
  );

  // With a server that is in no container, of two clients the driver may tell the use of one as that of the other.
  const server = startClient(t, node);
  await server.must('init');
  await server.must('context 0');
  start('second', 0, SERVED);
  await eventually(async () => (await mixed('second')) === 1 || undefined, 'it is unknown whose use it is');
  t.is(await mixed('honest'), 1);
  t.is(await served('honest'), undefined);
  t.false(agent.audit().some(({ pod }) => pod === 'honest' || pod === 'second'));
});
