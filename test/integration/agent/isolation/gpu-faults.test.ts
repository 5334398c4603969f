// A GPU after an Xid that needs a reset: it takes no new container, those that run on it are left alone, and it comes
// back with proof or on request.
import { execFile } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import test from 'ava';
import { BUILD, eventually, type SimulatedNode, startNode, temporaryFolder } from '../../../support/native/node.ts';
import { type RunningAgent, runTenant, startAgent, tell } from '../../../support/product/agent.ts';
import { MIB } from '../../../support/product/grant.ts';

const CLIENT = join(BUILD, 'tests/client');
const MAIN = join(import.meta.dirname, '../../../../src/cli/main.ts');
const run = promisify(execFile);
const SETTINGS = { intervalMs: 100, urgentIntervalMs: 100, calibrate: false };
const UNHEALTHY = 'cotenant_device_unhealthy_reason';

const cli = async (agent: RunningAgent, ...args: readonly string[]) => {
  const done = await run(process.execPath, [MAIN, ...args, '--state', agent.state]).catch((error: unknown) => error);
  const { code = 0, stdout, stderr } = done as { code?: number; stdout: string; stderr: string };
  return { code, text: stdout + stderr };
};
const xids = (agent: RunningAgent, xid: number) =>
  agent.metric('cotenant_device_xid_errors_total', { xid: String(xid) });
const isFaulty = (agent: RunningAgent, reason: string) =>
  eventually(async () => ((await agent.metric(UNHEALTHY, { reason })) === 1 ? true : undefined), `it is ${reason}`);
const isHealthy = (agent: RunningAgent) =>
  eventually(
    async () =>
      (await agent.metric('cotenant_device_healthy')) === 1 && (await agent.metric(UNHEALTHY)) === undefined
        ? true
        : undefined,
    'it is healthy',
  );

/** The answer to a request for memory. */
async function asks(t: Parameters<typeof runTenant>[0], node: SimulatedNode, agent: RunningAgent) {
  const { ended, output } = runTenant(t, node, agent, ['--gpu-memory', '64Mi', '--name', 'new'], ['true']);
  return { code: (await ended).code, text: output.join('\n') };
}

test('after an Xid that needs a reset a GPU is cordoned, and running containers stay', async (t) => {
  t.timeout(120_000);
  const node = await startNode(t, '--gpu', 't4');
  const state = join(temporaryFolder(t), 'state');
  let agent = await startAgent(t, node, { state, settings: SETTINGS });
  const tenant = runTenant(t, node, agent, ['--gpu-memory', '1Gi', '--name', 'inside'], [CLIENT]);
  for (const line of ['init', 'context 0', `alloc ${200 * MIB}`]) t.is((await tell(tenant, line))[0], 0);

  // A program's own faults are counted and change nothing.
  for (const xid of [31, 43, 45, 94, 109]) node.control('xid', '0', String(xid));
  await eventually(async () => ((await xids(agent, 109)) === 1 ? true : undefined), 'they are counted');
  t.is(await agent.metric('cotenant_device_healthy'), 1);
  t.is((await asks(t, node, agent)).code, 0);

  node.control('xid', '0', '119');
  await isFaulty(agent, 'xid_119');
  t.is(await agent.metric('cotenant_device_healthy'), 0);
  const refused = await asks(t, node, agent);
  t.not(refused.code, 0);
  t.regex(refused.text, new RegExp(`${node.uuid(0)} is not healthy: Xid 119 at \\S+Z, and no reset since`));
  t.true(agent.log.some((line) => /gets no new containers: Xid 119/.test(line)));
  t.regex((await cli(agent, 'inspect')).text, /XID 119/);
  t.is((await tell(tenant, `alloc ${100 * MIB}`))[0], 0, 'who runs on it goes on');

  // Neither another agent nor a driver given up and taken again proves that it was reset.
  await agent.stop();
  agent = await startAgent(t, node, { state, settings: SETTINGS });
  await isFaulty(agent, 'xid_119');
  t.is((await cli(agent, 'driver', 'release')).code, 0);
  t.is((await cli(agent, 'driver', 'take')).code, 0);
  await isFaulty(agent, 'xid_119');
  t.not((await asks(t, node, agent)).code, 0);
  t.is((await tell(tenant, `alloc ${100 * MIB}`))[0], 0);
  t.deepEqual(agent.audit(), []);

  // The counter proves a reset if it is behind what was read before: it is read every 5 s, in which it grows by some 45 J.
  const energy = async () => (await agent.metric('cotenant_device_energy_joules_total')) ?? 0;
  await eventually(async () => ((await energy()) > 135 ? true : undefined), 'it has run for much longer than that');
  node.control('reset', '0');
  await isHealthy(agent);
  t.true(
    agent.log.some((line) =>
      /gets new containers again after Xid 119: its energy counter started at 0 again/.test(line),
    ),
  );
  t.is((await asks(t, node, agent)).code, 0);
});

test("a GPU is offered again after its return, an operator's command or a reboot", async (t) => {
  t.timeout(120_000);
  const node = await startNode(t, '--gpu', 't4');
  const state = join(temporaryFolder(t), 'state');
  let agent = await startAgent(t, node, { state, settings: SETTINGS });
  node.control('lose', '0');
  await isFaulty(agent, 'xid_79');
  node.control('recover', '0');
  await isHealthy(agent);

  node.control('xid', '0', '48');
  await isFaulty(agent, 'xid_48');
  const cleared = await cli(agent, 'driver', 'clear-xid', '0');
  t.is(cleared.code, 0, cleared.text);
  t.regex(cleared.text, new RegExp(`^${node.uuid(0)} is in use again: Xid 48`));
  await isHealthy(agent);
  const nothing = await cli(agent, 'driver', 'clear-xid', node.uuid(0));
  t.is(nothing.code, 1);
  t.regex(nothing.text, /no Xid is held against GPU GPU-/);
  t.is((await cli(agent, 'driver', 'clear-xid')).code, 2);

  node.control('xid', '0', '95');
  await isFaulty(agent, 'xid_95');
  await agent.stop();
  const path = join(state, 'gpu-faults.json');
  writeFileSync(path, readFileSync(path, 'utf8').replace(/"bootId": "[^"]*"/, '"bootId": "another"'));
  agent = await startAgent(t, node, { state, settings: SETTINGS });
  await isHealthy(agent);
  t.deepEqual(JSON.parse(readFileSync(path, 'utf8')), { version: 1, faults: [] });
});

test('settings choose the Xids that count and refuse those that programs can raise', async (t) => {
  t.timeout(180_000);
  const node = await startNode(t, '--gpu', 't4');
  const agent = await startAgent(t, node, { settings: { ...SETTINGS, unhealthyXids: 'default,46,-74' } });
  node.control('xid', '0', '74');
  await eventually(async () => ((await xids(agent, 74)) === 1 ? true : undefined), 'it is counted');
  t.is(await agent.metric('cotenant_device_healthy'), 1);
  node.control('xid', '0', '46');
  await isFaulty(agent, 'xid_46');
  await t.throwsAsync(startAgent(t, node, { settings: { ...SETTINGS, unhealthyXids: '31' } }), {
    message: /unhealthyXids: "31" is not valid; write Xids/,
  });
});
