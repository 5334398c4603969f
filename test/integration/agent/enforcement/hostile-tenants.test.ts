// Memory and compute of one GPU attacked together, by tenants beside others that keep to what they have: for a short
// while in each run, for half an hour in test:long. Whatever the attackers do, no container has more than its share,
// the others go on, and their memory is as they left it. Prints the worst window of a second.
import { randomInt } from 'node:crypto';
import { closeSync, openSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import test from 'ava';
import {
  describeWatch,
  isWithin,
  startWatch,
  stopping,
  type Watched,
} from '../../../support/machine/scheduling-delays.ts';
import { BUILD, eventually, startNode } from '../../../support/native/node.ts';
import { windowOf } from '../../../support/native/shares.ts';
import { type RunningTenant, runTenant, startAgent, tell } from '../../../support/product/agent.ts';
import { MIB } from '../../../support/product/grant.ts';

const SECONDS = Number(process.env.COTENANT_ATTACK_SECONDS ?? 20);
const CLIENT = join(BUILD, 'tests/client');
const PAST = ['env', '-u', 'LD_PRELOAD'];
/** Of those that are watched. */
const SHARE = 25;
/** Points above a share in a window that the two ends of the window explain: books are read one after the other. */
const ABOVE = 5;
/** Until it is stopped, the driver's slices give a container that goes past the gate half of the time of the one that
 * has the turn; half of the rest is the machine's. */
const LEAST = SHARE / 4;
/** A window says nothing of a container that the machine kept from running for so much of it. */
const HELD_PERCENT = 50;
/** The settings of the test make the agent this quick. */
const MEMORY_MS = 5000;
const COMPUTE_MS = 40_000;
const SHARE_SECONDS = 10;

test('attacks on memory and compute at once give no tenant more than its share', async (t) => {
  t.timeout(SECONDS * 1000 + 240_000);
  const node = await startNode(t, '--gpu', 'l4');
  const agent = await startAgent(t, node, {
    settings: {
      calibrate: false,
      computePolicy: 'fixed',
      'enforcement.shareSeconds': SHARE_SECONDS,
      'enforcement.softSeconds': 4,
      'enforcement.mostStopsPerMinute': 1000,
    },
  });
  let over = false;
  const start = (name: string, cores: number, command: readonly string[]): RunningTenant =>
    runTenant(t, node, agent, ['--gpu-memory', '1Gi', '--gpu-cores', String(cores), '--name', name], command);
  const load = (us: number) => ['libcuda.so.1', 'init', 'context 0', `load async ${(SECONDS + 600) * 1000} ${us}`];

  const keeper = start('keeper', 5, [CLIENT]);
  for (const command of ['init', 'context 0']) t.is((await tell(keeper, command))[0], 0);
  const [, kept] = await tell(keeper, `alloc ${512 * MIB}`);
  await tell(keeper, `set ${kept} 1000000 42`);
  for (const [name, us] of [
    ['short', 1000],
    ['long', 20_000],
  ] as const)
    start(name, SHARE, [CLIENT, ...load(us)]);
  const pidOf = (name: string) =>
    eventually(
      async () => (await agent.snapshot())?.containers.find(({ pod }) => pod === name)?.processes[0]?.pid,
      `${name} is at work`,
    );
  const pids = [await pidOf('short'), await pidOf('long')];

  const stopped: Record<'memory' | 'compute', Watched[]> = { memory: [], compute: [] };
  /** One after the other until it is over; each is to be stopped. */
  const again = async (kind: 'memory' | 'compute', attack: (name: string) => Promise<RunningTenant>) => {
    for (let turn = 0; !over; turn++) {
      const name = `${kind}-${turn}`;
      const tenant = await attack(name);
      const watch = startWatch(stopping(agent.child, node.child));
      const { code } = await tenant.ended;
      stopped[kind].push(watch());
      t.is(code, 137, `${name}: ${tenant.output.join('\n')}`);
    }
  };
  const takesMemory = async (name: string) => {
    const tenant = start(name, 5, [...PAST, CLIENT]);
    for (const command of ['init', 'context 0', `alloc ${1500 * MIB}`]) await tell(tenant, command);
    return tenant;
  };
  const dodges = async (name: string) => {
    const tenant = start(name, 5, [...PAST, CLIENT, ...load(3000)]);
    await pidOf(name);
    return tenant;
  };
  /** Goes by its gate, and writes what it likes over the file by which it gets its orders. */
  const scribbles = async () => {
    start('scribbler', 10, [CLIENT, ...load(2000)]);
    await pidOf('scribbler');
    const id = (await agent.snapshot())?.containers.find(({ pod }) => pod === 'scribbler')?.grantId ?? '';
    while (!over) {
      const fd = openSync(join(agent.state, 'grants', id, 'ledger'), 'r+');
      const bytes = Buffer.from(Array.from({ length: 64 }, () => randomInt(256)));
      writeSync(fd, bytes, 0, bytes.length, randomInt(0, 8192) * 8);
      closeSync(fd);
      await delay(20);
    }
  };
  /** Takes memory, launches, and dies of it, over and over, in one grant. */
  const crashes = async () => {
    const script = `while read -r line; do printf '%b' "$line" | ${CLIENT} >/dev/null 2>&1; echo 0; done`;
    const tenant = start('crasher', 10, ['/bin/sh', '-c', script]);
    while (!over)
      await tell(
        tenant,
        String.raw`init\ncontext 0\nalloc ${600 * MIB}\nlaunch 20 20000\nalloc ${600 * MIB}\nkill-self\n`,
      );
  };
  const attacks = Promise.all([again('memory', takesMemory), again('compute', dodges), scribbles(), crashes()]);

  const until = performance.now() + SECONDS * 1000;
  const windows: { shares: readonly number[]; held: readonly number[] }[] = [];
  while (performance.now() < until) {
    windows.push(await windowOf(node, pids));
    t.deepEqual(await tell(keeper, `check ${kept} 1000000 42`), [0, 0], 'memory is as it was left');
    const [result, block] = await tell(keeper, `alloc ${64 * MIB}`);
    t.is(result, 0, 'what it was granted it gets');
    t.is((await tell(keeper, `free ${block}`))[0], 0);
  }
  over = true;
  await attacks;

  const text = ({ shares, held }: (typeof windows)[number]) =>
    shares
      .map((share, index) => `${share.toFixed(1)} % (held up for ${(held[index] ?? 0).toFixed(0)} %)`)
      .join(' and ');
  const by = (of: (window: (typeof windows)[number]) => number) => windows.toSorted((a, b) => of(a) - of(b))[0];
  const quiet = windows.filter(({ held }) => held.every((percent) => percent <= HELD_PERCENT));
  const most = by(({ shares }) => -Math.max(...shares));
  const least = quiet.toSorted((a, b) => Math.min(...a.shares) - Math.min(...b.shares))[0];
  t.log(`${windows.length} windows of a second, two at ${SHARE} %; the worst above: ${most && text(most)}`);
  t.log(`${quiet.length} in which the machine let them run; the worst below: ${least && text(least)}`);
  const mean = pids.map(
    (_, index) => windows.reduce((sum, { shares }) => sum + (shares[index] ?? 0), 0) / windows.length,
  );
  t.log(`mean ${mean.map((share) => share.toFixed(1)).join(' and ')} %`);
  for (const [kind, times] of Object.entries(stopped)) {
    const latest = times.toSorted((a, b) => b.ownMs - a.ownMs)[0];
    t.log(`${times.length} stopped for ${kind}, the latest ${latest && describeWatch(latest)}`);
  }
  for (const [kind, most] of [
    ['memory', MEMORY_MS],
    ['compute', COMPUTE_MS],
  ] as const) {
    const times = stopped[kind];
    t.true(times.length > 0, `no container was stopped for ${kind}`);
    const late = times.filter((one) => !isWithin(most, one));
    t.is(late.length, 0, `stopped for ${kind} ${late.map(describeWatch).join('; ')}`);
  }
  const above = windows.filter(({ shares }) => shares.some((share) => share > SHARE + ABOVE));
  t.is(above.length, 0, `above: ${above.map(text).join('; ')}`);
  const below = quiet.filter(({ shares }) => shares.some((share) => share < LEAST));
  t.is(below.length, 0, `below: ${below.map(text).join('; ')}`);
  const touched = new Set(agent.audit().map(({ pod }) => pod));
  for (const name of ['keeper', 'short', 'long', 'crasher']) t.false(touched.has(name), `${name} kept to what it had`);
  t.deepEqual(await tell(keeper, `check ${kept} 1000000 42`), [0, 0]);
  t.deepEqual([await pidOf('short'), await pidOf('long')], pids);
});
