// A node on which nothing happens is sampled half as often, by a real agent whose container holds memory.
import { join } from 'node:path';
import test from 'ava';
import { BUILD, eventually, startNode } from '../../../support/native/node.ts';
import { runTenant, startAgent, tell } from '../../../support/product/agent.ts';
import { MIB } from '../../../support/product/grant.ts';

const INTERVAL_MS = 400;
/** Successive pairs of samples that are to lie apart as on a resting node. */
const PAIRS = 4;

test('the agent rests while a container only holds memory, and wakes when it allocates', async (t) => {
  t.timeout(120_000);
  const node = await startNode(t, '--gpu', 'l4');
  const agent = await startAgent(t, node, { settings: { intervalMs: INTERVAL_MS } });
  const tenant = runTenant(t, node, agent, ['--gpu-memory', '4Gi', '--name', 'one'], [join(BUILD, 'tests/client')]);
  for (const command of ['init', 'context 0', `alloc ${100 * MIB}`]) await tell(tenant, command);

  const times: number[] = [];
  const nextSample = async () => {
    const atMs = (await agent.snapshot())?.atMs ?? 0;
    if (atMs !== times.at(-1)) times.push(atMs);
  };
  const lastGaps = () => times.slice(-PAIRS - 1).map((atMs, index, all) => atMs - (all[index - 1] ?? atMs));
  await eventually(async () => {
    await nextSample();
    const gaps = lastGaps().slice(1);
    return gaps.length === PAIRS && gaps.every((gap) => gap >= 2 * INTERVAL_MS - 50) ? true : undefined;
  }, `${PAIRS} pairs of samples two intervals apart`);

  await tell(tenant, `alloc ${100 * MIB}`);
  const awakeGap = await eventually(async () => {
    await nextSample();
    const [gap = Number.POSITIVE_INFINITY] = lastGaps().slice(-1);
    return gap < 2 * INTERVAL_MS - 50 ? gap : undefined;
  }, 'two samples less than two intervals apart');
  t.true(awakeGap > 0);
});
