// Ways out of the interposer that a tenant has, each tried by one: what keeps it is either the interposer, which refuses the
// memory, or the agent, which sees it with the driver and stops the container within five seconds of the first byte over what
// it may hold.
import { chmodSync, mkdirSync, statSync } from 'node:fs';
import { join } from 'node:path';
import type { ExecutionContext } from 'ava';
import { DEFAULT_TOLERANCE } from '../../../src/quota/limits.ts';
import { type RunningAgent, runTenant, startAgent, tell } from '../../support/agent.ts';
import { OUT_OF_MEMORY } from '../../support/client.ts';
import { startWatch, stopping } from '../../support/delays.ts';
import { namespacesReason, testUnless } from '../../support/gate.ts';
import { MIB } from '../../support/grant.ts';
import { eventually, startNode, temporaryFolder } from '../../support/node.ts';
import { CLIENT, ESCAPES, type Escape, type Ground } from './escape-ways.ts';

const GRANT = 768 * MIB;
const BLOCK = 64 * MIB;
const WITHIN_MS = 5000;

async function attempt(
  t: ExecutionContext,
  ground: Ground & { readonly agent: RunningAgent },
  wayOut: Escape,
  name: string,
): Promise<void> {
  const { node, agent } = ground;
  const { what, end, script = 'exec "$0" "$1"', program = () => CLIENT, way = () => 'libcuda.so.1' } = wayOut;
  const folder = join(ground.folder, name);
  mkdirSync(folder);
  const command = ['/bin/sh', '-c', script, program({ ...ground, folder }), way(ground)];
  chmodSync(folder, 0o755);
  const tenant = runTenant(t, node, agent, ['--gpu-memory', `${GRANT / MIB}Mi`, '--name', name], command, {
    env: { FOLDER: join(folder, 'list') },
  });
  for (const line of ['init', 'context 0']) t.is((await tell(tenant, line))[0], 0, `${what}: ${line}`);
  const holds = () =>
    node.books().clients.findLast((client) => client.alive && client.command.includes('client'))?.cards[0]?.bytes ?? 0;
  const bound = end === 'far-over-limit' ? GRANT * DEFAULT_TOLERANCE.hardRatio + DEFAULT_TOLERANCE.bytes : GRANT;
  let over: ReturnType<typeof startWatch> | undefined;
  let result = 0;
  while (result === 0 && over === undefined) {
    [result = -1] = await tell(tenant, `alloc ${BLOCK}`);
    if (holds() > bound) over = startWatch(stopping(agent.child, node.child));
  }
  if (end === 'refused') {
    t.is(result, OUT_OF_MEMORY, `${what}: is refused`);
    t.true(holds() > GRANT - BLOCK && holds() <= GRANT, `${what}: has what it was granted`);
    t.deepEqual(
      agent.audit().filter(({ pod }) => pod === name),
      [],
      what,
    );
    tenant.child.kill('SIGTERM');
    await tenant.ended;
    return;
  }
  t.is(result, 0, `${what}: nothing refuses it`);
  const { code } = await tenant.ended;
  const { passedMs, lostMs } = over?.() ?? { passedMs: Number.NaN, lostMs: 0 };
  t.is(code, 137, `${what}: it is stopped: ${tenant.output.join('\n')}`);
  t.true(passedMs - lostMs <= WITHIN_MS, `${what}: after ${passedMs} ms, ${lostMs} of them the machine's`);
  const killed = await eventually(
    () => agent.audit().find(({ pod, action }) => pod === name && action === 'kill'),
    `${what}: the audit says so`,
  );
  t.is(killed.reason, end, what);
}

testUnless(namespacesReason())(
  'whoever gets past the interposer is refused or stopped, and nobody else is',
  async (t) => {
    t.timeout(180_000);
    const folder = temporaryFolder(t);
    chmodSync(folder, 0o755);
    const node = await startNode(t, '--card', 'l4');
    chmodSync(node.folder, 0o755); // for the client that is another user
    const ground = {
      node,
      agent: await startAgent(t, node, { settings: { 'enforcement.mostStopsPerMinute': 60 } }),
      folder,
    };
    const neighbour = runTenant(t, node, ground.agent, ['--gpu-memory', '1Gi', '--name', 'neighbour'], [CLIENT]);
    for (const line of ['init', 'context 0']) t.is((await tell(neighbour, line))[0], 0);
    const [, kept] = await tell(neighbour, `alloc ${128 * MIB}`);
    await tell(neighbour, `set ${kept} 1000000 42`);
    const socket = statSync(join(ground.agent.state, 'agent.sock'));
    t.deepEqual([socket.mode & 0o007, socket.uid, socket.gid], [0, 0, 0], 'only root can ask the agent for more');
    for (const [index, wayOut] of ESCAPES.entries()) await attempt(t, ground, wayOut, `case-${index}`);
    t.deepEqual(await tell(neighbour, `check ${kept} 1000000 42`), [0, 0], 'the neighbour has its bytes');
  },
);
