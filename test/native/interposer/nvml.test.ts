// NVML inside a grant: the container's grant and its own processes, by the driver's protocol. The usage is compared
// with the simulated GPU's, the result of a wrong call with the driver's.
import { spawnSync } from 'node:child_process';
import { rmSync, truncateSync } from 'node:fs';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { testUnless } from '../../support/gate.ts';
import { type Client, readyClient } from '../../support/native/client.ts';
import { eventually, type SimulatedNode, startNode } from '../../support/native/node.ts';
import { NVML, type NvmlClient, readyNvml, startNvml } from '../../support/native/nvml.ts';
import { MIB, makeGrant } from '../../support/product/grant.ts';

const GIB = 1024 * MIB;
const DETAIL_VERSION = 0x01000018;
const TABLE_VERSION = 0x01000018;
const MEMORY_VERSION = 0x02000028;
const LISTS = ['Compute', 'Graphics', 'MPSCompute'].map((kind) => `nvmlDeviceGet${kind}RunningProcesses`);
const [COMPUTE = '', GRAPHICS = '', MPS = ''] = LISTS;

const bytesOf = (node: SimulatedNode, pid: number): number =>
  node.usage().clients.find((entry) => entry.pid === pid)?.gpus[0]?.bytes ?? 0;

/** Two processes of a container and one of another, each holding its own amount. */
async function tenants(t: ExecutionContext, node: SimulatedNode) {
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 2 * GIB }]);
  const other = makeGrant(t, node, [{ gpu: 0, memoryBytes: 2 * GIB }]);
  const [first, second, stranger] = await Promise.all([
    readyClient(t, node, { preload: grant.cuda }),
    readyClient(t, node, { preload: grant.cuda }),
    readyClient(t, node, { preload: other.cuda }),
  ]);
  await first.must(`alloc ${100 * MIB}`);
  await second.must(`alloc ${30 * MIB}`);
  await stranger.must(`alloc ${500 * MIB}`);
  return { grant, first, second, stranger };
}

const sorted = (rows: readonly (readonly number[])[]) => rows.toSorted(([a = 0], [b = 0]) => a - b);

test('every layout of process lists has the own processes, which add up to the usage', async (t) => {
  for (const [driver, newest] of [
    ['530.30.02', 32],
    ['535.43.02', 32],
    ['535.98', 24],
    ['580.95.05', 24],
  ] as const) {
    const node = await startNode(t, '--gpu', 'h100', '--driver', driver);
    const { grant, first, second, stranger } = await tenants(t, node);
    const nvml = await readyNvml(t, node, grant.both);
    const own = sorted([first.pid, second.pid].map((pid) => [pid, bytesOf(node, pid)]));
    for (const [suffix, size] of [
      ['', 16],
      ['_v2', 24],
      ['_v3', newest],
    ] as const) {
      const answer = await nvml.ask(`list ${COMPUTE}${suffix} 2 ${size}`);
      t.deepEqual({ ...answer, rows: sorted(answer.rows) }, { result: 0, count: 2, spilled: false, rows: own }, driver);
    }
    if (Number.parseInt(driver, 10) >= 535) {
      const detail = await nvml.ask(`detail ${DETAIL_VERSION} 0 2`);
      t.deepEqual({ ...detail, rows: sorted(detail.rows) }, { result: 0, count: 2, spilled: false, rows: own });
    }
    const used = own.reduce((sum, [, bytes = 0]) => sum + bytes, 0);
    t.deepEqual((await nvml.ask('memory 0')).rows, [[2 * GIB, 2 * GIB - used, used, 0]]);
    t.deepEqual((await nvml.ask(`memory-second ${MEMORY_VERSION} 0`)).rows, [[2 * GIB, 2 * GIB - used, used, 0]]);
    await Promise.all([first, second, stranger].map((client) => client.kill()));
    // Only the ledger has the next two among those that compute: the layout is then by the driver's version.
    const drawing = { preload: grant.cuda, env: { COTENANT_SIM_PROCESS_TYPE: 'graphics' } };
    const clients = [await readyClient(t, node, drawing), await readyClient(t, node, drawing)];
    const alone = sorted(clients.map(({ pid }) => [pid, bytesOf(node, pid)]));
    const answer = await nvml.ask(`list ${COMPUTE}_v3 2 ${newest}`);
    t.deepEqual({ ...answer, rows: sorted(answer.rows) }, { result: 0, count: 2, spilled: false, rows: alone }, driver);
  }
});

test('in a grant shrunk below its usage nothing is free, and used is the grant', async (t) => {
  const node = await startNode(t, '--gpu', 'h100');
  const { grant } = await tenants(t, node);
  const nvml = await readyNvml(t, node, grant.both);
  grant.rewrite([{ gpu: 0, memoryBytes: 64 * MIB }]);
  for (const call of ['memory 0', `memory-second ${MEMORY_VERSION} 0`])
    t.deepEqual((await nvml.ask(call)).rows, [[64 * MIB, 0, 64 * MIB, 0]], call);
});

test('too small an array is an error with the needed count, and is not written to', async (t) => {
  const node = await startNode(t, '--gpu', 'h100');
  const { grant } = await tenants(t, node);
  const nvml = await readyNvml(t, node, grant.both);
  const calls = (capacity: number): string[] => [
    ...['', '_v2', '_v3'].map((suffix) => `list ${COMPUTE}${suffix} ${capacity} 32`),
    `detail ${DETAIL_VERSION} 0 ${capacity}`,
    `pids ${capacity}`,
  ];
  for (const capacity of [0, 1]) {
    for (const call of calls(capacity)) {
      t.deepEqual(await nvml.ask(call), { result: NVML.INSUFFICIENT_SIZE, count: 2, spilled: false, rows: [] }, call);
    }
  }
  for (const call of calls(-1)) t.is((await nvml.ask(call)).result, NVML.INVALID_ARGUMENT, call);
});

test('an empty list is a success without an array, also on a busy GPU', async (t) => {
  const node = await startNode(t, '--gpu', 'h100');
  const { stranger } = await tenants(t, node);
  const empty = makeGrant(t, node, [{ gpu: 0, memoryBytes: GIB }]);
  const nvml = await readyNvml(t, node, empty.both);
  const emptyList = { result: 0, count: 0, spilled: false, rows: [] };
  for (const name of LISTS) {
    for (const suffix of ['', '_v2', '_v3']) t.deepEqual(await nvml.ask(`list ${name}${suffix} -1 32`), emptyList);
  }
  for (const mode of [0, 1, 2]) t.deepEqual(await nvml.ask(`detail ${DETAIL_VERSION} ${mode} -1`), emptyList);
  t.deepEqual(await nvml.ask('pids -1'), emptyList);
  t.is((await nvml.ask(`stats ${stranger.pid} 0`)).result, NVML.NOT_FOUND);
  t.is((await nvml.ask(`stats-second ${stranger.pid} 0`)).result, NVML.NOT_FOUND);
  t.deepEqual((await nvml.ask('memory 0')).rows, [[GIB, GIB, 0, 0]]);
});

test('a wrong call is answered as the driver answers it', async (t) => {
  const node = await startNode(t, '--gpu', 'h100');
  const old = await startNode(t, '--gpu', 'a10');
  const wrong = [
    ...LISTS.flatMap((name) => ['', '_v2', '_v3'].map((suffix) => `list ${name}${suffix} -2 32`)),
    ...[0, 1, DETAIL_VERSION + 1, 0x02000020].map((version) => `detail ${version} 0 4`),
    ...[4, 77].map((mode) => `detail ${DETAIL_VERSION} ${mode} 4`),
    `detail ${DETAIL_VERSION} 0 -2`,
    'rows 0 -2',
    'rows 0 -1',
    ...[0, 1, TABLE_VERSION + 1].map((version) => `table ${version} 0 4`),
    `table ${TABLE_VERSION} 0 -2`,
    'samples 0 -2',
    'samples 1 -2',
    'samples 5 4',
    'samples -1 4',
    'pids -2',
    'stats 1 -1',
    'stats-second 1 -1',
    'stats 0 0',
    'memory -1',
    ...[0, 0x01000028, 0x02000029].map((version) => `memory-second ${version} 0`),
    `memory-second ${MEMORY_VERSION} -1`,
    'rates -1',
  ];
  const right = [
    ...LISTS.map((name) => `list ${name}_v3 4 24`),
    `detail ${DETAIL_VERSION} 0 4`,
    'rows 0 4',
    `table ${TABLE_VERSION} 0 4`,
    'samples 0 80',
    'pids 4',
    'stats 1 0',
    'memory 0',
    `memory-second ${MEMORY_VERSION} 0`,
    'rates 0',
  ];
  const compare = async (
    at: SimulatedNode,
    calls: readonly string[],
    prepare: (client: NvmlClient) => Promise<void>,
  ) => {
    const grant = makeGrant(t, at, [{ gpu: 0, memoryBytes: GIB }]);
    const clients = [startNvml(t, at), startNvml(t, at, grant.both)] as const;
    for (const client of clients) await prepare(client);
    for (const call of calls) {
      const [plain, inside] = [await clients[0].ask(call), await clients[1].ask(call)];
      t.is(inside.result, plain.result, call);
      t.is(inside.spilled, plain.spilled, call);
    }
  };
  const initialized = async (client: NvmlClient) => void (await client.ask('init'));
  await compare(node, [...wrong, ...right], initialized);
  await compare(old, [...wrong, ...right], initialized);
  await compare(node, [...wrong, ...right], async () => {}); // nvmlInit was not called
  await compare(node, [...wrong, ...right], async (client) => {
    await client.ask('init');
    await client.ask('bad');
  });
  node.control('lose', '0');
  await compare(node, right, initialized);
});

test('a process is listed by its kind, with its charge, managed memory included', async (t) => {
  const node = await startNode(t, '--gpu', 'h100');
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 4 * GIB }]);
  const typed = (type: string) =>
    readyClient(t, node, { preload: grant.cuda, env: { COTENANT_SIM_PROCESS_TYPE: type } });
  const [computing, drawing, both, sharing] = [
    await typed('compute'),
    await typed('graphics'),
    await typed('compute+graphics'),
    await typed('mps'),
  ];
  const context = node.usage().gpus[0]?.contextBytes ?? 0;
  await computing.must(`managed ${64 * MIB}`);
  const nvml = await readyNvml(t, node, grant.both);
  const pids = async (name: string) => (await nvml.ask(`list ${name}_v3 8 24`)).rows.map(([pid]) => pid);
  // A process with a slot computes, although the driver lists it among others only; an MPS client is in both its lists.
  t.deepEqual((await pids(COMPUTE)).toSorted(), [computing.pid, drawing.pid, both.pid, sharing.pid].toSorted());
  t.deepEqual((await pids(GRAPHICS)).toSorted(), [drawing.pid, both.pid].toSorted());
  t.deepEqual(await pids(MPS), [sharing.pid]);
  const rows = (await nvml.ask(`list ${COMPUTE}_v3 8 24`)).rows;
  t.is(rows.find(([pid]) => pid === computing.pid)?.[1], context + 64 * MIB);
  const [[, , used] = []] = (await nvml.ask('memory 0')).rows;
  t.is(used, 4 * context + 64 * MIB);
});

test('an ended process is not listed and holds nothing', async (t) => {
  const node = await startNode(t, '--gpu', 'h100');
  const { grant, first, second } = await tenants(t, node);
  const nvml = await readyNvml(t, node, grant.both);
  await first.kill();
  t.deepEqual((await nvml.ask(`list ${COMPUTE}_v3 8 24`)).rows, [[second.pid, bytesOf(node, second.pid)]]);
  const [[, , used] = []] = (await nvml.ask('memory 0')).rows;
  t.is(used, bytesOf(node, second.pid));
});

/** Kernels one after the other until the end. */
function work(client: Client): { end(): Promise<void> } {
  let goesOn = true;
  const ended = (async () => {
    // Sixteen kernels at a time: what a busy machine takes between them is little of their 80 ms.
    while (goesOn) await client.ask('spin 500 5000');
  })();
  return {
    async end() {
      goesOn = false;
      await ended;
    },
  };
}

test('utilization is of the own processes only, a busy neighbor does not show', async (t) => {
  const node = await startNode(t, '--gpu', 'h100');
  const { grant, first, stranger } = await tenants(t, node);
  const [nvml, whole] = [await readyNvml(t, node, grant.both), await readyNvml(t, node)];
  const rate = async (client: NvmlClient) => (await client.ask('rates 0')).rows[0]?.[0] ?? -1;
  const pidsOf = async (client: NvmlClient, call: string) => (await client.ask(call)).rows.map(([pid]) => pid);

  const strangersWork = work(stranger);
  await eventually(async () => ((await rate(whole)) > 80 ? true : undefined), 'the GPU is busy');
  t.is(await rate(nvml), 0);
  for (const call of ['rows 0 8', `table ${TABLE_VERSION} 0 8`]) {
    t.deepEqual(await nvml.ask(call), { result: NVML.NOT_FOUND, count: 0, spilled: false, rows: [] }, call);
    t.deepEqual(await pidsOf(whole, call), [stranger.pid], call);
  }
  t.is((await nvml.ask('samples 1 80')).result, NVML.NOT_SUPPORTED, 'samples of the whole GPU name no process');
  t.is((await whole.ask('samples 1 80')).result, NVML.SUCCESS);
  t.is((await nvml.ask('samples 0 80')).result, NVML.SUCCESS, 'power is the GPU');
  await strangersWork.end();

  const mine = work(first);
  await eventually(async () => ((await rate(nvml)) > 80 ? true : undefined), 'the own work is seen');
  for (const call of ['rows 0 8', `table ${TABLE_VERSION} 0 8`]) {
    t.deepEqual(await pidsOf(nvml, call), [first.pid], call);
    t.is((await nvml.ask(call.replace(/8$/, '0'))).result, NVML.INSUFFICIENT_SIZE, call);
  }
  await mine.end();
});

test("accounting answers for the container's own running processes", async (t) => {
  const node = await startNode(t, '--gpu', 'h100');
  const { grant, first, second, stranger } = await tenants(t, node);
  const nvml = await readyNvml(t, node, grant.both);
  t.deepEqual(sorted((await nvml.ask('pids 8')).rows), sorted([[first.pid], [second.pid]]));
  const peak = bytesOf(node, first.pid);
  t.deepEqual((await nvml.ask(`stats ${first.pid} 0`)).rows, [[first.pid, peak]]);
  t.deepEqual((await nvml.ask(`stats-second ${first.pid} 0`)).rows, [[first.pid, peak]]);
  t.deepEqual(await nvml.ask(`stats ${stranger.pid} 0`), {
    result: NVML.NOT_FOUND,
    count: 0,
    spilled: false,
    rows: [],
  });
});

// A search for leaks finds its own threads by pids, and not in there.
const NO_LEAKS = `ASAN_OPTIONS=${process.env.ASAN_OPTIONS ?? ''}:detect_leaks=0`;
const BELOW = ['env', NO_LEAKS, 'unshare', '--pid', '--fork', '--mount-proc'];
const namespaces = spawnSync('env', [...BELOW.slice(1), 'true']);
testUnless(namespaces.status === 0 ? undefined : 'no PID namespace can be made here')(
  'processes of nested PID namespaces have their PID here; siblings are not listed',
  async (t) => {
    const node = await startNode(t, '--gpu', 'h100');
    const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 2 * GIB }]);
    const here = await readyClient(t, node, { preload: grant.cuda });
    const below = await readyClient(t, node, { preload: grant.cuda, within: BELOW });
    await below.must(`alloc ${64 * MIB}`);
    const inner = node.usage().clients.find((entry) => entry.command === 'client' && entry.pid !== here.pid)?.pid ?? 0;
    t.not(inner, below.pid, 'unshare is its parent');
    const outside = await readyNvml(t, node, grant.both);
    const own = sorted([here.pid, inner].map((pid) => [pid, bytesOf(node, pid)]));
    t.deepEqual(sorted((await outside.ask(`list ${COMPUTE}_v3 8 24`)).rows), own);
    const beside = await readyNvml(t, node, grant.both, BELOW);
    t.deepEqual((await beside.ask(`list ${COMPUTE}_v3 8 24`)).rows, []);
    t.deepEqual((await beside.ask('memory 0')).rows, (await outside.ask('memory 0')).rows);
  },
);

test('without a readable grant NVML answers as without the interposer', async (t) => {
  const node = await startNode(t, '--gpu', 'h100');
  const { stranger } = await tenants(t, node);
  const spoiled: ((folder: string) => void)[] = [
    (folder) => rmSync(join(folder, 'limits')),
    (folder) => truncateSync(join(folder, 'limits'), 4096),
    (folder) => truncateSync(join(folder, 'ledger'), 100),
  ];
  for (const spoil of spoiled) {
    const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: GIB }]);
    spoil(grant.folder);
    const nvml = await readyNvml(t, node, grant.both);
    t.true((await nvml.ask(`list ${COMPUTE}_v3 8 24`)).rows.some(([pid]) => pid === stranger.pid));
    t.is((await nvml.ask('memory 0')).rows[0]?.[0], node.usage().gpus[0]?.totalBytes);
  }
});
