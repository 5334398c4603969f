// The driver released on command: no process of the agent has it open, and metrics, readiness and answers say so.
import { execFile } from 'node:child_process';
import { readdirSync, readFileSync, readlinkSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import test from 'ava';
import { ask } from '../../../../src/cli/lib/agent-client.ts';
import { OUT_OF_MEMORY } from '../../../support/native/client.ts';
import { BUILD, eventually, type SimulatedNode, startNode } from '../../../support/native/node.ts';
import { type RunningAgent, runTenant, startAgent, tell } from '../../../support/product/agent.ts';
import { MIB } from '../../../support/product/grant.ts';

const CLIENT = join(BUILD, 'tests/client');
const MAIN = join(import.meta.dirname, '../../../../src/cli/main.ts');
const run = promisify(execFile);

const cli = async (agent: RunningAgent, command: string): Promise<string> =>
  (await run(process.execPath, [MAIN, 'driver', command, '--state', agent.state])).stdout;

const children = (pid: number): readonly number[] => {
  const text = readdirSync(`/proc/${pid}/task`).map((task) => {
    try {
      return readFileSync(`/proc/${pid}/task/${task}/children`, 'utf8');
    } catch {
      return ''; // a thread that has ended
    }
  });
  const own = text.join(' ').split(/\s+/).filter(Boolean).map(Number);
  return own.flatMap((child) => {
    try {
      return [child, ...children(child)];
    } catch {
      return []; // it has ended
    }
  });
};

/** Inodes of what is connected to the node's socket: the simulated GPU's open device nodes. */
const opened = (node: SimulatedNode): number =>
  readFileSync('/proc/net/unix', 'utf8')
    .split('\n')
    .filter((line) => line.endsWith(` ${node.folder}/node.sock`) && / 03 +\d+ \S+$/.test(line)).length;

/** Processes of the agent that have the driver's libraries mapped, or a device node of it open. */
const holders = (agent: RunningAgent): readonly number[] => {
  const pid = agent.child.pid ?? 0;
  return [pid, ...children(pid)].filter((process) => {
    try {
      const files = readdirSync(`/proc/${process}/fd`).map((fd) => readlinkSync(`/proc/${process}/fd/${fd}`));
      const maps = readFileSync(`/proc/${process}/maps`, 'utf8');
      return (
        /libnvidia-ml|libcuda|simulated-facts/.test(maps) || files.some((file) => /simulated|\/dev\/nvidia/.test(file))
      );
    } catch {
      return false; // it has ended
    }
  });
};

test('a released driver is open in no process; up is 0 until it is reacquired', async (t) => {
  t.timeout(180_000);
  const node = await startNode(t, '--gpu', 't4');
  const agent = await startAgent(t, node, {
    settings: { intervalMs: 100, urgentIntervalMs: 100, 'enforcement.softSeconds': 0, 'enforcement.softSamples': 2 },
  });
  await agent.measured(1);
  const tenant = runTenant(t, node, agent, ['--gpu-memory', '1Gi', '--name', 'inside'], [CLIENT]);
  for (const line of ['init', 'context 0', `alloc ${200 * MIB}`]) t.is((await tell(tenant, line))[0], 0);
  await eventually(
    async () => (await agent.metric('cotenant_container_memory_used_bytes', { pod: 'inside' })) || undefined,
    'it is seen',
  );
  t.is(await agent.metric('cotenant_driver_attached'), 1);
  t.is(await agent.metric('cotenant_up'), 1);
  t.true(holders(agent).length > 0, 'the test can see who has it open');
  const tenants = 1;
  t.true(opened(node) > tenants, `${opened(node)} connections`);

  t.regex(await cli(agent, 'release'), /^released since \S+; no container is watched or stopped\n$/);
  t.deepEqual(holders(agent), []);
  t.is(opened(node), tenants, 'only the tenant has it open');
  await eventually(async () => (await agent.metric('cotenant_driver_attached')) === 0 || undefined, 'the page says so');
  t.is(await agent.metric('cotenant_up'), 0);
  t.is(await agent.metric('cotenant_device_memory_used_bytes'), undefined);
  t.is(await agent.metric('cotenant_container_memory_used_bytes'), undefined);
  const ready = await fetch(`${agent.url}/readyz`);
  t.is(ready.status, 503);
  t.regex(await ready.text(), /released on command/);
  // This agent makes no grant meanwhile, and its error says why.
  const owner = { pid: process.pid, startTicks: 1 };
  const body = {
    name: 'late',
    container: 'c',
    shares: [{ memory: { kind: 'bytes', bytes: 2 ** 28 } }],
    gpuUuids: [],
    isolateMemory: true,
    ...owner,
  };
  const refused = await ask(agent.state, 'POST', '/v1/grants', body);
  t.is(refused.status, 503);
  t.regex((refused.body as { error: string }).error, /released on command at .*cotenant driver take/);
  // What the interposer refuses, it goes on refusing; no container is stopped.
  t.is((await tell(tenant, `alloc ${900 * MIB}`))[0], OUT_OF_MEMORY);
  t.is((await tell(tenant, `alloc ${100 * MIB}`))[0], 0);
  t.regex(await cli(agent, 'status'), /^released since/);
  t.regex(await cli(agent, 'release'), /^released since/, 'a second time changes nothing');

  t.is(await cli(agent, 'take'), 'the agent has the driver open\n');
  // A page may be rendered between the command and the first sample.
  await eventually(async () => (await agent.metric('cotenant_up')) === 1 || undefined, 'it is read again');
  t.is(await agent.metric('cotenant_driver_attached'), 1);
  t.true((await agent.metric('cotenant_container_memory_used_bytes', { pod: 'inside' })) !== undefined);
  t.true(holders(agent).length > 0);
  t.deepEqual(agent.audit(), []);
  t.is(agent.log.filter((line) => /driver is (released|opened)/.test(line)).length, 2);
});

test('a calibration ends when the driver is released and repeats when it is reacquired', async (t) => {
  t.timeout(180_000);
  const node = await startNode(t, '--gpu', 't4');
  node.control('process-list-delay', '400000');
  const agent = await startAgent(t, node, { settings: { intervalMs: 100 } });
  await eventually(
    () =>
      children(agent.child.pid ?? 0).some((pid) => {
        try {
          return readFileSync(`/proc/${pid}/comm`, 'utf8').startsWith('cotenant-calibr');
        } catch {
          return false;
        }
      }) || undefined,
    'it measures',
  );
  await cli(agent, 'release');
  t.deepEqual(holders(agent), []);
  node.control('process-list-delay', '0');
  await cli(agent, 'take');
  await agent.measured(1);
  t.deepEqual(
    agent.log.filter((line) => /could not be calibrated/.test(line)),
    [],
  );
});
