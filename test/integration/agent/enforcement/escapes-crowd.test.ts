// A tenant with processes by the hundred on the GPU, beside one that goes past its memory: the agent's look at the
// first must not keep it from stopping the second in time.
import test from 'ava';
import { describeWatch, isWithin, startWatch, stopping } from '../../../support/machine/scheduling-delays.ts';
import { eventually, startNode, temporaryFolder } from '../../../support/native/node.ts';
import { runTenant, startAgent, tell } from '../../../support/product/agent.ts';
import { MIB } from '../../../support/product/grant.ts';
import { CLIENT } from './escape-programs.ts';

const PROCESSES = 300;
const WITHIN_MS = 5000;
/** Each holds a context, and waits on a pipe without a writer. */
const CROWD = `cd "$0" && mkfifo in && exec 9<>in
for i in $(seq ${PROCESSES}); do "$1" libcuda.so.1 init "context 0" <&9 >/dev/null & done
echo started; wait`;

test('a container over its limit is stopped in time beside hundreds of processes', async (t) => {
  t.timeout(180_000);
  const node = await startNode(t, '--gpu', 'l4,context=8Mi');
  const agent = await startAgent(t, node);
  await agent.measured(1);
  const crowd = runTenant(
    t,
    node,
    agent,
    ['--gpu-memory', '8Gi', '--name', 'crowd'],
    ['/bin/sh', '-c', CROWD, temporaryFolder(t), CLIENT],
  );
  t.is(await crowd.line(), 'started');
  const processes = () => agent.metric('cotenant_container_processes', { pod: 'crowd' });
  await eventually(async () => (await processes()) === PROCESSES || undefined, 'all of them are seen', 90_000);

  const past = ['env', '-u', 'LD_PRELOAD', CLIENT];
  const offender = runTenant(t, node, agent, ['--gpu-memory', '512Mi', '--name', 'offender'], past);
  for (const line of ['init', 'context 0', `alloc ${400 * MIB}`]) t.is((await tell(offender, line))[0], 0, line);
  t.is((await tell(offender, `alloc ${200 * MIB}`))[0], 0, 'nothing refuses it');
  const over = startWatch(stopping(agent.child, node.child));
  t.is((await offender.ended).code, 137);
  const taken = over();
  t.true(isWithin(WITHIN_MS, taken), `stopped ${describeWatch(taken)}`);
  t.log(`stopped ${describeWatch(taken)}`);
  t.is(await processes(), PROCESSES, 'and the crowd, which is within its grant, is all there');
  t.deepEqual([...new Set(agent.audit().map(({ pod }) => pod))], ['offender']);
});
