// A process that is killed while a child that it forked lives on: a real driver keeps its memory, in its lists under the
// PID of the dead parent, until the child ends, although the child cannot use CUDA (test/gpu/observed,
// nvml.zombies/killedWithForkedChild). The memory is the container's all the same.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { OUT_OF_MEMORY } from '../../../support/native/client.ts';
import { BUILD, eventually, type SimulatedNode, startNode } from '../../../support/native/node.ts';
import { type RunningAgent, runTenant, startAgent, tell } from '../../../support/product/agent.ts';
import { MIB } from '../../../support/product/grant.ts';

const CLIENT = join(BUILD, 'tests/client');
const SETTINGS = { intervalMs: 250, calibrate: false };
/** The second client reads the commands that follow the end of the first. */
const TWICE = ['/bin/sh', '-c', `${CLIENT}; ${CLIENT}`];
const GRANT = ['--gpu-memory', '2Gi', '--name', 'orphan'];
const used = async (agent: RunningAgent) =>
  (await agent.metric('cotenant_container_memory_used_bytes', { pod: 'orphan' })) ?? 0;

/** A tenant whose first process was killed and left its memory to a forked child. */
async function orphaned(t: ExecutionContext, node: SimulatedNode, agent: RunningAgent, command: readonly string[]) {
  const tenant = runTenant(t, node, agent, GRANT, command);
  for (const line of ['init', 'context 0', `alloc ${1024 * MIB}`]) t.is((await tell(tenant, line))[0], 0, line);
  const [, child = 0] = await tell(tenant, 'fork');
  const parent = Number(/^PPid:\s+(\d+)/m.exec(readFileSync(`/proc/${child}/status`, 'utf8'))?.[1]);
  const held = await eventually(async () => {
    const bytes = await used(agent);
    return bytes > 1024 * MIB ? bytes : undefined;
  }, 'its memory');
  process.kill(parent, 'SIGKILL');
  // Of the second client: the first has ended.
  for (const line of ['init', 'context 0']) t.is((await tell(tenant, line))[0], 0, line);
  return { tenant, parent, child, held };
}

test('memory left to a forked child stays charged, and is free when the child ends', async (t) => {
  t.timeout(180_000);
  const node = await startNode(t, '--gpu', 'l4');
  const agent = await startAgent(t, node, { settings: SETTINGS });
  const { tenant, parent, child, held } = await orphaned(t, node, agent, TWICE);
  // Without calibration contexts are charged once they were measured, so they must not decide.
  t.deepEqual(await tell(tenant, `alloc ${1100 * MIB}`), [OUT_OF_MEMORY, 0], 'it does not fit beside it');
  await eventually(async () => ((await used(agent)) > held ? true : undefined), 'both contexts are seen');
  const container = (await agent.snapshot())?.containers[0];
  t.true(container?.processes.some(({ pid }) => pid === parent));
  t.is(container?.bypassBytes, 0);
  process.kill(child, 'SIGKILL');
  await eventually(async () => ((await tell(tenant, `alloc ${1100 * MIB}`))[0] === 0 ? true : undefined), 'it fits');
  await eventually(async () => {
    const processes = (await agent.snapshot())?.containers[0]?.processes;
    return processes?.every(({ pid }) => pid !== parent);
  }, 'the parent is listed no more');
  t.deepEqual(agent.audit(), [], 'nothing was stopped');
});

test('a stop for memory left to a forked child reaches the child, not the dead parent', async (t) => {
  t.timeout(180_000);
  const node = await startNode(t, '--gpu', 'l4');
  const agent = await startAgent(t, node, { settings: SETTINGS });
  const neighbor = runTenant(t, node, agent, ['--gpu-memory', '1Gi', '--name', 'neighbor'], [CLIENT]);
  for (const line of ['init', 'context 0']) t.is((await tell(neighbor, line))[0], 0, line);
  // Without the interposer, which would refuse the second client's allocation.
  const { tenant, parent, child } = await orphaned(t, node, agent, ['env', '-u', 'LD_PRELOAD', ...TWICE]);
  t.is((await tell(tenant, `alloc ${1024 * MIB}`))[0], 0);
  t.is((await tenant.ended).code, 137);
  const stop = agent.audit().find(({ action }) => action === 'kill');
  t.deepEqual([stop?.pod, stop?.reason, stop?.result], ['orphan', 'bypass', 'sent']);
  const pids = stop?.processes.map(({ pid }) => pid) ?? [];
  t.true(pids.includes(child));
  t.false(pids.includes(parent));
  await eventually(() => (node.usage().clients.every(({ pid }) => pid !== parent) ? true : undefined), 'it is free');
  await eventually(async () => ((await used(agent)) === 0 ? true : undefined), 'the container holds nothing');
  t.is((await tell(neighbor, `alloc ${64 * MIB}`))[0], 0, 'the neighbor goes on');
});
