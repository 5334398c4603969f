// What no call tells the size of: the agent finds it in the driver's count, and it lowers what may be taken.
import { join } from 'node:path';
import test from 'ava';
import { OUT_OF_MEMORY } from '../../../support/native/client.ts';
import { BUILD, eventually, startNode } from '../../../support/native/node.ts';
import { runTenant, seriesOf, startAgent, tell } from '../../../support/product/agent.ts';
import { MIB } from '../../../support/product/grant.ts';

const CODE = 100 * MIB; // what the GPU books for a module of 108 MiB, of which 8 lie inside the context

test('a loaded module lowers what its container may still take until it is unloaded', async (t) => {
  t.timeout(120_000);
  const node = await startNode(t, '--gpu', 't4');
  const agent = await startAgent(t, node, { settings: { intervalMs: 200 } });
  const tenant = runTenant(t, node, agent, ['--gpu-memory', '512Mi'], [join(BUILD, 'tests/client')]);
  for (const command of ['init', 'context 0']) t.is((await tell(tenant, command))[0], 0);
  const left = async () => (await tell(tenant, 'info'))[1] ?? -1;
  const whole = await left();
  const [result, module] = await tell(tenant, `module ${CODE + 8 * MIB}`);
  t.is(result, 0);
  const code = node.usage().clients.find((entry) => entry.command === 'client')?.gpus[0]?.code;
  t.is(code, CODE, "the driver's count has grown");
  await eventually(
    async () => ((await left()) === whole - CODE ? true : undefined),
    'the agent has reported the residual',
  );
  t.is((await tell(tenant, `alloc ${whole - CODE + 2 * MIB}`))[0], OUT_OF_MEMORY);
  const [fits, at] = await tell(tenant, `alloc ${whole - CODE}`);
  t.is(fits, 0, 'to the last granule');
  t.true((node.usage().gpus[0]?.usedBytes ?? 0) <= 512 * MIB);
  t.is((await tell(tenant, `free ${at}`))[0], 0);
  t.is((await tell(tenant, `unload ${module}`))[0], 0);
  await eventually(async () => ((await left()) === whole ? true : undefined), 'and that it is gone');
});

test('a checkpoint of another process is published and frees its memory until restore', async (t) => {
  t.timeout(120_000);
  const node = await startNode(t, '--gpu', 't4');
  const agent = await startAgent(t, node, { settings: { intervalMs: 200 } });
  const client = join(BUILD, 'tests/client');
  // Two processes of one container: the first is checkpointed by the second, whose pid the first does not know.
  const script = `(printf 'init\\ncontext 0\\nalloc ${100 * MIB}\\n'; sleep 300) | ${client} >/dev/null & exec ${client}`;
  const tenant = runTenant(t, node, agent, ['--gpu-memory', '768Mi', '--name', 'two'], ['/bin/sh', '-c', script]);
  for (const command of ['init', 'context 0']) t.is((await tell(tenant, command))[0], 0);
  const other = await eventually(
    () => node.usage().clients.find((entry) => entry.command === 'client' && entry.gpus[0]?.linear === 100 * MIB),
    'the other process has allocated',
  );
  const left = async () => (await tell(tenant, 'info'))[1] ?? -1;
  const before = await left();
  const held = other.gpus[0]?.bytes ?? 0;
  const published = async (bytes: number) => {
    const name = 'cotenant_container_memory_used_bytes';
    const look = async () => (seriesOf(await agent.metrics(), name, { pod: 'two' }) === bytes ? true : undefined);
    await eventually(look, `${bytes} in use`);
  };
  await published(2 * held - 100 * MIB);
  for (const step of ['lock', 'take']) t.is((await tell(tenant, `checkpoint-${step} ${other.pid}`))[0], 0, step);
  await published(held - 100 * MIB);
  await eventually(async () => ((await left()) === before + held ? true : undefined), 'its memory is free');
  t.is((await tell(tenant, `checkpoint-restore ${other.pid}`))[0], 0);
  await published(2 * held - 100 * MIB);
  await eventually(async () => ((await left()) === before ? true : undefined), 'and taken again');
});
