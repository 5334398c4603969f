// How the sampler identifies the processes of a GPU, and what it reads and reports from round to round. The GPU is a
// fake NVML library whose lists the test writes; a round is taken when the test asks for one.
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import { open } from 'node:fs/promises';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import test, { type ExecutionContext } from 'ava';
import { testUnless } from '../../support/gate.ts';
import { follow, gpuOf, handles } from '../../support/native/listed-processes.ts';
import { BUILD, environment, eventually, temporaryFolder } from '../../support/native/node.ts';

const REREAD_ROUNDS = 10;
const WHOLE_ROUNDS = 120;

function start(t: ExecutionContext, file: string, ...args: string[]) {
  const child = spawn(file, args, { stdio: ['pipe', 'pipe', 'inherit'] });
  t.teardown(() => child.kill('SIGKILL'));
  if (child.pid === undefined) throw new Error(`${file} does not start`);
  return { pid: child.pid, child, lines: createInterface({ input: child.stdout })[Symbol.asyncIterator]() };
}
type Started = ReturnType<typeof start>;
const sleepers = (t: ExecutionContext, count: number) => Array.from({ length: count }, () => start(t, 'sleep', '1000'));
async function end({ child }: Started): Promise<void> {
  const ended = once(child, 'exit');
  child.kill('SIGKILL');
  await ended;
}

test('unchanged processes cost no output and almost no reads', async (t) => {
  const ROUNDS = 2 * REREAD_ROUNDS;
  const { library, list } = gpuOf(t);
  const { next, reads, descriptors } = follow(t, library);
  const pids = sleepers(t, 100).map(({ pid }) => pid);
  list(...pids);
  const { sample: first } = await next();
  t.is(first.processes.length, pids.length);
  t.is(handles(descriptors()), pids.length);
  const before = reads();
  for (let round = 0; round < ROUNDS; round += 1) {
    const { line, sample } = await next();
    t.deepEqual([line.processes, line.removedPids, line.processCount], [[], [], pids.length]);
    t.is(sample.processes, first.processes);
  }
  // Two for each time that a process's start time is read.
  const made = reads() - before;
  t.true(made < pids.length * ROUNDS, `${made} reads in ${ROUNDS} rounds of ${pids.length} processes`);
  t.is(handles(descriptors()), pids.length);
});

test('use is reported without identity, and an ended process once more', async (t) => {
  const { library, list } = gpuOf(t);
  const { next, descriptors } = follow(t, library);
  const [first, second] = sleepers(t, 2).toSorted((a, b) => a.pid - b.pid);
  if (!first || !second) throw new Error('two of them');
  list(first.pid, second.pid);
  const one = await next();
  t.deepEqual(
    one.sample.processes.map(({ pid, gpus }) => [pid, gpus[0]?.bytes]),
    [
      [first.pid, 1],
      [second.pid, 2],
    ],
  );

  list(second.pid, first.pid); // other bytes
  const two = await next();
  t.deepEqual(two.line.processes.map(Object.keys), [
    ['pid', 'gpus'],
    ['pid', 'gpus'],
  ]);
  t.deepEqual(
    two.sample.processes.map(({ gpus }) => gpus[0]?.bytes),
    [2, 1],
  );
  t.is(two.sample.processes[0]?.command, 'sleep');

  await end(second);
  list(first.pid);
  const three = await next();
  t.deepEqual(
    three.line.processes.map(({ pid, gpus }) => [pid, gpus[0]?.listed]),
    [
      [first.pid, true],
      [second.pid, false],
    ],
  );
  t.deepEqual([three.line.removedPids, three.line.processCount], [[], 2]);
  const four = await next();
  t.deepEqual([four.line.processes, four.line.removedPids, four.line.processCount], [[], [second.pid], 1]);
  t.deepEqual(
    four.sample.processes.map(({ pid }) => pid),
    [first.pid],
  );
  t.is(handles(descriptors()), 1);

  await end(first); // listed all the same
  const five = await next();
  const [gone] = five.sample.processes;
  t.deepEqual([gone?.pid, gone?.gone, gone?.command, gone?.gpus[0]?.listed], [first.pid, true, 'sleep', true]);
  t.is(handles(descriptors()), 0);
  t.is((await next()).sample.processes[0], gone);
});

test('a zombie is reported unchanged while the driver lists it', async (t) => {
  const { library, list } = gpuOf(t);
  const { next, descriptors } = follow(t, library);
  // What the shell becomes does not know of its child.
  const parent = start(t, '/bin/sh', '-c', 'sleep 1000 & echo $!; exec sleep 1001');
  const pid = Number((await parent.lines.next()).value);
  const stat = (of: number) => readFileSync(`/proc/${of}/stat`, 'utf8');
  await eventually(() => stat(pid).includes('(sleep)') || undefined, 'it has become its program');
  list(pid);
  const { sample } = await next();
  t.is(handles(descriptors()), 1);
  process.kill(pid, 'SIGKILL');
  await eventually(() => / Z /.test(stat(pid)) || undefined, 'it has ended');
  for (let round = 0; round <= REREAD_ROUNDS; round += 1) {
    const [now] = (await next()).sample.processes;
    t.deepEqual({ ...now, cgroup: '' }, { ...sample.processes[0], cgroup: '' });
  }
  t.is(handles(descriptors()), 0, 'a handle would say nothing new');
});

test('a process that runs another program is reported within ten rounds', async (t) => {
  const { library, list } = gpuOf(t);
  const { next } = follow(t, library);
  const { child, pid } = start(t, '/bin/sh', '-c', 'read line; exec sleep 1000');
  const command = () => readFileSync(`/proc/${pid}/comm`, 'utf8').trim();
  list(pid);
  const { sample } = await next();
  t.is(sample.processes[0]?.command, 'sh');
  child.stdin.write('\n');
  await eventually(() => command() === 'sleep' || undefined, 'it is another program');
  const reported: (string | undefined)[] = [];
  for (let round = 0; round < REREAD_ROUNDS; round += 1) reported.push((await next()).sample.processes[0]?.command);
  t.is(reported.at(-1), 'sleep', reported.join());
});

test('a process whose parent ended is reported with its new ancestors', async (t) => {
  const { library, list } = gpuOf(t);
  const { next } = follow(t, library);
  const parent = start(t, '/bin/sh', '-c', 'sleep 1000 & echo $!; wait');
  const pid = Number((await parent.lines.next()).value);
  t.teardown(() => process.kill(pid, 'SIGKILL'));
  list(pid);
  const ancestors = async () => (await next()).sample.processes[0]?.ancestors ?? [];
  t.is((await ancestors())[0], parent.pid);
  await end(parent);
  let rounds = 0;
  while ((await ancestors()).includes(parent.pid)) rounds += 1;
  t.true(rounds <= WHOLE_ROUNDS + REREAD_ROUNDS, `${rounds} rounds`);
});

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

testUnless(cannotChoose)('a process with a reused PID is charged once the listed amount changes', async (t) => {
  const { library, list } = gpuOf(t);
  const { next } = follow(t, library);
  const { pid, another } = await again(t);
  list(pid);
  const [first] = (await next()).sample.processes;
  t.is(first?.gpus[0]?.bytes, 1);
  await another();
  const began = performance.now();
  const bytes = async () => {
    const found = (await next()).sample.processes.find((one) => one.startTicks !== first?.startTicks);
    return found?.gpus[0]?.listed ? found.gpus[0].bytes : undefined;
  };
  // What the first one had is the first one's, however long.
  while (performance.now() - began < 2500) t.is(await bytes(), undefined);
  const [sleeper] = sleepers(t, 1);
  list(sleeper?.pid ?? 0, pid);
  t.is(await eventually(bytes, 'it is charged', 10_000), 2);
});

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

test('utilization rows with impossible times, PIDs or percentages are dropped', async (t) => {
  const [sleeper] = sleepers(t, 1);
  const pid = sleeper?.pid ?? 0;
  const { library, list, use } = gpuOf(t);
  const { next } = follow(t, library);
  list(pid);
  use(0);
  t.true((await next()).sample.gpus[0]?.hasProcessUtilization);
  const fromUs = Date.now() * 1000;
  const seen = async () =>
    (await next()).sample.processes.map(({ pid: one, gpus }) => [one, gpus[0]?.smPercent, gpus[0]?.smUs]);
  use(0, [pid, 50, fromUs]);
  const [[, , begunUs = 0] = []] = await seen();
  t.true(begunUs > 0, 'what passed before the first row is counted');
  const HOUR_US = 3600 * 1e6;
  const wrong: [what: string, ...Parameters<typeof use>[1]][] = [
    ['the same again', pid, 50, fromUs],
    ['the past', pid, 50, fromUs - 1],
    ['never', pid, 50, 0],
    ['the future', pid, 50, fromUs + HOUR_US],
    ['more than all of it', pid, 101, fromUs + 1000],
    ['no percentage', pid, 2 ** 32 - 1, fromUs + 1000],
    ['no process', 0, 50, fromUs + 1000],
    ['no pid', 2 ** 31, 50, fromUs + 1000],
  ];
  for (const [what, ...row] of wrong) {
    use(0, row);
    t.deepEqual(await seen(), [[pid, 0, begunUs]], what);
  }
  // Beside one that is right, they take nothing from it, nor from the time that it is of.
  const newUs = Date.now() * 1000;
  use(0, ...wrong.map(([, ...row]) => row), [pid, 100, newUs]);
  const [[, percent, nowUs = 0] = []] = await seen();
  t.is(percent, 100);
  // Answers without processes cover the time up to shortly before them.
  t.true(nowUs - begunUs > 0 && nowUs - begunUs <= newUs - fromUs, `${nowUs - begunUs} of ${newUs - fromUs} us`);
});

test('use during a failure of the utilization call is counted afterwards', async (t) => {
  const [sleeper] = sleepers(t, 1);
  const pid = sleeper?.pid ?? 0;
  const { library, list, use } = gpuOf(t);
  const { next } = follow(t, library);
  list(pid);
  const look = async () => {
    const { gpus, processes } = (await next()).sample;
    return [gpus[0]?.hasProcessUtilization, processes[0]?.gpus[0]?.smUs];
  };
  // What the first answer is a mean of began before anybody watched.
  const startUs = Date.now() * 1000;
  use(0, [pid, 80, startUs]);
  t.deepEqual(await look(), [undefined, 0]);
  use(0, [pid, 80, startUs + 1000]);
  t.deepEqual(await look(), [true, 800]);
  for (const code of [999, 3, 1]) {
    use(code);
    t.deepEqual(await look(), [undefined, 800], `code ${code}`);
  }
  use(0, [pid, 50, startUs + 11_000]);
  t.deepEqual(await look(), [true, 5800], 'half of the ten milliseconds since the last answer');
  use(3);
  t.deepEqual(await look(), [undefined, 5800]);
});

test('utilization figures that the driver does not know are left out', async (t) => {
  const [ALL_ONES, NOTHING] = [2 ** 32 - 1, 0];
  const [first = 0, second = 0] = sleepers(t, 2)
    .map(({ pid }) => pid)
    .toSorted((a, b) => a - b);
  const { library, list, use } = gpuOf(t);
  const { next } = follow(t, library);
  list(first, second);
  const look = async () => {
    const { gpus, processes } = (await next()).sample;
    const uses = processes.map(({ gpus: [one] }) => [one?.smUs, one?.memoryUs, one?.encoderUs, one?.decoderUs]);
    return {
      reported: gpus[0]?.hasProcessUtilization === true,
      uses,
      percents: processes.map(({ gpus: [one] }) => one?.smPercent),
    };
  };
  const startUs = Date.now() * 1000;
  use(0, [first, NOTHING, startUs]);
  await look();
  use(0, [first, 50, startUs + 1000, ALL_ONES, 20, 30], [second, 10, startUs + 1000, 20, ALL_ONES, ALL_ONES]);
  const after = [
    [500, 0, 200, 300],
    [100, 200, 0, 0],
  ];
  t.deepEqual(await look(), { reported: true, uses: after, percents: [50, 10] });
  // Without its SM utilization no process is reported: zero would mean idle.
  use(0, [first, ALL_ONES, startUs + 2000, 20, 20, 20]);
  t.deepEqual(await look(), { reported: false, uses: after, percents: [0, 0] });
  use(0, [first, 50, startUs + 3000]);
  const later = [[1500, 0, 200, 300], after[1]];
  t.deepEqual(await look(), { reported: true, uses: later, percents: [50, 0] }, 'the next answer is of that time, too');
  use(0, [first, ALL_ONES, startUs + 4000], [second, 10, startUs + 4000]);
  const last = [later[0], [200, 200, 0, 0]];
  t.deepEqual(await look(), { reported: false, uses: last, percents: [0, 10] });
});

test('use is counted once across a step of the wall clock', async (t) => {
  const [sleeper] = sleepers(t, 1);
  const pid = sleeper?.pid ?? 0;
  const { library, list, use } = gpuOf(t);
  const clock = join(temporaryFolder(t), 'clock');
  let aheadUs: number | undefined;
  const setClock = (seconds: number) => {
    const bytes = Buffer.alloc(8);
    bytes.writeBigInt64LE(BigInt(seconds));
    writeFileSync(clock, bytes, { flag: aheadUs === undefined ? 'w' : 'r+' }); // in place: who looks has it mapped
    aheadUs = seconds * 1e6;
  };
  setClock(0);
  const variables = environment({ COTENANT_TEST_CLOCK: clock }, join(BUILD, 'tests/clock_offset.so'));
  const within = ['env', ...Object.entries(variables).map(([name, value]) => `${name}=${value}`)];
  const { next } = follow(t, library, within);
  list(pid);
  const nowUs = () => Date.now() * 1000 + (aheadUs ?? 0);
  const look = async () => {
    const { gpus, processes } = (await next()).sample;
    const [gpu] = gpus;
    return {
      reported: gpu?.hasProcessUtilization === true,
      smUs: processes[0]?.gpus[0]?.smUs ?? -1,
      gaps: gpu?.utilizationGaps,
    };
  };
  use(0);
  await look();
  for (const seconds of [-3600, 7200]) {
    use(0, [pid, 100, nowUs()]);
    const before = await look();
    t.true(before.reported);
    const ofBefore = nowUs();
    setClock(seconds);
    use(0, [pid, 100, ofBefore]);
    const after = await look();
    t.deepEqual(after, { reported: false, smUs: before.smUs, gaps: (before.gaps ?? 0) + 1 }, `${seconds} s: one gap`);
    if (seconds < 0) {
      // The driver's ring still has what it sampled under the time before, which now is to come.
      t.deepEqual(await look(), after, 'what is of the other time is no idleness');
    }
    const fromUs = performance.now() * 1000;
    use(0, [pid, 100, nowUs()]);
    const later = await look();
    t.true(later.reported, `${seconds} s: it is reported again`);
    const counted = later.smUs - after.smUs;
    // From the step on, which counts as having been seen up to shortly before it.
    t.true(counted > 0 && counted < performance.now() * 1000 - fromUs + 2e6, `${seconds} s: ${counted} us`);
  }
});

test('impossible readings of a GPU are left out', async (t) => {
  const { library, reports } = gpuOf(t);
  const { next } = follow(t, library);
  const [ALL_ONES, TOTAL] = [2n ** 64n - 1n, 2n ** 34n];
  const look = async () => {
    const { totalBytes, usedBytes, freeBytes, utilizationPercent, memoryBusyPercent } =
      (await next()).sample.gpus[0] ?? {};
    return [totalBytes, usedBytes, freeBytes, utilizationPercent, memoryBusyPercent];
  };
  const total = Number(TOTAL);
  reports(TOTAL, 2n, 3n, 100, 0);
  t.deepEqual(await look(), [total, 2, 3, 100, 0]);
  reports(TOTAL, ALL_ONES, 3n, 101, 5);
  t.deepEqual(await look(), [total, undefined, 3, undefined, 5]);
  reports(TOTAL, TOTAL + 1n, ALL_ONES, 2 ** 32 - 1, 2 ** 32 - 1);
  t.deepEqual(await look(), [total, undefined, undefined, undefined, undefined]);
  reports(ALL_ONES, ALL_ONES, ALL_ONES, 0, 0);
  t.deepEqual(await look(), [undefined, undefined, undefined, 0, 0]);
});
