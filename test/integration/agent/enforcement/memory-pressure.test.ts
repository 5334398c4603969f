// A container that is a little over on a GPU that others fill: it is stopped before anybody is refused what was
// granted.
import { join } from 'node:path';
import test from 'ava';
import { OUT_OF_MEMORY, startClient } from '../../../support/native/client.ts';
import { BUILD, eventually, startNode } from '../../../support/native/node.ts';
import { runTenant, startAgent, tell } from '../../../support/product/agent.ts';
import { MIB } from '../../../support/product/grant.ts';

const CLIENT = join(BUILD, 'tests/client');
const GRANT = 2048;
/** Above the tolerance (2153 MiB), and not far over (2624 MiB), with a context on top. */
const TAKEN = 1900;
const STEP = 16;

test('a small overrun is stopped at once when it takes memory that others were granted', async (t) => {
  t.timeout(180_000);
  const node = await startNode(t, '--gpu', 'l4,memory=6Gi,context=256Mi');
  // What is only over the limit would take its time.
  const settings = { 'enforcement.softSeconds': 600 };
  const agent = await startAgent(t, node, { settings });
  const neighbor = runTenant(t, node, agent, ['--gpu-memory', '1Gi', '--name', 'neighbor'], [CLIENT]);
  for (const line of ['init', 'context 0', `alloc ${128 * MIB}`]) t.is((await tell(neighbor, line))[0], 0);

  // It has a slot in its ledger, and finds a way past the interposer all the same.
  const way = `walk:${join(node.lib, 'libcuda.so.1')}`;
  const rogue = runTenant(t, node, agent, ['--gpu-memory', `${GRANT}Mi`, '--name', 'rogue'], [CLIENT, way]);
  for (const line of ['init', 'context 0', `alloc ${TAKEN * MIB}`]) t.is((await tell(rogue, line))[0], 0, line);
  t.is((await tell(rogue, `alloc ${(GRANT * 1.1 - TAKEN) * MIB}`))[0], 0, 'nothing refuses it');
  const written = (action: string) =>
    eventually(() => agent.audit().find((one) => one.pod === 'rogue' && one.action === action), `${action} is written`);
  t.is((await written('warn')).reason, 'over-limit');
  t.is(await agent.metric('cotenant_container_kills_total', { pod: 'rogue' }), undefined);

  // A process outside of containers takes what is left of the GPU.
  const host = startClient(t, node);
  for (const line of ['init', 'context 0']) await host.must(line);
  let result = 0;
  while (result === 0) [result = -1] = await host.ask(`alloc ${STEP * MIB}`);
  t.is(result, OUT_OF_MEMORY);
  t.is((await rogue.ended).code, 137);
  const killed = await written('kill');
  t.is(killed.reason, 'no-room');
  t.regex(killed.message, /exceeds its GPU memory grant on a GPU without free memory for other grants/);
  t.deepEqual(
    agent
      .audit()
      .map(({ pod, action }) => `${pod} ${action}`)
      .filter((line) => /terminate|neighbor/.test(line)),
    [],
  );
  t.is((await tell(neighbor, `alloc ${512 * MIB}`))[0], 0, 'what was granted is there');
});

test('of two small overruns the larger is stopped; the smaller keeps its grace period', async (t) => {
  t.timeout(180_000);
  const node = await startNode(t, '--gpu', 'l4,memory=8Gi,context=256Mi');
  const settings = { 'enforcement.softSeconds': 600 };
  const agent = await startAgent(t, node, { settings });
  const neighbor = runTenant(t, node, agent, ['--gpu-memory', '1Gi', '--name', 'neighbor'], [CLIENT]);
  for (const line of ['init', 'context 0', `alloc ${128 * MIB}`]) t.is((await tell(neighbor, line))[0], 0);
  const way = `walk:${join(node.lib, 'libcuda.so.1')}`;
  const rogues = ['less', 'more'].map((name) =>
    runTenant(t, node, agent, ['--gpu-memory', `${GRANT}Mi`, '--name', name], [CLIENT, way]),
  );
  // With the context: 2306 and 2506 MiB, of which 2624 would be far over.
  for (const [index, mib] of [2050, 2250].entries()) {
    const rogue = rogues[index] as (typeof rogues)[number];
    const lines = ['init', 'context 0', `alloc ${TAKEN * MIB}`, `alloc ${(mib - TAKEN) * MIB}`];
    for (const line of lines) t.is((await tell(rogue, line))[0], 0, line);
  }
  const [less, more] = rogues as [(typeof rogues)[number], (typeof rogues)[number]];
  const seen = (pod: string, action: string) => agent.audit().some((one) => one.pod === pod && one.action === action);
  for (const pod of ['less', 'more']) await eventually(() => seen(pod, 'warn') || undefined, `${pod} is warned`);

  // All that is left but less than the reserve, at once.
  const host = startClient(t, node);
  for (const line of ['init', 'context 0']) await host.must(line);
  const [, free = 0] = await host.ask('info');
  await host.must(`alloc ${free - 8 * MIB}`);
  t.is((await more.ended).code, 137);
  await eventually(async () => {
    const pods = (await agent.snapshot())?.containers.map(({ pod }) => pod) ?? [];
    return (pods.includes('less') && !pods.includes('more')) || undefined;
  }, 'its grant has ended');
  // By samples of after that, of which two would stop the other.
  const times = new Set<number>();
  await eventually(async () => {
    const { atMs = 0 } = (await agent.snapshot()) ?? {};
    return times.add(atMs).size > 5 || undefined;
  }, 'further samples are taken');
  t.deepEqual(
    agent
      .audit()
      .filter(({ action }) => action === 'kill' || action === 'terminate')
      .map(({ pod, action, reason }) => `${pod} ${action} ${reason}`),
    ['more kill no-room'],
  );
  t.is((await tell(less, 'info'))[0], 0, 'it runs');
});
