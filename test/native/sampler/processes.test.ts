import { readFileSync } from 'node:fs';
import test from 'ava';
import { follow, gpuOf, handles } from '../../support/native/listed-processes.ts';
import { eventually } from '../../support/native/node.ts';
import { end, REREAD_ROUNDS, sleepers, start } from './started.ts';

const WHOLE_ROUNDS = 120;

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

test('a process that ends between two utilization answers keeps its use', async (t) => {
  const { library, list, use } = gpuOf(t);
  const { next } = follow(t, library, [], ['--utilization-ms', '1000']);
  const [sleeper] = sleepers(t, 1);
  if (!sleeper) throw new Error('one of them');
  list(sleeper.pid);
  use(0);
  const [first] = (await next()).sample.processes;
  await end(sleeper);
  list();
  use(0, [sleeper.pid, 50, Date.now() * 1000]);
  const [between] = (await next()).sample.processes;
  t.deepEqual([between?.pid, between?.gpus[0]?.listed, between?.gpus[0]?.smUs], [sleeper.pid, false, 0]);
  const counted = await eventually(async () => {
    const [process] = (await next()).sample.processes;
    return process?.gpus[0]?.smUs === 0 ? undefined : { process };
  }, 'its use is counted');
  t.true((counted.process?.gpus[0]?.smUs ?? 0) > 0);
  t.deepEqual([counted.process?.startTicks, counted.process?.command], [first?.startTicks, 'sleep']);
  t.deepEqual(await eventually(async () => (await next()).line.removedPids.at(0), 'it is forgotten'), sleeper.pid);
});
