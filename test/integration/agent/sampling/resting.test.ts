// A node on which nothing happens is sampled half as often, by a real agent whose container holds memory.
import { join } from 'node:path';
import test from 'ava';
import { BUILD, eventually, startNode } from '../../../support/native/node.ts';
import { runTenant, startAgent, tell } from '../../../support/product/agent.ts';
import { MIB } from '../../../support/product/grant.ts';

const INTERVAL_MS = 400;
/** Successive pairs of samples that are to lie apart as on a resting node. */
const PAIRS = 4;
/** Of how late one sample may be; the next one makes up for it. */
const LATE_MS = 50;

test('the agent rests while a container only holds memory, and wakes when it allocates', async (t) => {
  t.timeout(180_000);
  const node = await startNode(t, '--gpu', 'l4');
  const agent = await startAgent(t, node, { settings: { intervalMs: INTERVAL_MS } });
  const tenant = runTenant(t, node, agent, ['--gpu-memory', '4Gi', '--name', 'one'], [join(BUILD, 'tests/client')]);
  for (const command of ['init', 'context 0', `alloc ${100 * MIB}`]) await tell(tenant, command);

  const times: number[] = [];
  /** True for one that was not seen before. */
  const isNextSample = async () => {
    const atMs = (await agent.snapshot())?.atMs ?? 0;
    return atMs !== times.at(-1) && times.push(atMs) > 1;
  };
  const lastMs = (pairs: number) => (times.at(-1) ?? 0) - (times.at(-1 - pairs) ?? Number.NaN);
  await eventually(async () => {
    await isNextSample();
    return lastMs(PAIRS) >= PAIRS * 2 * INTERVAL_MS - LATE_MS;
  }, `${PAIRS} pairs of samples two intervals apart`);

  await eventually(async () => {
    // It goes on allocating: an agent that a busy machine held up while it was awake would rest again.
    if (await isNextSample()) t.is((await tell(tenant, `alloc ${2 * MIB}`))[0], 0);
    return lastMs(PAIRS) < PAIRS * 1.5 * INTERVAL_MS;
  }, `${PAIRS} pairs of samples less than two intervals apart`);
});
