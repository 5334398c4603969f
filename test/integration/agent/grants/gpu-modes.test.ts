// A node whose GPUs are not all shared, by the agent's settings: what goes where, with a real agent and real programs.
import test from 'ava';
import { startNode } from '../../../support/native/node.ts';
import { runTenant, startAgent } from '../../../support/product/agent.ts';

test('shares and whole GPUs go where the modes of GPUs let them', async (t) => {
  t.timeout(120_000);
  const node = await startNode(t, '--gpu', 'l4', '--gpu', 'l4', '--gpu', 'l4');
  const [shared, exclusive, none] = [0, 1, 2].map((gpu) => node.uuid(gpu)) as [string, string, string];
  const gpuModes = { [exclusive]: 'exclusive', [none]: 'none' };
  const agent = await startAgent(t, node, { settings: { intervalMs: 100 }, file: { gpuModes } });
  await agent.measured(2);
  const run = async (...words: readonly string[]) => {
    const { ended, output } = runTenant(t, node, agent, words, ['true']);
    const { code } = await ended;
    const text = output.join('\n');
    return code === 0 ? (/ on (GPU-\S+)/.exec(text)?.[1] ?? text) : text;
  };
  t.is(await run('--gpu-memory', '1Gi'), shared);
  t.is(await run('--gpu-memory', 'whole'), exclusive, 'it leaves the shared one to shares');
  const refused = await run('--gpu-memory', '2Gi', '-n', '2');
  t.regex(refused, new RegExp(`${exclusive} is for a container that asks for all its memory`));
  t.regex(refused, new RegExp(`${none} is left to other software by its node's agent`));
  const named = await run('--gpu-memory', '1Gi', '--gpu', none);
  t.regex(named, /is left to other software/);
});
