// A node with a divided GPU: its instances are GPUs of their own on the page and no sum counts anything twice; grants
// are made of other GPUs only.
import { join } from 'node:path';
import test from 'ava';
import { readyClient } from '../../../support/native/client.ts';
import { BUILD, eventually, startNode } from '../../../support/native/node.ts';
import { runTenant, startAgent, tell } from '../../../support/product/agent.ts';
import { MIB } from '../../../support/product/grant.ts';

const CLIENT = join(BUILD, 'tests/client');

test("a MIG GPU is reported by instance with the simulator's sums, and grants nothing", async (t) => {
  t.timeout(180_000);
  const node = await startNode(t, '--gpu', 'h100,mig=1g.10gb+3g.40gb', '--gpu', 't4');
  const agent = await startAgent(t, node, { settings: { intervalMs: 100, urgentIntervalMs: 100 } });
  const gpu = (index: number) => ({ gpu: String(index), gpu_uuid: node.uuid(index) });
  await agent.measured(1);
  const clients = [2, 3].map(async (index) => {
    const client = await readyClient(t, node, { env: { CUDA_VISIBLE_DEVICES: node.uuid(index) } });
    await client.must(`alloc ${index * 100 * MIB}`);
    return client;
  });
  await Promise.all(clients);
  const tenant = runTenant(t, node, agent, ['--gpu-memory', '1Gi', '--name', 'whole'], [CLIENT]);
  for (const line of ['init', 'context 0', `alloc ${200 * MIB}`]) t.is((await tell(tenant, line))[0], 0);
  const books = () => node.usage().gpus.map(({ usedBytes }) => usedBytes);
  const used = await eventually(async () => {
    const sum = await agent.metric('cotenant_device_memory_used_bytes');
    return sum === books().reduce((total, bytes) => total + bytes, 0) && sum > 600 * MIB ? sum : undefined;
  }, 'the sum over all GPUs is that of the books');
  t.true(used > 0);
  for (const index of [2, 3]) {
    t.is(await agent.metric('cotenant_device_memory_used_bytes', gpu(index)), books()[index]);
    t.is(await agent.metric('cotenant_device_processes', { ...gpu(index), type: 'compute' }), 1);
    t.is(
      await agent.metric('cotenant_mig_info', {
        ...gpu(index),
        parent_gpu: '0',
        parent_uuid: node.uuid(0),
        gpu_instance_id: String(index - 1),
        compute_instance_id: '0',
        profile: index === 2 ? '1g.10gb' : '3g.40gb',
      }),
      1,
    );
    t.is(await agent.metric('cotenant_device_temperature_celsius', gpu(index)), undefined);
  }
  t.is(await agent.metric('cotenant_device_memory_used_bytes', gpu(0)), undefined);
  t.true((await agent.metric('cotenant_device_temperature_celsius', gpu(0))) !== undefined);
  t.is(await agent.metric('cotenant_device_allocation_mode', { ...gpu(0), mode: 'mig' }), 1);
  t.is(await agent.metric('cotenant_device_xid_errors_total', { ...gpu(0), xid: '79' }), 0);
  // The tenant is on the GPU that is whole, and for more there is none.
  t.true((await agent.metric('cotenant_container_memory_used_bytes', { ...gpu(1), pod: 'whole' })) !== undefined);
  const late = runTenant(t, node, agent, ['--gpu-memory', '20Gi', '--name', 'late'], [CLIENT]);
  const { code } = await late.ended;
  t.not(code, 0);
  t.deepEqual(agent.audit(), []);
});
