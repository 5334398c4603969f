// What becomes of a limit that a canary left: the program that asks the driver is stood in for. That a real agent that
// is killed leaves nothing is the integration tests' part.
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import {
  CANARY,
  keyOf,
  type LimitRecords,
  NOT_SET,
  openLimitRecords,
} from '../../../../src/agent/isolation/driver-limits/records.ts';
import { openDriverLimits } from '../../../../src/agent/isolation/driver-limits/sync.ts';
import { temporaryFolder } from '../../../support/native/node.ts';
import { loggerTo } from '../../../support/product/logger.ts';

const MIB = 2 ** 20;

function setUp(t: ExecutionContext) {
  const stateFolder = temporaryFolder(t);
  const groups = temporaryFolder(t);
  const warnings: string[] = [];
  /** Of the driver, by GPU and group. */
  const set = new Map<string, number>();
  const driver = { code: 0, asked: 0, ms: 0 };
  const answer = (line: string): object => {
    const [verb, gpu, , most] = line.split(' ');
    const key = `${gpu} ${line.split(' ').at(-1)}`;
    if (driver.code !== 0) return { result: driver.code };
    if (verb === 'set' && most === 'max') set.delete(key);
    return { result: 0, ...(verb === 'get' && { softBytes: 0, hardBytes: set.get(key) ?? null }) };
  };
  const run = async ({ input = '' }: { input?: string }) => {
    driver.asked += 1;
    const lines = input.trim().split('\n');
    return { stdout: lines.map((line) => JSON.stringify(answer(line))).join('\n'), stderr: '' };
  };
  const group = (pid: number): string => {
    const folder = join(groups, `cotenant-canary-${pid}`);
    mkdirSync(folder, { recursive: true });
    return folder;
  };
  return {
    warnings,
    set,
    driver,
    groups,
    group,
    /** Of an agent that ends without removing it. */
    leave(gpuUuid: string, folder: string) {
      const records = openLimitRecords(stateFolder, loggerTo(warnings));
      begin(records, gpuUuid, folder);
      set.set(`${gpuUuid} ${folder}`, 100 * MIB);
    },
    /** The next agent, at a sample. */
    async follow(records = openLimitRecords(stateFolder, loggerTo(warnings))) {
      await openDriverLimits({
        tools: { run } as never,
        records,
        nvmlLibrary: 'libnvidia-ml.so.1',
        failsOn: () => false,
        log: loggerTo(warnings),
        clock: () => driver.ms,
      }).follow([], new Map(), '615.1');
      return records;
    },
    stored: () => JSON.parse(readFileSync(join(stateFolder, 'driver-limits.json'), 'utf8')).limits,
  };
}

function begin(records: LimitRecords, gpuUuid: string, folder: string): void {
  const inUse = { ...NOT_SET, wanted: undefined, ours: [100 * MIB], lookedMs: Number.POSITIVE_INFINITY };
  records.all.set(keyOf({ gpuUuid, folder }), { gpuUuid, folder, grantId: CANARY, ...inUse });
  records.save();
}

test('limits that a canary of an ended agent left are removed, then their cgroup', async (t) => {
  const { leave, follow, group, set, stored, warnings } = setUp(t);
  const folder = group(7);
  leave('GPU-0', folder);
  leave('GPU-1', folder);
  t.is(stored().length, 2);
  await follow();
  t.is(set.size, 0);
  t.false(existsSync(folder));
  t.deepEqual(stored(), []);
  t.deepEqual(warnings, []);
});

test('the limit of a running canary is left alone', async (t) => {
  const { follow, group, driver, set, stored } = setUp(t);
  const folder = group(7);
  const records = await follow();
  begin(records, 'GPU-0', folder);
  set.set(`GPU-0 ${folder}`, 100 * MIB);
  driver.ms = 1e9;
  await follow(records);
  t.is(driver.asked, 0);
  t.is(set.size, 1);
  t.is(stored().length, 1);
});

test('a limit that another program set on the cgroup of a canary stays and is reported', async (t) => {
  const { leave, follow, group, set, stored, warnings } = setUp(t);
  const folder = group(7);
  leave('GPU-0', folder);
  set.set(`GPU-0 ${folder}`, 3000 * MIB);
  await follow();
  t.is(set.get(`GPU-0 ${folder}`), 3000 * MIB);
  t.true(existsSync(folder));
  t.deepEqual(stored(), []);
  t.regex(warnings.join('\n'), /limit of GPU-0 for .*: another program has set it \(hard 3145728000, soft 0 bytes\)/);
});

test('a cgroup that cannot be removed yet is removed later', async (t) => {
  const { leave, follow, group, set, stored, driver } = setUp(t);
  const folder = group(7);
  leave('GPU-0', folder);
  writeFileSync(join(folder, 'process'), ''); // as a group with a process in it
  const records = await follow();
  t.is(set.size, 0);
  t.is(stored().length, 1);
  rmSync(join(folder, 'process'));
  driver.ms = 20_000;
  await follow(records);
  t.false(existsSync(folder));
  t.deepEqual(stored(), []);
});

test('a driver without limits has none to remove', async (t) => {
  const { leave, follow, group, stored, driver } = setUp(t);
  const folder = group(7);
  leave('GPU-0', folder);
  driver.code = 13;
  await follow();
  t.false(existsSync(folder));
  t.deepEqual(stored(), []);
});

test('only a cgroup with the name of a canary is removed', async (t) => {
  const { leave, follow, groups, stored } = setUp(t);
  for (const name of ['kubepods.slice', 'cotenant-canary-', 'cotenant-canary-7x']) {
    const folder = join(groups, name);
    mkdirSync(folder);
    leave('GPU-0', folder);
  }
  await follow();
  t.deepEqual(stored(), []);
  for (const name of ['kubepods.slice', 'cotenant-canary-', 'cotenant-canary-7x'])
    t.true(existsSync(join(groups, name)));
});
