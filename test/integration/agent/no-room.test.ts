// A container that is a little over on a card that others fill: it is stopped before anybody is refused what was granted.
import { join } from 'node:path';
import test from 'ava';
import { runTenant, startAgent, tell } from '../../support/agent.ts';
import { OUT_OF_MEMORY, startClient } from '../../support/client.ts';
import { MIB } from '../../support/grant.ts';
import { BUILD, eventually, startNode } from '../../support/node.ts';

const CLIENT = join(BUILD, 'tests/client');
const GRANT = 2048;
/** Above the tolerance (2153 MiB), and not far over (2624 MiB), with a context on top. */
const TAKEN = 1900;
const STEP = 16;

test('whoever is a little over is stopped at once when its card has nothing left of what others were granted', async (t) => {
  t.timeout(90_000);
  const node = await startNode(t, '--card', 'l4,memory=6Gi,context=256Mi');
  // What is only over the limit would take its time.
  const settings = { 'enforcement.softSeconds': 600 };
  const agent = await startAgent(t, node, { settings });
  const neighbour = runTenant(t, node, agent, ['--gpu-memory', '1Gi', '--name', 'neighbour'], [CLIENT]);
  for (const line of ['init', 'context 0', `alloc ${128 * MIB}`]) t.is((await tell(neighbour, line))[0], 0);

  // It has a slot in its ledger, and finds a way past the interposer all the same.
  const way = `walk:${join(node.lib, 'libcuda.so.1')}`;
  const cheat = runTenant(t, node, agent, ['--gpu-memory', `${GRANT}Mi`, '--name', 'cheat'], [CLIENT, way]);
  for (const line of ['init', 'context 0', `alloc ${TAKEN * MIB}`]) t.is((await tell(cheat, line))[0], 0, line);
  t.is((await tell(cheat, `alloc ${(GRANT * 1.1 - TAKEN) * MIB}`))[0], 0, 'nothing refuses it');
  const written = (action: string) =>
    eventually(() => agent.audit().find((one) => one.pod === 'cheat' && one.action === action), `${action} is written`);
  t.is((await written('warn')).reason, 'over-limit');
  t.is(await agent.metric('cotenant_container_kills_total', { pod: 'cheat', reason: 'no-room' }), 0);

  // Somebody outside takes what is left of the card.
  const host = startClient(t, node);
  for (const line of ['init', 'context 0']) await host.must(line);
  let result = 0;
  while (result === 0) [result = -1] = await host.ask(`alloc ${STEP * MIB}`);
  t.is(result, OUT_OF_MEMORY);
  t.is((await cheat.ended).code, 137);
  const killed = await written('kill');
  t.is(killed.reason, 'no-room');
  t.regex(killed.message, /is over its GPU memory grant, and its card has nothing left for others/);
  t.deepEqual(
    agent
      .audit()
      .map(({ pod, action }) => `${pod} ${action}`)
      .filter((line) => /terminate|neighbour/.test(line)),
    [],
  );
  t.is((await tell(neighbour, `alloc ${512 * MIB}`))[0], 0, 'what was granted is there');
});
