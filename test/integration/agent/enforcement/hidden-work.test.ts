// Work that a container hides from the arbiter by what it writes into its lease page, where its share is a hard limit:
// the driver's samples show it, and the agent closes the gate (until when: test/unit/policy/compute-verdict.test.ts). A
// container whose programs have no gate is stopped. Its neighbor is never accused.
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { BUILD, eventually, type SimulatedNode, startNode } from '../../../support/native/node.ts';
import { hold, ranMs } from '../../../support/native/shares.ts';
import { type RunningAgent, type RunningTenant, runTenant, startAgent } from '../../../support/product/agent.ts';

const CLIENT = join(BUILD, 'tests/client');
const HIDE = join(BUILD, 'tests/hide_work');
const WINDOW_S = 10;
const SHARE = 10;
const NEIGHBOR_SHARE = 50;
/** It is found over the longer window at the latest. */
const FOUND_MS = 260_000;

type Scene = {
  readonly node: SimulatedNode;
  readonly agent: RunningAgent;
  readonly hiding: RunningTenant;
  readonly neighbor: number;
  /** What it runs, all together. */
  readonly hiddenMs: () => number;
};

/** Commands of a client that has launched once. */
const COVER = String.raw`init\ncontext 0\nlaunch 1 1000\n`;

const load = (us: number): string => `${CLIENT} libcuda.so.1 init 'context 0' 'load async 600000 ${us}'`;

async function start(t: ExecutionContext, script: (hide: string) => string): Promise<Scene> {
  t.timeout(2 * FOUND_MS + 120_000);
  const node = await startNode(t, '--gpu', 'l4');
  const settings = {
    calibrate: false,
    computePolicy: 'fixed',
    'enforcement.shareSeconds': WINDOW_S,
    'enforcement.softSeconds': 4,
  };
  const agent = await startAgent(t, node, { settings });
  const run = (name: string, cores: number, command: string) =>
    runTenant(
      t,
      node,
      agent,
      ['--gpu-memory', '1Gi', '--gpu-cores', String(cores), '--name', name],
      ['/bin/sh', '-c', command],
    );
  run('neighbor', NEIGHBOR_SHARE, `exec ${load(1000)}`);
  const neighbor = await eventually(
    async () => (await agent.snapshot())?.containers.find(({ pod }) => pod === 'neighbor')?.processes[0]?.pid,
    'the neighbor is at work',
  );
  const hiding = run('hiding', SHARE, script(`${HIDE} "$(dirname "\${LD_PRELOAD%% *}")/ledger"`));
  const hiddenMs = () =>
    node
      .usage()
      .clients.filter(({ pid }) => pid !== neighbor)
      .reduce((sum, { pid }) => sum + ranMs(node, pid), 0);
  await eventually(() => hiddenMs() > 100 || undefined, 'the other one is at work');
  return { node, agent, hiding, neighbor, hiddenMs };
}

const steps = (agent: RunningAgent, ...kinds: readonly string[]): readonly string[] =>
  agent.audit().flatMap(({ action, pod, reason }) => (kinds.includes(action) ? [`${action} ${pod} ${reason}`] : []));

const closed = (agent: RunningAgent) =>
  eventually(() => steps(agent, 'close-gate').length > 0 || undefined, 'its gate is closed', FOUND_MS);

// Its gates launch what they like in a turn, for all that was launched counts as ended.
test('a tenant that shows nothing in flight is found by the driver', async (t) => {
  const { agent, hiddenMs } = await start(
    t,
    (hide) => `${Array.from({ length: 3 }, () => `${hide} none-in-flight ${load(50_000)} &`).join(' ')} wait`,
  );
  const [beforeMs, from] = [hiddenMs(), performance.now()];
  const seconds = () => ((performance.now() - from) / 1000).toFixed(0);
  await closed(agent);
  const percent = (100 * (hiddenMs() - beforeMs)) / (performance.now() - from);
  t.log(`${percent.toFixed(0)} % in ${seconds()} s until its gate was closed`);
  t.true(percent > SHARE, 'it would be no test');
  t.deepEqual(
    new Set(steps(agent, 'warn', 'close-gate', 'terminate', 'kill')),
    new Set(['warn hiding over-share', 'close-gate hiding over-share']),
  );
});

// The process that is named in the lease page only waits; what works has no gate.
test('a tenant without a gate is stopped, whatever use its page reports', async (t) => {
  const { node, agent, hiding, neighbor } = await start(
    t,
    (hide) => `(printf '${COVER}'; sleep 900) | ${hide} reported ${CLIENT} & exec env -u LD_PRELOAD ${load(3000)}`,
  );
  const from = performance.now();
  const { code } = await hiding.ended;
  t.log(`stopped after ${((performance.now() - from) / 1000).toFixed(0)} s`);
  t.is(code, 137, hiding.output.join('\n'));
  t.is(steps(agent, 'kill').join(), 'kill hiding over-share');
  await hold(t, node, [neighbor], [NEIGHBOR_SHARE], { what: 'the neighbor' });
  t.deepEqual(new Set(agent.audit().map(({ pod }) => pod)), new Set(['hiding']));
});
