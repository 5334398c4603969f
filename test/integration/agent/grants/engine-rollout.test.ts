// The interposer's engine as an operator replaces it: by the agent's next build, and back by holding a number, under a
// program that allocates all the time.
import { existsSync, lstatSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { engineName, enginesIn } from '../../../../src/agent/grants/engine-files.ts';
import { BEYOND, mappedEngines, OTHER_ENGINES, SAME_AGAIN } from '../../../support/native/engines.ts';
import { BUILD, eventually, type SimulatedNode, startNode, temporaryFolder } from '../../../support/native/node.ts';
import { anotherBuild, type RunningAgent, runTenant, startAgent } from '../../../support/product/agent.ts';
import { MIB } from '../../../support/product/grant.ts';

const LOAD = join(BUILD, 'tests/load');
const OWN = enginesIn(BUILD).at(-1) ?? Number.NaN;
const RUNS = 'cotenant_container_engine_processes';
const REFUSED = 'cotenant_container_engine_refused_processes';
const BEHIND = 'cotenant_container_engine_outdated';
const own = join(BUILD, engineName(OWN));
const other = (number: number) => join(OTHER_ENGINES, engineName(number));

const has = (agent: RunningAgent, name: string, labels: Record<string, string>, value: number | undefined) =>
  eventually(
    async () => ((await agent.metric(name, labels)) === value ? true : undefined),
    `${name} ${JSON.stringify(labels)} is ${value}`,
  );

async function setUp(t: ExecutionContext) {
  const node = await startNode(t, '--gpu', 'l4');
  const state = join(temporaryFolder(t), 'state');
  const start = (settings = {}, root?: string) =>
    startAgent(t, node, { state, settings: { intervalMs: 100, calibrate: false, ...settings }, ...(root && { root }) });
  return { node, state, start };
}

async function startLoad(t: ExecutionContext, node: SimulatedNode, agent: RunningAgent, name: string) {
  const flags = ['--gpu-memory', '4Gi', '--name', name];
  const tenant = runTenant(t, node, agent, flags, [LOAD, '2', String(MIB)]);
  t.is(await tenant.line(), 'ready');
  const pid = node.usage().clients.find(({ command, alive }) => command === 'load' && alive)?.pid ?? 0;
  return {
    tenant,
    pid,
    async stop() {
      tenant.write('');
      return JSON.parse(await tenant.line()) as { calls: number; failed: number };
    },
  };
}

const runs = (pid: number, number: number) =>
  eventually(
    () => (mappedEngines(pid).join() === String(number) ? true : undefined),
    `process ${pid} runs engine ${number} and no other`,
  );

test('running processes change to the engine of a newer agent and back; no call fails', async (t) => {
  t.timeout(120_000);
  const { node, state, start } = await setUp(t);
  const first = await start();
  const load = await startLoad(t, node, first, 'one');
  await has(first, RUNS, { pod: 'one', engine: String(OWN) }, 1);
  const grantId = await eventually(
    async () => (await first.snapshot())?.containers[0]?.grantId,
    'the agent shows the grant',
  );
  const folder = join(state, 'grants', grantId);
  t.false(lstatSync(join(folder, engineName(OWN))).isSymbolicLink(), 'it is there also when the build is another one');
  await first.stop();
  const next = anotherBuild(t, [other(SAME_AGAIN)]);
  const second = await start({}, next);
  await runs(load.pid, SAME_AGAIN);
  await has(second, RUNS, { pod: 'one', engine: String(SAME_AGAIN) }, 1);
  t.is(await second.metric(RUNS, { pod: 'one', engine: String(OWN) }), undefined);
  await has(second, BEHIND, { pod: 'one' }, 0);
  t.is(await second.metric(REFUSED, { pod: 'one' }), 0);
  const lines = second.log.filter((line) => line.includes(' changes to engine '));
  t.is(lines.length, 1, second.log.join('\n'));
  t.regex(lines[0] ?? '', /local\/one\/load \(grant \S+\) changes to engine 902 of the interposer$/);
  t.deepEqual(readFileSync(join(folder, engineName(SAME_AGAIN))), readFileSync(other(SAME_AGAIN)));
  await second.stop();

  const held = await start({ interposerEngine: OWN }, next);
  await runs(load.pid, OWN);
  await has(held, RUNS, { pod: 'one', engine: String(OWN) }, 1);
  t.true(held.log.join('\n').includes(`interposerEngine: this build has no engine ${OWN} (it has ${SAME_AGAIN})`));
  await held.stop();

  const mistaken = await start({ interposerEngine: 77 }, next);
  await has(mistaken, BEHIND, { pod: 'one' }, 1);
  await eventually(
    () =>
      mistaken.log.find((line) =>
        /local\/one\/load \(grant .* keeps its present engine.*neither in its folder/.test(line),
      ),
    'it is reported',
  );
  await runs(load.pid, OWN);
  t.false(existsSync(join(folder, engineName(77))));
  const { calls, failed } = await load.stop();
  t.is(failed, 0);
  t.true(calls > 1000, String(calls));
  load.tenant.write('');
  t.is((await load.tenant.ended).code, 0);
  await has(mistaken, RUNS, { pod: 'one' }, undefined);
  await has(mistaken, BEHIND, { pod: 'one' }, undefined);
});

test('an engine that processes refuse is reported; they keep the old one', async (t) => {
  const { node, start } = await setUp(t);
  const first = await start();
  const load = await startLoad(t, node, first, 'one');
  await first.stop();
  const second = await start({}, anotherBuild(t, [own, other(BEYOND)]));
  await has(second, REFUSED, { pod: 'one' }, 1);
  await has(second, RUNS, { pod: 'one', engine: String(OWN) }, 1);
  await runs(load.pid, OWN);
  await second.stop();
  const third = await start({}, anotherBuild(t, [own, other(SAME_AGAIN)]));
  await runs(load.pid, SAME_AGAIN);
  await has(third, REFUSED, { pod: 'one' }, 0);
  t.is((await load.stop()).failed, 0);
  load.tenant.write('');
  await load.tenant.ended;
  const fresh = await startLoad(t, node, third, 'two');
  await runs(fresh.pid, SAME_AGAIN);
  await has(third, RUNS, { pod: 'two', engine: String(SAME_AGAIN) }, 1);
  t.is((await fresh.stop()).failed, 0);
});
