// The driver's own limits as the agent sets them: for tenants with a group of their own, on the simulated driver that
// has them.
import { execFileSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync, rmdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { ExecutionContext } from 'ava';
import { engineName, enginesIn } from '../../../../src/agent/grants/engine-files.ts';
import { unifiedMount } from '../../../../src/agent/os/cgroup.ts';
import { testUnless } from '../../../support/gate.ts';
import { BUILD, eventually, type SimulatedNode, startNode, temporaryFolder } from '../../../support/native/node.ts';
import { anotherBuild, type RunningAgent, runTenant, startAgent } from '../../../support/product/agent.ts';
import { MIB } from '../../../support/product/grant.ts';

const CLIENT = join(BUILD, 'tests/client');
const FENCE = 'cotenant_container_info';
const LIMIT = 1024 * MIB;
const mount = unifiedMount();

function reason(): string | undefined {
  if (process.getuid?.() !== 0) return 'it needs to be root to make groups';
  return mount === undefined ? 'there is no unified cgroup hierarchy' : undefined;
}

const own = (): string =>
  join(
    mount ?? '',
    readFileSync('/proc/self/cgroup', 'utf8')
      .split('\n')
      .find((line) => line.startsWith('0::'))
      ?.slice(3) ?? '',
  );

/** The group of the only tenant. */
const folderOf = (agent: RunningAgent): string => {
  const [id] = readdirSync(join(agent.state, 'grants'));
  return join(own(), `cotenant-${id}`);
};

type LimitAnswer = { result: number; softBytes: number; usedBytes: number; hardBytes: number | null };

function limits(node: SimulatedNode, line: string): LimitAnswer {
  const args = ['--library', join(node.lib, 'libnvidia-ml.so.1')];
  return JSON.parse(
    execFileSync(join(BUILD, 'cotenant-limits'), args, { input: `${line}\n`, encoding: 'utf8' }),
  ) as LimitAnswer;
}

const fenceIs = (agent: RunningAgent, fence: string) =>
  eventually(
    async () => ((await agent.metric(FENCE, { pod: 'it', fence })) === 1 ? true : undefined),
    `the fence is ${fence}`,
  );

/** A program that reaches the driver past the interposer: it drops what was preloaded. */
function rogue(t: ExecutionContext, node: SimulatedNode, agent: RunningAgent) {
  const flags = ['--gpu-memory', String(LIMIT), '--name', 'it'];
  const tenant = runTenant(t, node, agent, flags, ['env', '-u', 'LD_PRELOAD', CLIENT]);
  const ask = async (command: string) => {
    tenant.write(command);
    return Number((await tenant.line()).split(' ')[0]);
  };
  return { tenant, ask };
}

async function setUp(t: ExecutionContext, driver = '615.71.09') {
  const node = await startNode(t, '--gpu', 'l4', '--driver', driver);
  const state = join(temporaryFolder(t), 'state');
  const start = (settings = {}) =>
    startAgent(t, node, { state, settings: { intervalMs: 100, urgentIntervalMs: 100, calibrate: false, ...settings } });
  return { node, start, agent: await start() };
}

testUnless(reason())('the driver refuses a bypass beyond the grant, so no process has to be stopped', async (t) => {
  const { node, agent } = await setUp(t);
  const { tenant, ask } = rogue(t, node, agent);
  await fenceIs(agent, 'driver');
  const folder = folderOf(agent);
  t.is(limits(node, `get ${node.uuid(0)} ${folder}`).hardBytes, LIMIT);
  t.is(await ask('init'), 0);
  t.is(await ask('context 0'), 0);
  t.is(await ask(`alloc ${512 * MIB}`), 0);
  t.is(await ask(`alloc ${512 * MIB}`), 2);
  await fenceIs(agent, 'driver');
  t.is(await agent.metric('cotenant_container_memory_over_limit', { pod: 'it' }), 0);

  // Another amount for the grant is another limit.
  execFileSync(process.execPath, [
    join(import.meta.dirname, '../../../../src/cli/main.ts'),
    'set',
    'it',
    '--gpu-memory',
    '2Gi',
    '--state',
    agent.state,
  ]);
  await eventually(
    () => (limits(node, `get ${node.uuid(0)} ${folder}`).hardBytes === 2 * LIMIT ? true : undefined),
    'the limit follows',
  );
  t.is(await ask(`alloc ${512 * MIB}`), 0);

  // With the grant it goes, also where the group stays.
  tenant.child.kill('SIGTERM');
  await tenant.ended;
  await eventually(() => (existsSync(folder) ? undefined : true), 'the group is gone');
  await eventually(
    () =>
      (JSON.parse(readFileSync(join(agent.state, 'driver-limits.json'), 'utf8')) as { limits: unknown[] }).limits
        .length === 0
        ? true
        : undefined,
    'nothing is left of it',
  );
  t.deepEqual(agent.audit(), []);
});

testUnless(reason())('a new agent adopts the limits of a killed one and leaves foreign limits alone', async (t) => {
  const { node, start, agent } = await setUp(t);
  const { ask } = rogue(t, node, agent);
  await fenceIs(agent, 'driver');
  const folder = folderOf(agent);
  const uuid = node.uuid(0);
  await agent.stop('SIGKILL');
  t.is(limits(node, `get ${uuid} ${folder}`).hardBytes, LIMIT, 'it holds while no process is there');
  const second = await start();
  await fenceIs(second, 'driver');
  t.false(
    second.log.some((line) => line.includes("driver's limit")),
    second.log.join('\n'),
  );
  await second.stop();

  // A limit of another program is not touched: neither while the grant lasts nor at its end.
  limits(node, `set ${uuid} 0 ${3 * LIMIT} ${folder}`);
  const third = await start();
  await eventually(
    () => (third.log.some((line) => line.includes('another program has set it')) ? true : undefined),
    'it is reported',
  );
  await fenceIs(third, 'interposer');
  t.is(limits(node, `get ${uuid} ${folder}`).hardBytes, 3 * LIMIT);
  t.is(await ask('init'), 0);
  t.is(await ask('context 0'), 0);
  await fenceIs(third, 'agent');
});

testUnless(reason())('a limit whose grant ended without an agent is removed at the next start', async (t) => {
  const { node, start, agent } = await setUp(t);
  const { tenant } = rogue(t, node, agent);
  await fenceIs(agent, 'driver');
  const folder = folderOf(agent);
  await agent.stop('SIGKILL');
  // The group stays, as it does for a container whose pod has another one still.
  const keeper = execFileSync('sh', ['-c', `sleep 1000 >/dev/null 2>&1 & echo $! > ${folder}/cgroup.procs; echo $!`], {
    encoding: 'utf8',
  });
  tenant.child.kill('SIGKILL');
  await tenant.ended;
  t.teardown(() => void process.kill(Number(keeper)));
  t.is(limits(node, `get ${node.uuid(0)} ${folder}`).hardBytes, LIMIT);
  await start();
  await eventually(
    () => (limits(node, `get ${node.uuid(0)} ${folder}`).hardBytes === null ? true : undefined),
    'it is taken back',
    60_000,
  );
});

testUnless(reason())('without driver limits, or with them disabled, nothing is set and nothing logged', async (t) => {
  const old = await setUp(t, '580.95.05');
  const off = await setUp(t);
  const lines = await off.start;
  t.truthy(lines);
  await off.agent.stop();
  const agent = await off.start({ driverLimits: false });
  for (const [node, running] of [
    [old.node, old.agent],
    [off.node, agent],
  ] as const) {
    const { ask } = rogue(t, node, running);
    t.is(await ask('init'), 0);
    t.is(await ask('context 0'), 0);
    await fenceIs(running, 'agent');
    t.false(
      running.log.some((line) => line.includes("driver's limit")),
      running.log.join('\n'),
    );
  }
  t.false(
    existsSync(join(agent.state, 'driver-limits.json')) &&
      readFileSync(join(agent.state, 'driver-limits.json'), 'utf8').includes('GPU-'),
  );
});

/** A build whose canary, when it is to try that GPU, goes into its group, says so in the file, and stays there. */
function stalling(t: ExecutionContext, uuid: string, mark: string): string {
  const root = anotherBuild(
    t,
    enginesIn(BUILD).map((number) => join(BUILD, engineName(number))),
  );
  const program = join(root, 'native/build/cotenant-canary');
  rmSync(program);
  const script = [
    '#!/bin/sh',
    'for word; do last=$word; done',
    `case "$CUDA_VISIBLE_DEVICES $*" in ${uuid}*--group*)`,
    `  echo 0 > "$last/cgroup.procs" && echo $$ > ${mark}.new && mv ${mark}.new ${mark} && exec sleep 600;;`,
    'esac',
    `exec ${join(BUILD, 'cotenant-canary')} "$@"`,
  ];
  writeFileSync(program, `${script.join('\n')}\n`, { mode: 0o755 });
  return root;
}

testUnless(reason())('after a kill during a canary the next agent removes its limit and no other', async (t) => {
  t.timeout(240_000);
  const node = await startNode(t, '--gpu', 'l4', '--gpu', 'l4', '--driver', '615.71.09');
  // The second one: the next agent begins with the first.
  const uuid = node.uuid(1);
  const [state, mark] = [join(temporaryFolder(t), 'state'), join(temporaryFolder(t), 'mark')];
  const root = stalling(t, uuid, mark);
  const settings = { intervalMs: 100, calibrate: false, canary: true };
  const start = () => startAgent(t, node, { state, settings });
  const hardBytes = (group: string) => limits(node, `get ${uuid} ${group}`).hardBytes;
  const killed = async () => {
    rmSync(mark, { force: true });
    const agent = await startAgent(t, node, { state, settings, root });
    const pid = Number(
      await eventually(() => (existsSync(mark) ? readFileSync(mark, 'utf8') : undefined), 'a canary is in its group'),
    );
    t.teardown(() => {
      try {
        process.kill(pid, 'SIGKILL');
      } catch {} // it has ended
    });
    await agent.stop('SIGKILL');
    return { group: join(own(), `cotenant-canary-${agent.child.pid}`), pid };
  };
  const bothHold = (agent: RunningAgent) =>
    eventually(
      async () => ((await agent.metric('cotenant_device_fence_holds', { fence: 'driver' })) === 2 ? true : undefined),
      'both GPUs were tried',
      60_000,
    );

  const first = await killed();
  t.true((hardBytes(first.group) ?? 0) > 0, 'it is there while no agent is');
  const next = await start();
  await eventually(() => (hardBytes(first.group) === null ? true : undefined), 'the limit is taken back');
  t.true(existsSync(first.group), 'a process is in it still');
  process.kill(first.pid, 'SIGKILL');
  await eventually(() => (existsSync(first.group) ? undefined : true), 'its group goes, too');
  await bothHold(next);
  await eventually(
    () => (/"limits": \[\]/.test(readFileSync(join(state, 'driver-limits.json'), 'utf8')) ? true : undefined),
    'nothing is written down any more',
  );
  await next.stop();

  const second = await killed();
  limits(node, `set ${uuid} 0 ${5 * LIMIT} ${second.group}`);
  process.kill(second.pid, 'SIGKILL');
  const last = await start();
  await eventually(
    () =>
      last.log.some((line) => /limit of GPU-\S+ for \S+: another program has set it/.test(line)) ? true : undefined,
    'it is reported',
  );
  await bothHold(last);
  t.is(hardBytes(second.group), 5 * LIMIT);
  limits(node, `set ${uuid} 0 max ${second.group}`);
  rmdirSync(second.group);
});
