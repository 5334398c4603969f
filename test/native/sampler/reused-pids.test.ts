// A PID that the kernel gives to another process: whose memory and use the sampler reports, and that it does so without
// file descriptors too.
import { spawnSync } from 'node:child_process';
import { rmSync } from 'node:fs';
import { open } from 'node:fs/promises';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { testUnless } from '../../support/gate.ts';
import { follow, gpuOf, handles } from '../../support/native/listed-processes.ts';
import { BUILD, eventually } from '../../support/native/node.ts';
import { end, REREAD_ROUNDS, sleepers, start } from './started.ts';

const chosen = spawnSync(join(BUILD, 'tests/reuse_pid'), { input: '\n' });
const cannotChoose = chosen.status === 4 ? 'needs the right to choose pids' : undefined;

/** A process whose PID is reused, and functions to end it and to start the next one. */
async function again(t: ExecutionContext) {
  const { child, lines } = start(t, join(BUILD, 'tests/reuse_pid'));
  const pid = Number((await lines.next()).value);
  return {
    pid,
    async ended() {
      child.stdin.write('end\n');
      t.is((await lines.next()).value, 'ended');
    },
    async another() {
      child.stdin.write('\n');
      t.is(Number((await lines.next()).value), pid);
    },
  };
}

testUnless(cannotChoose)('a reused PID is another process although the first one had a pidfd', async (t) => {
  const { library, list, use } = gpuOf(t);
  const { next, descriptors } = follow(t, library);
  const { pid, another } = await again(t);
  list(pid);
  use(0);
  let last = (await next()).sample.processes[0];
  for (let turn = 0; turn < 3; turn += 1) {
    // In no list any more, and known all the same.
    list();
    use(0, [pid, 10, Date.now() * 1000]);
    t.is((await next()).sample.processes[0]?.gpus[0]?.listed, false);
    t.is(handles(descriptors()), 1);
    await another();
    list(pid);
    use(0);
    const { line, sample } = await next();
    const [now] = sample.processes;
    t.deepEqual([line.removedPids, line.processCount, now?.pid, now?.gone], [[], 1, pid, undefined]);
    t.true((now?.startTicks ?? 0) > (last?.startTicks ?? 0));
    t.is(line.processes[0]?.startTicks, now?.startTicks, 'and its identity is reported');
    t.is((await next()).sample.processes[0], now);
    last = now;
  }
});

for (const [how, isSeenGone, isKnown] of [
  ['it was reported as gone', true, true],
  ['it was there in the sample before', false, true],
  ['the first process was never seen', true, false],
] as const)
  testUnless(cannotChoose)(`a reused PID does not inherit memory: ${how}`, async (t) => {
    const { library, list, use } = gpuOf(t);
    const { next } = follow(t, library);
    const { pid, ended, another } = await again(t);
    const [sleeper] = sleepers(t, 1);
    const other = sleeper?.pid ?? 0;
    use(0);
    list(other);
    await next();
    if (isKnown) {
      list(other, pid);
      t.is((await next()).sample.processes.length, 2);
    }
    if (isSeenGone) {
      await ended();
      list(other, pid);
      const { sample } = await next();
      t.is(sample.processes.find((one) => one.pid === pid)?.gone, true);
      t.is(sample.gpus[0]?.invalidPidEntries, undefined);
    }
    await another();
    const look = async () => {
      const { gpus, processes } = (await next()).sample;
      const of = processes.find((one) => one.pid === pid)?.gpus[0];
      return { listed: of?.listed, bytes: of?.bytes, smUs: of?.smUs, invalidPids: gpus[0]?.invalidPidEntries };
    };
    // The process that had it is reported once more, like any that has left the lists.
    t.deepEqual(await look(), { listed: false, bytes: undefined, smUs: 0, invalidPids: 1 });
    const invalidPids = { listed: undefined, bytes: undefined, smUs: undefined };
    t.deepEqual(await look(), { ...invalidPids, invalidPids: 2 });
    use(0, [pid, 50, Date.now() * 1000]);
    t.deepEqual(await look(), { ...invalidPids, invalidPids: 3 }, 'its use is not attributed either');
    use(999);
    list(other);
    t.deepEqual(await look(), { ...invalidPids, invalidPids: 3 });
    list(other, pid);
    t.deepEqual(await look(), { listed: true, bytes: 2, smUs: 0, invalidPids: 3 }, 'now its memory is its own');
  });

for (const isSeenGone of [false, true])
  testUnless(cannotChoose)(
    `a reused PID is charged once its listed amount changes, seen gone or not: ${isSeenGone}`,
    async (t) => {
      const { library, list } = gpuOf(t);
      const { next } = follow(t, library);
      const { pid, ended, another } = await again(t);
      list(pid);
      const [first] = (await next()).sample.processes;
      t.is(first?.gpus[0]?.bytes, 1);
      if (isSeenGone) {
        await ended();
        t.is((await next()).sample.processes[0]?.gone, true);
      }
      await another();
      const began = performance.now();
      const bytes = async () => {
        const { processes } = (await next()).sample;
        const found = processes.find((one) => one.pid === pid && one.startTicks !== first?.startTicks);
        return found?.gpus[0]?.listed ? found.gpus[0].bytes : undefined;
      };
      // What the first one had is the first one's, however long.
      while (performance.now() - began < 2500) t.is(await bytes(), undefined);
      const [sleeper] = sleepers(t, 1);
      list(sleeper?.pid ?? 0, pid);
      t.is(await eventually(bytes, 'it is charged'), 2);
    },
  );

testUnless(cannotChoose)('use before a process started is not its use', async (t) => {
  const { library, list, use } = gpuOf(t);
  const { next } = follow(t, library);
  const { pid, another } = await again(t);
  use(0);
  list(pid);
  await next();
  list();
  await next();
  const beforeUs = Date.now() * 1000;
  await another();
  list(pid);
  use(0, [pid, 50, beforeUs]);
  const smUs = async () => (await next()).sample.processes[0]?.gpus[0]?.smUs;
  t.is(await smUs(), 0);
  use(0, [pid, 50, Date.now() * 1000]);
  t.true(Number(await smUs()) > 0);
});

testUnless(cannotChoose)("a PID reused during the driver's answer is not charged", async (t) => {
  const { library, list } = gpuOf(t);
  const { next } = follow(t, library);
  const { pid, another } = await again(t);
  list();
  t.deepEqual((await next()).sample.processes, []);
  list(pid);
  t.is(spawnSync('mkfifo', [`${library}.late`]).status, 0);
  const round = next();
  const asked = await open(`${library}.late`, 'w');
  await another();
  rmSync(`${library}.late`);
  await asked.close();
  const [now] = (await round).sample.processes;
  t.is(now?.pid, pid);
  t.deepEqual(now?.gpus, []);
  const [later] = (await next()).sample.processes;
  t.deepEqual([later?.startTicks, later?.gpus[0]?.bytes], [now?.startTicks, 1], 'in the next round it is its own');
});

test('samples are the same where no descriptors are left for pidfds', async (t) => {
  const LIMIT = 24;
  const { library, list } = gpuOf(t);
  const rich = follow(t, library);
  const poor = follow(t, library, ['/bin/sh', '-c', `ulimit -n ${LIMIT}; exec "$@"`, 'sh']);
  const children = sleepers(t, 40);
  const same = async () => {
    const [one, other] = await Promise.all([rich.next(), poor.next()]);
    t.deepEqual(other.sample.processes, one.sample.processes);
    return one.sample.processes;
  };
  list(...children.map(({ pid }) => pid));
  t.is((await same()).length, children.length);
  t.is(handles(rich.descriptors()), children.length);
  const few = handles(poor.descriptors());
  t.true(few > 0 && few < LIMIT, `${few} handles`);
  await Promise.all(children.slice(0, 20).map(end));
  t.is((await same()).filter(({ gone }) => gone).length, 20);
  list(...children.slice(20).map(({ pid }) => pid));
  await same();
  t.is((await same()).length, 20);
  // Those that are read again find the entries that others left.
  for (let round = 0; round < REREAD_ROUNDS; round += 1) await same();
  t.true(poor.descriptors().length <= LIMIT);
  t.is(handles(rich.descriptors()), 20);
});
