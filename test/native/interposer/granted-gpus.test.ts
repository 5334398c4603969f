// Which GPUs a program finds on a machine that has more than its grant: by CUDA's list, which CUDA_VISIBLE_DEVICES
// selects from (CUDA C++ Programming Guide, "CUDA Environment Variables"), and by NVML's handles.
import test, { type ExecutionContext } from 'ava';
import { startClient } from '../../support/native/client.ts';
import { type SimulatedNode, startNode } from '../../support/native/node.ts';
import { NVML, readyNvml } from '../../support/native/nvml.ts';
import { type GrantFiles, MIB, makeGrant } from '../../support/product/grant.ts';

const INVALID_DEVICE = 101;
const NO_DEVICE = 100;
const FIRST = 300 * MIB;
const SECOND = 200 * MIB;

const nodeOfThree = (t: ExecutionContext) => startNode(t, '--gpu', 'h100', '--gpu', 'a100', '--gpu', 't4');
type Place = { readonly t: ExecutionContext; readonly node: SimulatedNode; readonly grant: GrantFiles };

/** The memory of each device that the program counts, or the error of cuInit. */
async function devices({ t, node, grant }: Place, visible: string | undefined): Promise<number[] | number> {
  const env = visible === undefined ? {} : { CUDA_VISIBLE_DEVICES: visible };
  const client = startClient(t, node, { preload: grant.cuda, env });
  const [error = 0] = await client.ask('init');
  if (error !== 0) return error;
  const found: number[] = [];
  for (;;) {
    const [result, bytes = 0] = await client.ask(`total ${found.length}`);
    if (result === INVALID_DEVICE) break;
    found.push(bytes);
  }
  const own = visible === undefined ? -1 : Number.parseInt(visible, 10) || 0;
  t.deepEqual(await client.ask('visible'), [0, own], 'the program finds its own value again');
  return found;
}

test('a launcher that counts from 0 gets the granted GPUs, as without its list', async (t) => {
  const node = await nodeOfThree(t);
  // The GPUs 2 and 1 of the node, in this order.
  const grant = makeGrant(t, node, [
    { gpu: 2, memoryBytes: FIRST },
    { gpu: 1, memoryBytes: SECOND },
  ]);
  const place = { t, node, grant };
  const [first, second, other] = [node.uuid(2), node.uuid(1), node.uuid(0)];
  for (const [visible, expected] of [
    [undefined, [FIRST, SECOND]],
    ['0', [FIRST]],
    ['1', [SECOND]],
    ['1,0', [SECOND, FIRST]],
    ['0, 1', [FIRST, SECOND]],
    ['0,1,2', [FIRST, SECOND]],
    ['0,-1,1', [FIRST]],
    [`${second},${first}`, [SECOND, FIRST]],
    [second.slice(0, -1), [SECOND]],
    [`${first},${other},${second}`, [FIRST]],
    ['2', NO_DEVICE],
    [other, NO_DEVICE],
    [first.slice(0, 12), NO_DEVICE], // all UUIDs of a simulated node begin alike
    ['-1', NO_DEVICE],
    ['', NO_DEVICE],
    ['GPU-', NO_DEVICE],
    ['0x0', NO_DEVICE],
    ['18446744073709551616', NO_DEVICE],
  ] as const)
    t.deepEqual(await devices(place, visible), expected, String(visible));
});

test('NVML and CUDA number the granted GPUs alike', async (t) => {
  const node = await nodeOfThree(t);
  const grant = makeGrant(t, node, [
    { gpu: 2, memoryBytes: FIRST },
    { gpu: 1, memoryBytes: SECOND },
  ]);
  const nvml = await readyNvml(t, node, grant.both);
  const total = (await nvml.ask('memory 0')).rows[0]?.[0];
  t.is(total, FIRST);
  t.deepEqual(await devices({ t, node, grant }, undefined), [FIRST, SECOND]);
});

test('NVML has no handle of a GPU that was not granted', async (t) => {
  const node = await nodeOfThree(t);
  const grant = makeGrant(t, node, [{ gpu: 1, memoryBytes: FIRST }]);
  const bare = await readyNvml(t, node);
  const nvml = await readyNvml(t, node, grant.both);
  const ways = (gpu: number) => [
    `by nvmlDeviceGetHandleByUUID ${node.uuid(gpu)}`,
    `by nvmlDeviceGetHandleByUUIDV ${node.uuid(gpu)}`,
    `by nvmlDeviceGetHandleByPciBusId 00000000:${(0x10 + gpu).toString(16)}:00.0`,
    `by nvmlDeviceGetHandleByPciBusId_v2 0000:${(0x10 + gpu).toString(16)}:00.0`,
  ];
  for (const gpu of [0, 1, 2]) {
    for (const way of ways(gpu)) {
      const seen = await bare.ask(way);
      t.deepEqual([seen.result, seen.rows[0]?.[0]], [NVML.SUCCESS, gpu], `${way}: a GPU of the node`);
      const { result, spilled, rows } = await nvml.ask(way);
      t.deepEqual(
        [result, spilled, rows],
        gpu === 1 ? [NVML.SUCCESS, false, [[0, FIRST]]] : [NVML.NOT_FOUND, false, []],
        way,
      );
    }
  }
  t.is((await nvml.ask('by nvmlDeviceGetHandleByPciBusId_v2 0000:77:00.0')).result, NVML.NOT_FOUND);
  t.is(
    (await nvml.ask('by nvmlDeviceGetHandleBySerial 0')).result,
    (await bare.ask('by nvmlDeviceGetHandleBySerial 0')).result,
  );
  // Lists by place: count alone, then with an array.
  for (const [command, count, rows] of [
    ['near 0', 0, []],
    ['near 2', 0, []],
    ['set 0', 1, []],
    ['set 3', 1, [[0]]],
  ] as const)
    t.deepEqual(await nvml.ask(command), { result: 0, count, spilled: false, rows }, command);
  t.deepEqual((await bare.ask('near 3')).rows, [[1], [2]]);
  t.deepEqual((await bare.ask('set 2')).rows, [[0], [1]]);
});
