// Programs that run as another user than the agent, in many groups, or under an odd name: what they must open of a
// grant they can, and what they hold is reported as theirs.
import { chmodSync, copyFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import test from 'ava';
import { testUnless } from '../../../support/gate.ts';
import { OUT_OF_MEMORY } from '../../../support/native/client.ts';
import { BUILD, eventually, startNode, temporaryFolder } from '../../../support/native/node.ts';
import { runTenant, startAgent, tell } from '../../../support/product/agent.ts';
import { MIB } from '../../../support/product/grant.ts';

const OTHER_UID = '65534';
const testAsRoot = testUnless(process.getuid?.() === 0 ? undefined : 'only root can start a program as another user');

testAsRoot('a tenant that gives up root is held to its grant, and not kept from it', async (t) => {
  const node = await startNode(t, '--gpu', 'l4');
  const agent = await startAgent(t, node);
  // As NVIDIA's device nodes are: for everybody.
  chmodSync(join(node.folder, 'node.sock'), 0o777);
  for (const folder of [node.folder, dirname(agent.state)]) chmodSync(folder, 0o755);
  const drop = ['setpriv', `--reuid=${OTHER_UID}`, '--clear-groups'];
  const tenant = runTenant(t, node, agent, ['--gpu-memory', '1Gi', '--quiet'], [...drop, join(BUILD, 'tests/client')]);
  t.deepEqual(await tell(tenant, 'init'), [0, 0]);
  await tell(tenant, 'context 0');
  const [result, , total] = await tell(tenant, 'info');
  t.deepEqual([result, total], [0, 1024 * MIB]);
  const [refused] = await tell(tenant, `alloc ${1024 * MIB}`);
  t.is(refused, OUT_OF_MEMORY);
});

testAsRoot('a tenant in hundreds of cgroups has its own usage, and none counts as a bypass', async (t) => {
  const node = await startNode(t, '--gpu', 'l4');
  const agent = await startAgent(t, node, { settings: { intervalMs: 200 } });
  const groups = Array.from({ length: 500 }, (_, index) => 100_000 + index);
  const join500 = ['setpriv', `--groups=${groups.join(',')}`];
  const tenant = runTenant(t, node, agent, ['--gpu-memory', '1Gi'], [...join500, join(BUILD, 'tests/client')]);
  await tell(tenant, 'init');
  await tell(tenant, 'context 0');
  await tell(tenant, `alloc ${256 * MIB}`);
  const seen = await eventually(async () => {
    const container = (await agent.snapshot())?.containers[0];
    return (container?.usedBytes ?? 0) > 256 * MIB ? container : undefined;
  }, 'its memory is seen');
  t.is(seen.bypassBytes, 0);
  t.is(seen.fence, 'interposer');
});

test('a program whose name has spaces and brackets has its own usage', async (t) => {
  const node = await startNode(t, '--gpu', 'l4');
  const agent = await startAgent(t, node, { settings: { intervalMs: 200 } });
  // As /proc/PID/stat shows it, what follows looks like the fields behind a name.
  const name = 'x) S 1 1 (y';
  const program = join(temporaryFolder(t), name);
  copyFileSync(join(BUILD, 'tests/client'), program);
  const tenant = runTenant(t, node, agent, ['--gpu-memory', '1Gi'], [program]);
  await tell(tenant, 'init');
  await tell(tenant, 'context 0');
  await tell(tenant, `alloc ${256 * MIB}`);
  const seen = await eventually(async () => {
    const container = (await agent.snapshot())?.containers[0];
    return (container?.usedBytes ?? 0) > 256 * MIB ? container : undefined;
  }, 'its memory is seen');
  t.is(seen.bypassBytes, 0);
  t.is(seen.fence, 'interposer');
  t.deepEqual(
    seen.processes.map(({ command, inLedger }) => [command, inLedger]),
    [[name, true]],
  );
});

test('a program whose name is not UTF-8 has its own usage, and the metrics are UTF-8', async (t) => {
  const node = await startNode(t, '--gpu', 'l4');
  const agent = await startAgent(t, node, { settings: { intervalMs: 200, processMetrics: true } });
  const folder = temporaryFolder(t);
  const name = Buffer.from('a\xff"\n\\b', 'latin1');
  copyFileSync(join(BUILD, 'tests/client'), Buffer.concat([Buffer.from(`${folder}/`), name]));
  const tenant = runTenant(t, node, agent, ['--gpu-memory', '1Gi'], ['/bin/sh', '-c', 'exec "$0"/a*', folder]);
  await tell(tenant, 'init');
  await tell(tenant, 'context 0');
  await tell(tenant, `alloc ${256 * MIB}`);
  const page = await eventually(async () => {
    const bytes = await (await fetch(`${agent.url}/metrics`)).arrayBuffer();
    const text = new TextDecoder('utf-8', { fatal: true }).decode(bytes);
    return text.includes('cotenant_process_memory_used_bytes{') ? text : undefined;
  }, 'its process is on the page');
  const [line = ''] = /^cotenant_process_memory_used_bytes\{.*$/m.exec(page) ?? [];
  t.true(line.includes('process="a____b"'), line);
  const seen = (await agent.snapshot())?.containers[0]?.processes;
  t.deepEqual(
    seen?.map(({ inLedger }) => inLedger),
    [true],
  );
});
