// What a tenant's crashes do to others: nothing, in ten ways, over and over.
import { join } from 'node:path';
import test from 'ava';
import { BUILD, eventually, startNode } from '../../../support/native/node.ts';
import { runTenant, startAgent, tell } from '../../../support/product/agent.ts';
import { MIB } from '../../../support/product/grant.ts';

const CLIENT = join(BUILD, 'tests/client');

test('a tenant that crash-loops 100 times harms no other and leaves nothing on the GPU', async (t) => {
  t.timeout(180_000);
  const node = await startNode(t, '--gpu', 'l4');
  const agent = await startAgent(t, node);
  const neighbor = runTenant(t, node, agent, ['--gpu-memory', '2Gi', '--name', 'neighbor'], [CLIENT]);
  await tell(neighbor, 'init');
  await tell(neighbor, 'context 0');
  const [, kept] = await tell(neighbor, `alloc ${256 * MIB}`);
  await tell(neighbor, `set ${kept} 500000 17`);

  // One grant that lives on while its processes crash, as a container's does.
  const shell = runTenant(
    t,
    node,
    agent,
    ['--gpu-memory', '1Gi', '--name', 'crasher'],
    [
      '/bin/sh',
      '-c',
      `
    while read -r script; do printf '%b' "$script" | ${CLIENT} >/dev/null 2>&1; echo $?; done`,
    ],
  );
  const start = `init\\ncontext 0\\nalloc ${600 * MIB}\\n`;
  // What it does, and the code with which it ends.
  const ways = [
    [`${start}launch 1 100 700\\nsync\\nabort\\n`, '134'],
    [`${start}launch 1 100 710\\nsync\\nalloc 512\\n`, '0'],
    [`${start}abort\\n`, '134'],
    [`${start}kill-self\\n`, '137'],
    // A fault that sticks, kernels under way, a grant used up, a handle without a mapping, descriptors that are gone.
    [`${start}launch 1 100 719\\nsync\\nkill-self\\n`, '137'],
    [`${start}launch 20 20000\\nkill-self\\n`, '137'],
    [`${start}fill-all ${64 * MIB}\\nabort\\n`, '134'],
    [`${start}physical ${64 * MIB}\\nkill-self\\n`, '137'],
    [`${start}close-all\\nabort\\n`, '134'],
    [`${start}no-such-command\\n`, '2'],
  ] as const;
  t.is(ways.length, 10);
  for (let round = 0; round < 100; round++) {
    const [script, code] = ways[round % ways.length] ?? ways[0];
    shell.write(script);
    t.is(await shell.line(), code, script);
    // After each of the ways, too: ten and three have no divisor in common.
    if (round % 3 === 0) {
      t.deepEqual(await tell(neighbor, `check ${kept} 500000 17`), [0, 0]);
      const [result, at] = await tell(neighbor, `alloc ${64 * MIB}`);
      t.is(result, 0);
      t.is((await tell(neighbor, `free ${at}`))[0], 0);
      t.is((await tell(neighbor, 'launch 1 100'))[0], 0);
      t.is((await tell(neighbor, 'sync'))[0], 0, 'no fault of the other is its own');
    }
  }
  const crashed = Date.now();
  await eventually(async () => ((await agent.snapshot())?.atMs ?? 0) > crashed || undefined, 'a sample of after it');
  t.is(await agent.metric('cotenant_container_allocations_denied_total', { pod: 'neighbor' }), 0);
  t.is(node.usage().clients.filter((client) => client.command === 'client').length, 1);
  t.deepEqual(agent.audit(), [], 'crashing is not exceeding');
  // The whole grant is there again for the next process.
  shell.write(`init\\ncontext 0\\nalloc ${(1024 - 200) * MIB}\\n`);
  t.is(await shell.line(), '0');
  t.deepEqual(await tell(neighbor, `check ${kept} 500000 17`), [0, 0]);
});
