// Ways out of the interposer that a tenant has, each tried by one: what keeps it is either the interposer, which
// refuses the memory, or the agent, which sees it with the driver and stops the container within five seconds of the
// first byte over what it may hold.
import { execFileSync } from 'node:child_process';
import { chmodSync, copyFileSync, mkdirSync, readdirSync } from 'node:fs';
import { constants } from 'node:os';
import { dirname, join } from 'node:path';
import type { ExecutionContext } from 'ava';
import { SOCKET_NAME } from '../../../../src/agent/config.ts';
import { DEFAULT_TOLERANCE } from '../../../../src/policy/memory-verdict.ts';
import { namespacesReason, testUnless } from '../../../support/gate.ts';
import { describeWatch, isWithin, startWatch, stopping } from '../../../support/machine/scheduling-delays.ts';
import { OUT_OF_MEMORY } from '../../../support/native/client.ts';
import { BUILD, eventually, startNode, temporaryFolder } from '../../../support/native/node.ts';
import { type RunningAgent, runTenant, startAgent, tell } from '../../../support/product/agent.ts';
import { MIB } from '../../../support/product/grant.ts';
import { otherLibcs } from '../../../support/toolchains/libcs.ts';
import { CLIENT, ESCAPES, type Escape, ownDriver, type Place } from './escape-programs.ts';

const GRANT = 768 * MIB;
const BLOCK = 64 * MIB;
const WITHIN_MS = 5000;

async function attempt(
  t: ExecutionContext,
  place: Place & { readonly agent: RunningAgent },
  wayOut: Escape,
  name: string,
): Promise<void> {
  const { node, agent } = place;
  const { what, end, script = 'exec "$0" "$1"', program = () => CLIENT, way = () => 'libcuda.so.1' } = wayOut;
  const folder = join(place.folder, name);
  mkdirSync(folder);
  const own = { ...place, folder };
  const command = ['/bin/sh', '-c', script, program(own), way(own)];
  chmodSync(folder, 0o755);
  const tenant = runTenant(t, node, agent, ['--gpu-memory', `${GRANT / MIB}Mi`, '--name', name], command, {
    env: { FOLDER: join(folder, 'list') },
  });
  for (const line of ['init', 'context 0']) t.is((await tell(tenant, line))[0], 0, `${what}: ${line}`);
  const newest = () => node.usage().clients.findLast((client) => client.alive && client.command.includes('client'));
  const holds = () => newest()?.gpus[0]?.bytes ?? 0;
  const bound = end === 'far-over-limit' ? GRANT * DEFAULT_TOLERANCE.hardRatio + DEFAULT_TOLERANCE.bytes : GRANT;
  let over: { readonly pid: number; readonly taken: ReturnType<typeof startWatch> } | undefined;
  let result = 0;
  while (result === 0 && over === undefined) {
    const client = newest();
    // Before the allocation that exceeds it: the stop may come before this test can look.
    if (client && holds() + BLOCK > bound)
      over = { pid: client.pid, taken: startWatch(stopping(agent.child, node.child)) };
    [result = -1] = await tell(tenant, `alloc ${BLOCK}`);
  }
  if (end === 'refused') {
    t.is(result, OUT_OF_MEMORY, `${what}: is refused`);
    t.true(holds() > GRANT - BLOCK && holds() <= GRANT, `${what}: has what it was granted`);
    t.deepEqual(
      agent.audit().filter(({ pod }) => pod === name),
      [],
      what,
    );
    tenant.child.stdin?.end(); // it ends with its input
    await tenant.ended;
    return;
  }
  t.is(result, 0, `${what}: nothing refuses it`);
  // The driver lists no process of it any more; `cotenant run` ends later, once it knows why from the agent.
  const isListed = () => node.usage().clients.some(({ alive, pid }) => alive && pid === over?.pid);
  await eventually(() => !isListed() || undefined, `${what}: it is stopped`, 60_000);
  const taken = over?.taken();
  const goneMs = Date.now();
  const { code } = await tenant.ended;
  t.is(code, 137, `${what}: it is stopped: ${tenant.output.join('\n')}`);
  // Where the time went.
  const actions = agent.audit().filter(({ pod }) => pod === name);
  const steps = actions.map(
    (one) => `${one.action} ${one.reason} ${one.refusal ?? one.result} ${one.atMs - goneMs} ms`,
  );
  t.true(taken && isWithin(WITHIN_MS, taken), `${what}: ${taken && describeWatch(taken)}; ${steps.join(', ')}`);
  const killed = await eventually(
    () => agent.audit().find(({ pod, action }) => pod === name && action === 'kill'),
    `${what}: the audit says so`,
  );
  t.is(killed.reason, end, what);
}

/** A node with an agent, and a tenant beside those that try, who keeps its memory. */
async function surroundings(t: ExecutionContext) {
  const folder = temporaryFolder(t);
  chmodSync(folder, 0o755);
  const node = await startNode(t, '--gpu', 'l4');
  chmodSync(node.folder, 0o755); // for the client that is another user
  const agent = await startAgent(t, node, { settings: { 'enforcement.mostStopsPerMinute': 60 } });
  chmodSync(dirname(agent.state), 0o755); // likewise: as in a pod, everybody may read what holds it
  const neighbor = runTenant(t, node, agent, ['--gpu-memory', '1Gi', '--name', 'neighbor'], [CLIENT]);
  for (const line of ['init', 'context 0']) t.is((await tell(neighbor, line))[0], 0);
  const [, kept] = await tell(neighbor, `alloc ${128 * MIB}`);
  await tell(neighbor, `set ${kept} 1000000 42`);
  const isWhole = async () =>
    t.deepEqual(await tell(neighbor, `check ${kept} 1000000 42`), [0, 0], 'the neighbor has its bytes');
  return { place: { node, agent, folder }, isWhole };
}

testUnless(namespacesReason())('only a process that bypasses the interposer is refused or stopped', async (t) => {
  t.timeout(180_000);
  const { place, isWhole } = await surroundings(t);
  for (const [index, wayOut] of ESCAPES.entries()) await attempt(t, place, wayOut, `case-${index}`);
  await isWhole();
});

const libcs = otherLibcs();
testUnless(libcs.ok ? undefined : `no musl to be had: ${libcs.reason}`)(
  'a program of musl that has its driver inside is stopped',
  async (t) => {
    t.timeout(120_000);
    if (!libcs.ok) return;
    const { place, isWhole } = await surroundings(t);
    const built = join(place.folder, 'musl-client');
    const native = join(import.meta.dirname, '../../../../native');
    const parts = ['driver', 'client'].flatMap((part) =>
      readdirSync(join(native, 'simulator', part), { recursive: true, encoding: 'utf8' })
        .filter((name) => name.endsWith('.c'))
        .map((name) => join(native, 'simulator', part, name)),
    );
    const own = join(import.meta.dirname, '../../../native/images/own-driver.c');
    libcs.buildMuslStatic(
      [own, ...parts],
      built,
      ...['-std=c17', '-D_GNU_SOURCE', '-DSIM_LIBRARY_CUDA=13000', `-I${native}`],
    );
    const what = 'it is a program of musl';
    await attempt(t, place, { what, end: 'bypass', program: () => ownDriver(place, built) }, 'musl');
    await isWhole();
  },
);

/** Sockets anywhere below a folder. */
const socketsIn = (folder: string): string[] =>
  readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isSocket())
    .map((entry) => join(entry.parentPath, entry.name));

testUnless(namespacesReason())('a tenant reaches no socket of the agent and gets no answer', async (t) => {
  t.timeout(180_000);
  const node = await startNode(t, '--gpu', 'l4');
  const agent = await startAgent(t, node, { settings: { calibrate: false } });
  for (const path of [node.folder, agent.state, dirname(agent.state)]) chmodSync(path, 0o755);
  const knock = join(temporaryFolder(t), 'knock');
  copyFileSync(join(BUILD, 'tests/request_grant'), knock);
  chmodSync(dirname(knock), 0o755);
  const from = (argv: readonly string[], path: string) => {
    const [file = '', ...args] = [...argv, knock, path];
    return execFileSync(file, args, { encoding: 'utf8' }).trim();
  };
  const unprivileged = ['setpriv', '--reuid', '65534', '--regid', '65534', '--clear-groups'];
  // As a container's: the agent's folder is not in it.
  const inside = ['unshare', '--mount', 'sh', '-c', `mount -t tmpfs none '${agent.state}' && exec "$@"`, 'sh'];
  const sockets = socketsIn(agent.state);
  t.true(sockets.includes(join(agent.state, SOCKET_NAME)), sockets.join());
  for (const path of sockets) {
    t.is(from(unprivileged, path), String(constants.errno.EACCES), `another user, ${path}`);
    t.is(from(inside, path), String(constants.errno.ENOENT), `root of a container, ${path}`);
    t.is(
      from([...inside, ...unprivileged], path),
      String(constants.errno.ENOENT),
      `another user of a container, ${path}`,
    );
  }
  const own = from([], join(agent.state, SOCKET_NAME));
  t.regex(own, /^0 HTTP\/1\.1 4\d\d /, 'who may open it is answered, and is given nothing for nothing asked');
  t.deepEqual((await agent.snapshot())?.containers, []);
});
