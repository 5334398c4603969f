// What a canary of the driver's limits left, and what is done about it: the program that asks the driver is stood in
// for. That a real agent that is killed leaves nothing is the integration tests' part.
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { type CanaryLimit, openCanaryCleanup } from '../../../../src/agent/isolation/canary/cleanup.ts';
import { temporaryFolder } from '../../../support/native/node.ts';
import { loggerTo } from '../../../support/product/logger.ts';

const GONE = 13;

function setUp(t: ExecutionContext) {
  const stateFolder = temporaryFolder(t);
  const groups = temporaryFolder(t);
  const path = join(stateFolder, 'canary-limits.json');
  const warnings: string[] = [];
  /** Of the driver, by GPU and group. */
  const set = new Map<string, number>();
  const driver = { works: true, code: 0, asked: 0, ms: 0 };
  const answer = (line: string): object => {
    const [verb, gpu, , most] = line.split(' ');
    const key = `${gpu} ${line.split(' ').at(-1)}`;
    if (driver.code !== 0) return { result: driver.code };
    if (verb === 'set' && most === 'max') set.delete(key);
    return { result: 0, ...(verb === 'get' && { softBytes: 0, hardBytes: set.get(key) ?? null }) };
  };
  const run = async ({ input = '' }: { input?: string }) => {
    driver.asked += 1;
    if (!driver.works) return { stdout: '', stderr: 'NVML does not start (999)', problem: 'it ended with 1' };
    const lines = input.trim().split('\n');
    return { stdout: lines.map((line) => JSON.stringify(answer(line))).join('\n'), stderr: '' };
  };
  const limit = (gpu: string, pid: number, hardBytes: number): CanaryLimit => {
    const folder = join(groups, `cotenant-canary-${pid}`);
    mkdirSync(folder, { recursive: true });
    set.set(`${gpu} ${folder}`, hardBytes);
    return { gpuUuid: gpu, folder, hardBytes };
  };
  const open = () =>
    openCanaryCleanup({
      tools: { run } as never,
      stateFolder,
      nvmlLibrary: 'libnvidia-ml.so.1',
      log: loggerTo(warnings),
      clock: () => driver.ms,
    });
  return {
    path,
    groups,
    warnings,
    set,
    driver,
    limit,
    open,
    kept: () => JSON.parse(readFileSync(path, 'utf8')).limits,
  };
}

test('canary limits of an ended agent are removed by the next one, then their cgroup', async (t) => {
  const { limit, open, set, kept, warnings } = setUp(t);
  const [one, two] = [limit('GPU-0', 7, 100), limit('GPU-1', 7, 100)];
  const first = open();
  first.begin(one);
  first.begin(two);
  t.deepEqual(kept(), [one, two]);
  await open().takeBack();
  t.is(set.size, 0);
  t.false(existsSync(one.folder));
  t.deepEqual(kept(), []);
  t.is(warnings.filter((text) => text.startsWith('removed the limit on')).length, 2);
});

test('limits that have ended or whose cgroup is gone are forgotten without the driver', async (t) => {
  const { limit, open, kept, driver, groups } = setUp(t);
  const first = open();
  const ended = limit('GPU-0', 7, 100);
  first.begin(ended);
  first.end(ended);
  t.deepEqual(kept(), []);
  await open().takeBack();
  first.begin({ gpuUuid: 'GPU-0', folder: join(groups, 'cotenant-canary-8'), hardBytes: 5 });
  await open().takeBack();
  t.deepEqual(kept(), []);
  t.is(driver.asked, 0);
});

test('a limit other than the recorded one stays with its cgroup and is reported', async (t) => {
  const { limit, open, set, kept, warnings } = setUp(t);
  const one = limit('GPU-0', 7, 100);
  open().begin(one);
  set.set(`GPU-0 ${one.folder}`, 3_000_000_000);
  await open().takeBack();
  t.is(set.get(`GPU-0 ${one.folder}`), 3_000_000_000);
  t.true(existsSync(one.folder));
  t.deepEqual(kept(), []);
  t.regex(
    warnings.join('\n'),
    /whose limit on GPU-0 another program changed \(hard 3000000000, soft 0 bytes\): it stays/,
  );
});

test('a limit that cannot be removed is tried again later and reported once', async (t) => {
  const { limit, open, set, kept, warnings, driver } = setUp(t);
  const one = limit('GPU-0', 7, 100);
  open().begin(one);
  driver.works = false;
  const next = open();
  for (const ms of [0, 100, 10_000, 20_000]) {
    driver.ms = ms;
    await next.takeBack();
  }
  t.is(driver.asked, 3);
  t.deepEqual(warnings, ['cannot remove limits that the canary left; removing is retried: NVML does not start (999)']);
  driver.works = true;
  writeFileSync(join(one.folder, 'process'), ''); // a group with a process in it cannot be removed either
  driver.ms = 30_000;
  await next.takeBack();
  t.is(set.size, 0);
  t.deepEqual(kept(), [one]);
});

test('a driver without limits has none to remove', async (t) => {
  const { limit, open, kept, driver } = setUp(t);
  const one = limit('GPU-0', 7, 100);
  open().begin(one);
  driver.code = GONE;
  await open().takeBack();
  t.false(existsSync(one.folder));
  t.deepEqual(kept(), []);
});

for (const folder of [
  '/sys/fs/cgroup/kubepods.slice',
  '/x/cotenant-canary-',
  '/x/cotenant-canary-7/below',
  '/x\n/cotenant-canary-7',
]) {
  test(`a file with a foreign cgroup is ignored: ${JSON.stringify(folder)}`, async (t) => {
    const { open, path, warnings, driver } = setUp(t);
    writeFileSync(path, JSON.stringify({ version: 1, limits: [{ gpuUuid: 'GPU-0', folder, hardBytes: 5 }] }));
    await open().takeBack();
    t.is(driver.asked, 0);
    t.regex(
      warnings.join('\n'),
      /so limits that the canary may have left stay with their cgroups: limits\[0\]\.folder: ".*" is not a cgroup of the canary/,
    );
  });
}
