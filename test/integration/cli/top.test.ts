// `cotenant top` on a node with tenants of all kinds, as people watch it: in 80 columns, until they end it, and by its
// keys.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdirSync, rmdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { testUnless } from '../../support/gate.ts';
import { groupHome } from '../../support/machine/cgroups.ts';
import { startClient } from '../../support/native/client.ts';
import { BUILD, eventually, type SimulatedNode, startNode } from '../../support/native/node.ts';
import { type RunningAgent, runTenant, startAgent, tell } from '../../support/product/agent.ts';
import { MIB } from '../../support/product/grant.ts';

const MAIN = join(import.meta.dirname, '../../../src/cli/main.ts');
const CLIENT = join(BUILD, 'tests/client');
const SCRIPT = '/usr/bin/script';
const groups = groupHome();

/** Two grants, the larger one's program busy. */
async function busyNode(t: ExecutionContext): Promise<{ node: SimulatedNode; agent: RunningAgent }> {
  const node = await startNode(t, '--gpu', 'l4', '--gpu', 'a10');
  const agent = await startAgent(t, node, { settings: { intervalMs: 100, 'enforcement.mode': 'report' } });
  for (const [name, mib] of [
    ['small', 100],
    ['large', 800],
  ] as const) {
    const tenant = runTenant(t, node, agent, ['--gpu-memory', '2Gi', '--gpu-cores', '30', '--name', name], [CLIENT]);
    for (const line of ['init', 'context 0', `alloc ${mib * MIB}`]) t.is((await tell(tenant, line))[0], 0);
  }
  await eventually(async () => {
    const found = (await agent.snapshot())?.containers ?? [];
    return (found.length === 2 && found.every(({ usedBytes }) => usedBytes > 100 * MIB)) || undefined;
  }, 'both in a sample');
  return { node, agent };
}

function watch(t: ExecutionContext, file: string, args: readonly string[]) {
  const child = spawn(file, args, { stdio: ['pipe', 'pipe', 'inherit'] });
  const exit = once(child, 'exit');
  let said = '';
  child.stdout.on('data', (part: Buffer) => {
    said += part.toString();
  });
  t.teardown(async () => {
    child.kill('SIGKILL');
    await exit;
  });
  return { child, exit, said: () => said };
}

test('top shows GPUs and users in 80 columns every second until Ctrl-C, largest first', async (t) => {
  const { agent } = await busyNode(t);
  const top = watch(t, process.execPath, [MAIN, 'top', '--state', agent.state, '--processes']);
  await eventually(() => (top.said().match(/^ +\d+ +large /gm)?.length ?? 0) >= 2 || undefined, 'two rounds of it');
  top.child.kill('SIGINT');
  t.deepEqual(await top.exit, [0, null]);
  const lines = top.said().split('\n');
  t.true(lines.every((line) => line.length <= 80));
  t.regex(top.said(), /^driver [\d.]+, mode report, sorted by gpu$/m);
  t.regex(top.said(), /^ {2}0 {2}NVIDIA L4 +\d+\/22600 +\d+% +\d+C +\d+\/72W +2$/m);
  t.regex(top.said(), /^ {2}1 {2}NVIDIA A10 +\d+\/22600 +\d+% +\d+C +\d+\/150W +0$/m);
  t.regex(top.said(), /^ {2}0 {2}large +\d+\/2048 +\d+\/30 {2}interposer {2}within\n {7}\d+ client +\d+ +\d+$/m);
  const order = lines.flatMap((line) => /^ {2}0 {2}(large|small)/.exec(line)?.[1] ?? []);
  t.deepEqual(order.slice(0, 2), ['large', 'small']);
});

testUnless('reason' in groups ? groups.reason : undefined)(
  'use without a grant is in the same table and marked',
  async (t) => {
    const { node, agent } = await busyNode(t);
    const group = join('home' in groups ? groups.home : '', `docker-${'ab'.repeat(32)}.scope`);
    mkdirSync(group, { recursive: true });
    t.teardown(() =>
      eventually(() => {
        try {
          rmdirSync(group);
        } catch {
          // Its process is not gone yet.
        }
        return !existsSync(group) || undefined;
      }, 'the group is empty'),
    );
    const stranger = startClient(t, node);
    writeFileSync(join(group, 'cgroup.procs'), String(stranger.pid));
    for (const line of ['init', 'context 1', `alloc ${300 * MIB}`]) await stranger.must(line);
    const top = watch(t, process.execPath, [MAIN, 'top', '--state', agent.state, '--sort', 'name']);
    await eventually(
      () => /^ {2}1 {2}abababababab +\d+\/- +\d+\/- {2}none +NO GRANT$/m.test(top.said()) || undefined,
      'it is reported',
    );
    const order = top
      .said()
      .split('\n')
      .flatMap((line) => /^ +\d {2}(large|small|ababab)/.exec(line)?.[1] ?? []);
    t.deepEqual(order.slice(-3), ['ababab', 'large', 'small']);
  },
);

testUnless(existsSync(SCRIPT) ? undefined : `there is no ${SCRIPT} for a terminal`)(
  'on a terminal keys show processes, sort and quit, and the terminal is restored',
  async (t) => {
    const { agent } = await busyNode(t);
    const command = `stty cols 80 rows 40; ${process.execPath} ${MAIN} top --state ${agent.state}; echo "ended $?"; stty -a`;
    const top = watch(t, SCRIPT, ['-qec', command, '/dev/null']);
    const last = () => top.said().split('\u001b[H\u001b[2J').at(-1) ?? '';
    await eventually(() => /large .* within/.test(last()) || undefined, 'a first round');
    t.notRegex(last(), /\d+ client/);
    top.child.stdin.write('p');
    await eventually(() => /\d+ client/.test(last()) || undefined, 'processes');
    top.child.stdin.write('n');
    await eventually(() => /sorted by name/.test(last()) || undefined, 'another order');
    top.child.stdin.write('q');
    await eventually(() => /ended 0/.test(last()) || undefined, 'its end');
    t.deepEqual(await top.exit, [0, null]);
    t.regex(last(), / icanon /, 'the terminal reads lines again');
  },
);
