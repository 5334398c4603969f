// When the driver's limits are not taken to hold: the program that asks for them stands in for a driver that stops
// answering, or has no limits any more, which no simulated one does at the right moment. Limits that are really set are
// the integration tests' part.
import test, { type ExecutionContext } from 'ava';
import { openLimitRecords } from '../../../../src/agent/isolation/driver-limits/records.ts';
import { openDriverLimits } from '../../../../src/agent/isolation/driver-limits/sync.ts';
import { temporaryFolder } from '../../../support/native/node.ts';
import { loggerTo } from '../../../support/product/logger.ts';
import { grantOf } from '../node.ts';

const NOT_THERE = 13;
const one = grantOf('one', 100);
const two = grantOf('two', 100);
const folders = new Map([
  ['one', '/groups/one'],
  ['two', '/groups/two'],
]);

function setUp(t: ExecutionContext, pageBytes = 1) {
  let second = 0;
  let failing = false;
  let driver: 'works' | 'fails' | 'has none' = 'works';
  const set = new Map<string, number>();
  const sets: string[] = [];
  const answer = (line: string): object => {
    if (driver === 'has none') return { result: NOT_THERE };
    const words = line.split(' ');
    const group = words.at(-1) ?? '';
    if (words[0] === 'set' && words[3] === 'max') set.delete(group);
    else if (words[0] === 'set') {
      sets.push(group);
      set.set(group, Math.floor(Number(words[3]) / pageBytes) * pageBytes);
    }
    return { result: 0, ...(words[0] === 'get' && { softBytes: 0, hardBytes: set.get(group) ?? null }) };
  };
  const run = async ({ input = '' }: { input?: string }) => {
    if (driver === 'fails') return { stdout: '', stderr: 'NVML does not start (999)', problem: 'it ended with 1' };
    return {
      stdout: input
        .trim()
        .split('\n')
        .map((line) => JSON.stringify(answer(line)))
        .join('\n'),
      stderr: '',
    };
  };
  const limits = openDriverLimits({
    tools: { run } as never,
    records: openLimitRecords(temporaryFolder(t), loggerTo([])),
    nvmlLibrary: 'libnvidia-ml.so.1',
    failsOn: () => failing,
    log: loggerTo([]),
    clock: () => second * 1000,
  });
  return {
    limits,
    set,
    sets,
    fail: (value: boolean) => {
      failing = value;
    },
    held: () => [one, two].map((grant) => limits.hold(grant, folders.get(grant.id))),
    async follow(at: number, is: typeof driver, grants = [one, two], version = '615.1') {
      second = at;
      driver = is;
      await limits.follow(grants, folders, version);
    },
  };
}

test('a limit that cannot be read does not count as set until it is read again', async (t) => {
  const { follow, held } = setUp(t);
  await follow(0, 'works');
  t.deepEqual(held(), [true, true]);
  await follow(10, 'fails');
  t.deepEqual(held(), [true, true], 'no query was made');
  await follow(16, 'fails');
  t.deepEqual(held(), [false, false]);
  await follow(32, 'works');
  t.deepEqual(held(), [true, true]);
});

test('with a driver without limits none holds, not even those read before', async (t) => {
  const { follow, held, limits } = setUp(t);
  await follow(0, 'works', [one]);
  await follow(10, 'works');
  t.deepEqual(held(), [true, true]);
  await follow(16, 'has none', [one, two], '580.1');
  t.deepEqual(held(), [false, false]);
  t.false(limits.mayBeOf('580.1'));
  t.true(limits.mayBeOf('615.1'));
  await follow(17, 'works');
  t.deepEqual(held(), [true, true], 'and another driver is asked anew');
});

test('where limits were seen not to hold, none is claimed and set ones are removed', async (t) => {
  const { follow, held, set, fail } = setUp(t);
  await follow(0, 'works');
  t.is(set.size, 2);
  fail(true);
  t.deepEqual(held(), [false, false], 'at once');
  await follow(1, 'works');
  t.is(set.size, 0);
  fail(false);
  t.deepEqual(held(), [false, false]);
  await follow(2, 'works');
  t.deepEqual(held(), [true, true]);
  t.is(set.size, 2);
});

test('a limit that the driver rounds is set once, recognized and removed', async (t) => {
  const PAGE = 2 ** 21;
  const { follow, held, limits, set, sets } = setUp(t, PAGE);
  const odd = (mib: number) => [grantOf('one', mib), grantOf('two', mib)];
  const holds = (mib: number) => odd(mib).map((grant) => limits.hold(grant, folders.get(grant.id)));
  await follow(0, 'works', odd(1001));
  t.deepEqual(holds(1001), [true, true]);
  await follow(16, 'works', odd(1001));
  t.deepEqual(
    [holds(1001), sets],
    [
      [true, true],
      ['/groups/one', '/groups/two'],
    ],
    'as it was',
  );
  // What the driver made of the one before is the next one as it is.
  await follow(32, 'works', odd(1000));
  t.deepEqual([holds(1000), sets.length], [[true, true], 2]);
  await follow(40, 'works', odd(998));
  t.deepEqual([holds(998), sets.length], [[true, true], 4]);
  set.set('/groups/one', 998 * 2 ** 20 - PAGE); // set by another program
  await follow(60, 'works', odd(998));
  t.deepEqual([holds(998), sets.length], [[false, true], 4]);
  await follow(80, 'works', []);
  t.deepEqual([...set.keys()], ['/groups/one']);
  t.deepEqual(held(), [false, false]);
});
