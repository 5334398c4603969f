// The canary as an operator meets it: an interposer that does not hold, for several reasons, and one that was mended.
// The agent is installed with files of its own, so that they can be broken.
import { execFile, execFileSync } from 'node:child_process';
import { once } from 'node:events';
import { copyFileSync, readFileSync, renameSync, rmSync, truncateSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import test, { type ExecutionContext } from 'ava';
import { engineName, enginesIn } from '../../../../src/agent/grants/engine-files.ts';
import { unifiedMount } from '../../../../src/agent/os/cgroup.ts';
import { testUnless } from '../../../support/gate.ts';
import {
  BUILD,
  COMPILER,
  eventually,
  type SimulatedNode,
  startNode,
  temporaryFolder,
} from '../../../support/native/node.ts';
import { anotherBuild, type RunningAgent, runTenant, startAgent } from '../../../support/product/agent.ts';
import { MIB } from '../../../support/product/grant.ts';

const LOAD = join(BUILD, 'tests/load');
const HOLDS = 'cotenant_device_fence_holds';
const ENGINE = engineName(enginesIn(BUILD).at(-1) ?? Number.NaN);

/** Says that it is the interposer, and lets everything pass. */
function impostor(t: ExecutionContext): string {
  const folder = temporaryFolder(t);
  const [source, object] = [join(folder, 'impostor.c'), join(folder, 'libcotenant.so')];
  writeFileSync(source, 'int cotenant_interposer = 1;\n');
  execFileSync(COMPILER, ['-shared', '-fPIC', '-o', object, source]);
  return object;
}

/** Under its name at once, as an installation does it. */
function install(root: string, name: string, from: string, change: (path: string) => void = () => {}): void {
  const path = join(root, 'native/build', name);
  copyFileSync(from, `${path}.new`);
  change(`${path}.new`);
  renameSync(`${path}.new`, path);
}

const settled = (agent: RunningAgent, value: number | undefined) =>
  eventually(async () => ((await agent.metric(HOLDS)) === value ? true : undefined), `${HOLDS} is ${value}`);

async function ask(t: ExecutionContext, node: SimulatedNode, agent: RunningAgent) {
  const tenant = runTenant(t, node, agent, ['--gpu-memory', '1Gi', '--name', 'new'], ['true']);
  const { code } = await tenant.ended;
  return { code, said: tenant.output.join('\n') };
}

async function setUp(t: ExecutionContext) {
  const node = await startNode(t, '--gpu', 'l4');
  const root = anotherBuild(t, [join(BUILD, ENGINE)]);
  const state = join(temporaryFolder(t), 'state');
  const start = () => startAgent(t, node, { root, state, settings: { intervalMs: 100 } });
  return { node, root, start };
}

test('a failing isolation check cordons the GPU and spares running containers', async (t) => {
  t.timeout(240_000);
  const { node, root, start } = await setUp(t);
  const agent = await start();
  await settled(agent, 1);
  const running = runTenant(t, node, agent, ['--gpu-memory', '4Gi', '--name', 'old'], [LOAD, '2', String(MIB)]);
  t.is(await running.line(), 'ready');

  install(root, 'libcotenant.so', impostor(t));
  await settled(agent, 0);
  t.deepEqual(
    node.usage().clients.filter(({ command, alive }) => alive && command === 'load').length,
    1,
    'who runs is left alone',
  );
  const { code, said } = await ask(t, node, agent);
  t.is(code, 125);
  t.regex(said, /no grant: .*limits are not enforced on GPU-\S+: a request beyond the grant succeeded \(handle\)/);
  const lines = agent.log.filter((line) => /nothing is granted there/.test(line));
  t.is(lines.length, 1, agent.log.join('\n'));

  install(root, 'libcotenant.so', join(BUILD, 'libcotenant.so'));
  await settled(agent, 1);
  t.is((await ask(t, node, agent)).code, 0);
  t.regex(agent.log.join('\n'), /the interposer enforces limits on GPU-\S+ again/);
  running.write('');
  const { calls, failed } = JSON.parse(await running.line()) as { calls: number; failed: number };
  t.true(calls > 0);
  t.is(failed, 0);
});

test('a truncated or missing interposer file is found before anything is granted', async (t) => {
  t.timeout(240_000);
  const { node, root, start } = await setUp(t);
  const whole = join(BUILD, 'libcotenant.so');
  install(root, 'libcotenant.so', whole, (path) => truncateSync(path, 100));
  const agent = await start();
  const first = await ask(t, node, agent);
  t.is(first.code, 125);
  t.regex(first.said, /limits are not enforced on GPU-\S+: the interposer is not in the process/);
  // The loader takes this one, and dies of it.
  install(root, 'libcotenant.so', whole, (path) => truncateSync(path, 8192));
  await eventually(
    () => (/nothing is granted there .*without the interposer/.test(agent.log.join('\n')) ? true : undefined),
    'it is tried again',
  );
  install(root, 'libcotenant.so', whole);
  await settled(agent, 1);
  rmSync(join(root, 'native/build', ENGINE));
  await settled(agent, 0);
  t.is((await ask(t, node, agent)).code, 125);
  install(root, ENGINE, join(BUILD, ENGINE));
  await settled(agent, 1);
  t.is((await ask(t, node, agent)).code, 0);
});

test('the check takes nothing of a GPU granted to the last byte; its result is unknown', async (t) => {
  t.timeout(240_000);
  const { node, start } = await setUp(t);
  const first = await start();
  await settled(first, 1);
  const usable = Math.floor(node.usable(0) / MIB) * MIB;
  const all = runTenant(t, node, first, ['--gpu-memory', String(usable), '--name', 'all'], [LOAD, '1', String(MIB)]);
  t.is(await all.line(), 'ready');
  await first.stop();
  const second = await start();
  await eventually(
    () => (second.log.some((line) => /could not check .*: not enough free memory/.test(line)) ? true : undefined),
    'it says that it did not try',
  );
  t.is(await second.metric(HOLDS), undefined);
  t.is(node.usage().clients.filter(({ command }) => command.startsWith('cotenant-canary')).length, 0);
  all.child.kill('SIGTERM');
  await all.ended;
  await settled(second, 1);
});

const MAIN = join(import.meta.dirname, '../../../../src/cli/main.ts');
const driver = async (agent: RunningAgent, subcommand: string): Promise<void> => {
  await promisify(execFile)(process.execPath, [MAIN, 'driver', subcommand, '--state', agent.state]);
};

/** Given up, ended, started in the same place as another version, and taken again, as an operator upgrades a driver. */
async function upgrade(t: ExecutionContext, from: SimulatedNode, agent: RunningAgent, version: string) {
  await driver(agent, 'release');
  const ended = once(from.child, 'exit');
  from.child.kill('SIGTERM');
  await ended;
  const to = await startNode(t, '--gpu', 'l4', '--driver', version, '--dir', from.folder);
  await driver(agent, 'take');
  await eventually(
    async () =>
      ((await agent.snapshot())?.driverVersion === version && (await agent.metric('cotenant_up')) === 1) || undefined,
    `the driver is ${version}`,
  );
  return to;
}

test('another driver version is checked again at run time; the same one is not', async (t) => {
  t.timeout(240_000);
  const first = await startNode(t, '--gpu', 'l4', '--driver', '580.65.06');
  const agent = await startAgent(t, first, { settings: { intervalMs: 100 } });
  await settled(agent, 1);
  // With all of the GPU granted a try finds no free memory, and says so.
  const usable = Math.floor(first.usable(0) / MIB) * MIB;
  const all = runTenant(t, first, agent, ['--gpu-memory', String(usable), '--name', 'all'], ['sleep', '600']);
  await eventually(
    async () => (await agent.metric('cotenant_device_memory_allocated_bytes')) || undefined,
    'it is granted',
  );
  const untried = () =>
    agent.log.filter((line) => /could not check whether the interposer .*: not enough free memory/.test(line)).length;

  const second = await upgrade(t, first, agent, '580.65.06');
  const seenMs = (await agent.snapshot())?.atMs ?? 0;
  await eventually(async () => ((await agent.snapshot())?.atMs ?? 0) > seenMs + 1000 || undefined, 'ten more samples');
  t.is(await agent.metric(HOLDS), 1, 'what was said of this version holds');
  t.is(untried(), 0);

  const third = await upgrade(t, second, agent, '580.95.05');
  await eventually(() => untried() === 1 || undefined, 'the other version is due');
  t.is(await agent.metric(HOLDS), undefined, 'and what was said of the first one says nothing of it');
  all.child.kill('SIGTERM');
  await all.ended;
  await settled(agent, 1);
  t.is((await ask(t, third, agent)).code, 0);
});

const mount = unifiedMount();
const ofDriver = testUnless(
  process.getuid?.() !== 0 ? 'it needs to be root to make groups' : mount ? undefined : 'there is no unified hierarchy',
);
const fence = (agent: RunningAgent, name: string, value: number | undefined) =>
  eventually(
    async () => ((await agent.metric(HOLDS, { fence: name })) === value ? true : undefined),
    `${name} is ${value}`,
  );

/** Limits of its driver that have no effect, and are reported as if they had. */
const ignoring = (node: SimulatedNode, isOn: boolean) => node.control('ignore-limits', isOn ? '1' : '0');

ofDriver('driver limits that do not hold are reported and not set; the interposer isolates', async (t) => {
  t.timeout(240_000);
  const node = await startNode(t, '--gpu', 'l4', '--driver', '615.71.09');
  const state = join(temporaryFolder(t), 'state');
  const start = () => startAgent(t, node, { state, settings: { intervalMs: 100 } });
  const agent = await start();
  await fence(agent, 'interposer', 1);
  await fence(agent, 'driver', 1);
  const held = (name: string) =>
    eventually(
      async () =>
        (await agent.metric('cotenant_container_info', { pod: 'it', fence: name })) === 1 ? true : undefined,
      `the fence is ${name}`,
    );
  const tenant = runTenant(t, node, agent, ['--gpu-memory', '1Gi', '--name', 'it'], [LOAD, '2', String(MIB)]);
  t.is(await tenant.line(), 'ready');
  await held('driver');
  t.is(node.usage().clients.filter(({ command }) => command.startsWith('cotenant-canary')).length, 0);
  await agent.stop();

  ignoring(node, true);
  const second = await start();
  await fence(second, 'driver', 0);
  await fence(second, 'interposer', 1);
  const lines = second.log.filter((line) => /are not used there: a request beyond the grant succeeded/.test(line));
  t.is(lines.length, 1, second.log.join('\n'));
  await eventually(
    async () =>
      (await second.metric('cotenant_container_info', { pod: 'it', fence: 'interposer' })) === 1 ? true : undefined,
    'the interposer is the fence',
  );
  await eventually(
    () => (/"limits": \[\]/.test(readFileSync(join(state, 'driver-limits.json'), 'utf8')) ? true : undefined),
    'what was set is taken back',
  );
  t.is((await ask(t, node, second)).code, 0, 'grants are given behind the interposer');

  ignoring(node, false);
  await fence(second, 'driver', 1);
  t.regex(second.log.join('\n'), /the driver enforces its limits on GPU-\S+ again/);
  await eventually(
    async () =>
      (await second.metric('cotenant_container_info', { pod: 'it', fence: 'driver' })) === 1 ? true : undefined,
    'the driver is the fence again',
  );
});

ofDriver('without a working interposer only containers that the driver limits get a grant', async (t) => {
  t.timeout(240_000);
  const node = await startNode(t, '--gpu', 'l4', '--driver', '615.71.09');
  const root = anotherBuild(t, [join(BUILD, ENGINE)]);
  install(root, 'libcotenant.so', impostor(t));
  const state = join(temporaryFolder(t), 'state');
  const start = (settings: object = {}) =>
    startAgent(t, node, { root, state, settings: { intervalMs: 100, ...settings } });
  const agent = await start();
  await fence(agent, 'interposer', 0);
  await fence(agent, 'driver', 1);
  t.is((await ask(t, node, agent)).code, 0);
  await agent.stop();

  const reporting = await start({ 'enforcement.mode': 'report' });
  await fence(reporting, 'driver', 1);
  const refused = await ask(t, node, reporting);
  t.is(refused.code, 125);
  t.regex(refused.said, /on GPU-\S+ only the driver enforces limits, which would not be set for this container/);
  await reporting.stop();

  ignoring(node, true);
  const neither = await start();
  await fence(neither, 'driver', 0);
  const none = await ask(t, node, neither);
  t.is(none.code, 125);
  t.regex(
    none.said,
    /limits are not enforced on GPU-\S+: .*; nor are the driver's limits enforced: a request beyond the grant succeeded/,
  );
});
