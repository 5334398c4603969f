import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { follow, gpuOf } from '../../support/native/listed-processes.ts';
import { BUILD, environment, temporaryFolder } from '../../support/native/node.ts';
import { sleepers } from './started.ts';

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
    const fromUs = performance.now() * 1000;
    setClock(seconds);
    use(0, [pid, 100, ofBefore]);
    const after = await look();
    t.deepEqual(after, { reported: false, smUs: before.smUs, gaps: (before.gaps ?? 0) + 1 }, `${seconds} s: one gap`);
    if (seconds < 0) {
      // The driver's ring still has what it sampled under the time before, which now is to come.
      t.deepEqual(await look(), after, 'what is of the other time is no idleness');
    }
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
