// How the sampler reads process lists, whose entry size the driver does not report: lists of all sizes under all names,
// and lists that cannot be read.
import { type ChildProcess, spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import test, { type ExecutionContext } from 'ava';
import { follow, gpuOf } from '../../support/native/listed-processes.ts';

const NAMES = ['', '_v2', '_v3'] as const;
const LENGTHS = [16, 24, 32] as const;
const CAPACITY = 1024;
const LIST = 'nvmlDeviceGetComputeRunningProcesses';
const UNREADABLE = 25;
const TOO_MANY = 7;
const MIB = 2n ** 20n;

type Row = readonly [pid: number, bytes: bigint];

/** Entries as a driver writes them, `written` bytes of each; the rest is as the sampler initialized it. */
function entries(rows: readonly Row[], length: number, written = length, instance = 0xffffffff): Buffer {
  const all = Buffer.alloc(rows.length * length, 0xaa);
  for (const [index, [pid, bytes]] of rows.entries()) {
    const entry = Buffer.alloc(32);
    entry.writeUInt32LE(pid, 0);
    entry.writeBigUInt64LE(bytes, 8);
    entry.writeUInt32LE(instance, 16);
    entry.writeUInt32LE(instance, 20);
    entry.copy(all, index * length, 0, Math.min(length, written));
  }
  return all;
}

const sleepers = (t: ExecutionContext, count: number): readonly number[] =>
  Array.from({ length: count }, () => {
    const child: ChildProcess = spawn('sleep', ['1000'], { stdio: 'ignore' });
    t.teardown(() => child.kill('SIGKILL'));
    if (child.pid === undefined) throw new Error('sleep does not start');
    return child.pid;
  });
/** Each process holds its own amount, none of which looks like a PID. */
const holding = (pids: readonly number[]): readonly Row[] =>
  pids.map((pid, index) => [pid, BigInt(index + 1) * 512n * MIB] as const).toSorted(([a], [b]) => a - b);

/** The sample for this list. */
async function sampled(t: ExecutionContext, name: '' | '_v2' | '_v3', count: number, bytes: Uint8Array) {
  const { library, raw } = gpuOf(t);
  raw(name, 0, count, bytes);
  const { sample } = await follow(t, library).next();
  return {
    lists: sample.gpus[0]?.processLists,
    rows: sample.processes.map(({ pid, gpus }): Row => [pid, BigInt(gpus[0]?.bytes ?? -1)]),
    failed: sample.errors.filter(({ call, code }) => call === `${LIST}${name}` && code !== 13).map(({ code }) => code),
  };
}

for (const name of NAMES) {
  test(`entries of each length are read under the name ${LIST}${name}`, async (t) => {
    const pids = sleepers(t, 5);
    for (const length of LENGTHS) {
      for (const instance of [0xffffffff, 0]) {
        for (const count of [0, 1, 2, 3, 5]) {
          const rows = holding(pids.slice(0, count));
          const reported = await sampled(t, name, count, entries(rows, length, length, instance));
          t.deepEqual(reported, { lists: ['compute'], rows, failed: [] }, `${count} of ${length} bytes, ${instance}`);
        }
      }
    }
  });
}

test('entries of which the driver writes only PID and bytes are read', async (t) => {
  const pids = sleepers(t, 4);
  for (const name of NAMES) {
    for (const length of LENGTHS) {
      for (const count of [1, 2, 3, 4]) {
        const rows = holding(pids.slice(0, count));
        const reported = await sampled(t, name, count, entries(rows, length, 16));
        t.deepEqual(reported, { lists: ['compute'], rows, failed: [] }, `${name}: ${count} of ${length} bytes`);
      }
    }
  }
});

test('a driver that writes the whole array does not change the entry size found', async (t) => {
  const pids = sleepers(t, 4);
  for (const name of NAMES) {
    for (const length of LENGTHS) {
      for (const count of [1, 2, 4]) {
        const rows = holding(pids.slice(0, count));
        const all = Buffer.alloc(CAPACITY * 32);
        entries(rows, length).copy(all);
        const reported = await sampled(t, name, count, all);
        t.deepEqual(reported, { lists: ['compute'], rows, failed: [] }, `${name}: ${count} of ${length} bytes`);
      }
    }
  }
});

test('a list is read up to its count even if the driver wrote more entries', async (t) => {
  const rows = holding(sleepers(t, 4));
  const reported = await sampled(t, '', 2, entries(rows, 24));
  t.deepEqual(reported, { lists: ['compute'], rows: rows.slice(0, 2), failed: [] });
});

test('a list with an unknown entry size is dropped', async (t) => {
  const pids = sleepers(t, 4);
  const unread = { lists: [], rows: [], failed: [UNREADABLE] };
  const three = entries(holding(pids.slice(0, 3)), 24);
  t.deepEqual(await sampled(t, '_v3', 4, three), unread, 'it says that it wrote more than it did');
  t.deepEqual(
    await sampled(t, '', 2, entries(holding(pids.slice(0, 2)), 24).subarray(0, 30)),
    unread,
    'it ends within a field',
  );
  t.deepEqual(await sampled(t, '_v3', 2, Buffer.alloc(0)), unread, 'it wrote nothing');
  t.deepEqual(await sampled(t, '_v3', 1, Buffer.alloc(0)), unread, 'and nothing of one');
  const odd = Buffer.alloc(CAPACITY * 32);
  entries(holding(pids), 40).copy(odd);
  t.deepEqual(await sampled(t, '_v2', 4, odd), unread, 'entries of a length that none has had');
});

test('a list with more entries than its array is dropped', async (t) => {
  const rows = holding(sleepers(t, 3));
  const reported = await sampled(t, '_v3', CAPACITY + 1, entries(rows, 24));
  t.deepEqual(reported, { lists: [], rows: [], failed: [TOO_MANY] });
});

test('a list that was unreadable for a while keeps its processes', async (t) => {
  const rows = holding(sleepers(t, 2));
  const { library, raw } = gpuOf(t);
  const { next } = follow(t, library);
  const reported = async () => {
    const { sample } = await next();
    const [gpu] = sample.gpus;
    return [
      gpu?.processLists,
      gpu?.failedProcessLists,
      sample.processes.map(({ pid, gpus }) => [pid, gpus[0]?.listed]),
    ];
  };
  const listed = rows.map(([pid]) => [pid, true]);
  raw('', 0, 2, entries(rows, 24));
  t.deepEqual(await reported(), [['compute'], undefined, listed]);
  raw('', 0, 3, entries(rows, 24));
  t.deepEqual(await reported(), [[], ['compute'], rows.map(([pid]) => [pid, false])]);
  raw('', 0, 2, entries(rows, 16));
  t.deepEqual(await reported(), [['compute'], undefined, listed]);
});

test('an older list call is used if the driver lacks the newer one', async (t) => {
  const rows = holding(sleepers(t, 2));
  const { library, raw } = gpuOf(t);
  raw('_v2', 0, 2, entries(rows, 24));
  const { next } = follow(t, library);
  for (let round = 0; round < 3; round += 1) {
    const { sample } = await next();
    t.deepEqual(sample.gpus[0]?.processLists, ['compute']);
    t.is(sample.gpus[0]?.failedProcessLists, undefined, 'what the driver has not is none that failed');
    t.deepEqual(
      sample.errors.filter(({ call }) => call.startsWith(LIST)),
      [{ call: `${LIST}_v3`, code: 13, count: 1 }],
      'and the newer one once',
    );
  }
});

const GPU_BYTES = 16n * 1024n * MIB;
const NOT_AVAILABLE = 2n ** 64n - 1n;
const PID_MAX = Number(readFileSync('/proc/sys/kernel/pid_max', 'utf8'));

/** Bytes of each process, -1 if unknown, and the number of entries without a valid process. */
async function oddOf(t: ExecutionContext, rows: readonly Row[]) {
  const { library, raw } = gpuOf(t);
  raw('_v3', 0, rows.length, entries(rows, 24));
  const { sample } = await follow(t, library).next();
  const [gpu] = sample.gpus;
  const reported = sample.processes.map(({ pid, gpus }) => [pid, BigInt(gpus[0]?.bytes ?? -1), gpus.length] as const);
  return { lists: gpu?.processLists, reported, invalidPids: gpu?.invalidPidEntries };
}

test('an entry with an invalid PID is counted and dropped', async (t) => {
  const [first = 0, second = 0] = sleepers(t, 2).toSorted((a, b) => a - b);
  for (const [what, pid] of [
    ['0: a process that cannot be seen', 0],
    ['above what the kernel gives', PID_MAX + 1],
    ['above what a pid can be', 2 ** 31],
    ['all ones', 2 ** 32 - 1],
  ] as const) {
    for (const at of [0, 1, 2]) {
      const rows: Row[] = [[first, 512n * MIB] as const, [second, 1024n * MIB] as const];
      rows.splice(at, 0, [pid, 700n * MIB]);
      const reported = [[first, 512n * MIB, 1] as const, [second, 1024n * MIB, 1] as const];
      t.deepEqual(await oddOf(t, rows), { lists: ['compute'], reported, invalidPids: 1 }, `${what}, at ${at}`);
    }
  }
});

test('the highest PID is valid', async (t) => {
  const { reported, invalidPids } = await oddOf(t, [[PID_MAX, 512n * MIB]]);
  t.deepEqual([reported, invalidPids], [[[PID_MAX, 512n * MIB, 1]], undefined]);
});

test('a process that is listed twice counts once', async (t) => {
  const [first = 0, second = 0] = sleepers(t, 2).toSorted((a, b) => a - b);
  const reported = await oddOf(t, [
    [first, 512n * MIB],
    [second, 1024n * MIB],
    [first, 512n * MIB],
    [second, 600n * MIB],
    [second, NOT_AVAILABLE],
  ]);
  t.deepEqual(reported, {
    lists: ['compute'],
    reported: [
      [first, 512n * MIB, 1],
      [second, 1024n * MIB, 1],
    ],
    invalidPids: undefined,
  });
});

test("a process size beyond the GPU's memory counts as unknown", async (t) => {
  const [first = 0, second = 0, third = 0] = sleepers(t, 3).toSorted((a, b) => a - b);
  for (const bytes of [GPU_BYTES + 1n, 2n ** 47n, 2n ** 53n, 2n ** 63n, NOT_AVAILABLE]) {
    const reported = await oddOf(t, [
      [first, GPU_BYTES],
      [second, bytes],
      [third, 512n * MIB],
    ]);
    t.deepEqual(
      reported,
      {
        lists: ['compute'],
        reported: [
          [first, GPU_BYTES, 1],
          [second, -1n, 1],
          [third, 512n * MIB, 1],
        ],
        invalidPids: undefined,
      },
      String(bytes),
    );
  }
});
