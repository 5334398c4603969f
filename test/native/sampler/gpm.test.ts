// The simulated driver's GPM counters: which GPUs and drivers have them, what they count, and that a wrong call is
// refused.
import test, { type ExecutionContext } from 'ava';
import { readyClient } from '../../support/native/client.ts';
import { eventually, type SimulatedNode, startNode } from '../../support/native/node.ts';
import { NVML, startNvml } from '../../support/native/nvml.ts';
import { ranMs } from '../../support/native/shares.ts';
import { MIB, makeGrant } from '../../support/product/grant.ts';

const [GRAPHICS, SM, OCCUPANCY, TENSOR, DRAM, FP32, UNKNOWN] = [1, 2, 3, 5, 10, 12, 332];
const ALL = [GRAPHICS, SM, OCCUPANCY, TENSOR, DRAM, FP32, UNKNOWN];
const SMS = 132; // of the simulated H100
const VERSION = 1;

async function readyGpm(t: ExecutionContext, node: SimulatedNode, preload?: string) {
  const client = startNvml(t, node, preload, [], 'gpm');
  const result = async (command: string) => (await client.ask(command)).result;
  t.is(await result('init'), NVML.SUCCESS);
  /** Percent by metric; null: that metric's own result was not success. */
  const metrics = async () => {
    const answer = await client.ask(`metrics ${VERSION}`);
    t.is(answer.result, NVML.SUCCESS);
    return new Map(answer.rows.map(([id = 0, code, value = 0]) => [id, code === 0 ? value / 1000 : null]));
  };
  /** Takes the second sample as soon as the driver holds it against the first. */
  const between = async (from = Date.now()) => {
    await eventually(async () => Date.now() - from > 1000 || undefined, 'a second between the samples');
    t.is(await result('take 1'), NVML.SUCCESS);
    return metrics();
  };
  return { client, result, metrics, between };
}

test('GPM counts kernel time, SMs in use and configured activities from Hopper on', async (t) => {
  const node = await startNode(t, '--gpu', 'h100');
  const { client, result, between } = await readyGpm(t, node);
  t.deepEqual(await client.ask('support'), { result: NVML.SUCCESS, rows: [[1]] } as never);
  for (const which of [0, 1]) t.is(await result(`alloc ${which}`), NVML.SUCCESS);
  t.is(await result('take 0'), NVML.SUCCESS);
  const idle = await between();
  t.deepEqual(
    ALL.map((id) => idle.get(id)),
    [0, 0, null, null, null, null, null],
    'no kernel ran; other metrics are not reported',
  );

  const tenant = await readyClient(t, node);
  node.control('activity', '0', 'tensor', '40');
  node.control('activity', '0', 'dram', '100');
  await tenant.must(`grid ${SMS / 4}`);
  const from = performance.now();
  t.is(await result('take 0'), NVML.SUCCESS);
  await tenant.must('spin 800 10000');
  const busy = await between();
  const graphics = busy.get(GRAPHICS) ?? 0;
  // By the books, of all of the time and of no less than the 1.8 s that lie between the samples.
  const ran = ranMs(node, tenant.pid);
  const [least, most] = [(100 * ran) / (performance.now() - from), ran / 18];
  t.true(ran > 0 && graphics > least - 0.02 && graphics < most + 0.02, `${graphics} % of ${least} to ${most} %`);
  const near = (id: number, wanted: number) => {
    const value = busy.get(id) ?? -1;
    t.true(Math.abs(value - wanted) < 0.02, `metric ${id}: ${value} %, not ${wanted} %`);
  };
  near(SM, graphics / 4);
  near(TENSOR, graphics * 0.4);
  near(DRAM, graphics);
  t.deepEqual([busy.get(OCCUPANCY), busy.get(FP32), busy.get(UNKNOWN)], [null, null, null]);

  await tenant.must(`grid ${SMS * 10}`);
  t.is(await result('take 0'), NVML.SUCCESS);
  await tenant.must('spin 500 500');
  const full = await between();
  t.is(full.get(SM), full.get(GRAPHICS), 'more blocks than SMs are on all of them');
  for (const which of [0, 1]) t.is(await result(`free ${which}`), NVML.SUCCESS);
});

test('GPM refuses samples that are too close, reversed, empty, freed or newer', async (t) => {
  const node = await startNode(t, '--gpu', 'h100');
  const { client, result } = await readyGpm(t, node);
  t.is(await result('take 0'), NVML.INVALID_ARGUMENT, 'there is no sample');
  for (const which of [0, 1]) t.is(await result(`alloc ${which}`), NVML.SUCCESS);
  t.is(await result(`metrics ${VERSION}`), NVML.INVALID_ARGUMENT, 'nothing was sampled');
  t.is(await result('take 0'), NVML.SUCCESS);
  t.is(await result(`metrics ${VERSION}`), NVML.INVALID_ARGUMENT, 'one was');
  t.is(await result('take 0 1'), NVML.NOT_SUPPORTED, 'it is not divided');
  await eventually(async () => {
    t.is(await result('take 1'), NVML.SUCCESS);
    return (await result(`metrics ${VERSION}`)) === NVML.SUCCESS || undefined;
  }, 'they are far enough apart');
  t.is(await result('reversed'), NVML.INVALID_ARGUMENT);
  for (const version of [0, 2, 0x01003420]) t.is(await result(`metrics ${version}`), NVML.VERSION_MISMATCH);
  node.control('lose', '0');
  t.is(await result('take 1'), 15);
  t.is(await result(`metrics ${VERSION}`), NVML.INVALID_ARGUMENT, 'a sample that failed is none');
  t.is(await result('free 0'), NVML.SUCCESS);
  t.is(await result('free 0'), NVML.INVALID_ARGUMENT);
  await client.end();
});

test('GPM needs Hopper, driver 520, and driver 525 for MIG instances', async (t) => {
  const older = await readyGpm(t, await startNode(t, '--gpu', 'a100'));
  t.deepEqual(await older.client.ask('support'), { result: NVML.SUCCESS, rows: [[0]] } as never);
  t.is(await older.result('alloc 0'), NVML.SUCCESS);
  t.is(await older.result('take 0'), NVML.NOT_SUPPORTED);
  const divided = 'h100,mig=1g.10gb+3g.40gb';
  for (const [driver, whole, instance] of [
    ['515.105.01', NVML.FUNCTION_NOT_FOUND, NVML.FUNCTION_NOT_FOUND],
    ['520.61.05', NVML.NOT_SUPPORTED, NVML.FUNCTION_NOT_FOUND],
    ['525.60.13', NVML.NOT_SUPPORTED, NVML.SUCCESS],
    ['615.71.09', NVML.NOT_SUPPORTED, NVML.SUCCESS],
  ] as const) {
    const { result } = await readyGpm(t, await startNode(t, '--gpu', divided, '--driver', driver));
    await result('alloc 0');
    t.is(await result('take 0'), whole, `${driver}: a divided GPU reports nothing as a whole`);
    t.is(await result('take 0 2'), instance, driver);
    if (instance === NVML.SUCCESS)
      t.is(await result('take 0 3'), NVML.INVALID_ARGUMENT, 'there is none of that number');
  }
});

test('a MIG instance counts its own kernels on its own SMs', async (t) => {
  const node = await startNode(t, '--gpu', 'h100,mig=1g.10gb+3g.40gb');
  const { result, metrics } = await readyGpm(t, node);
  for (const which of [0, 1]) t.is(await result(`alloc ${which}`), NVML.SUCCESS);
  const tenant = await readyClient(t, node, { env: { CUDA_VISIBLE_DEVICES: node.uuid(1) } });
  await tenant.must('grid 24'); // more than its SMs
  const of = async (instance: number) => {
    const [from, before] = [performance.now(), ranMs(node, tenant.pid)];
    t.is(await result(`take 0 ${instance}`), NVML.SUCCESS);
    await tenant.must('spin 300 10000');
    t.is(await result(`take 1 ${instance}`), NVML.SUCCESS);
    least = (100 * (ranMs(node, tenant.pid) - before)) / (performance.now() - from);
    return metrics();
  };
  let least = 0;
  const [other, mine] = [await of(2), await of(1)];
  t.deepEqual([other.get(GRAPHICS), other.get(SM)], [0, 0]);
  t.true(least > 0 && (mine.get(GRAPHICS) ?? 0) > least - 0.02, `${mine.get(GRAPHICS)} % of at least ${least} %`);
  t.is(mine.get(SM), mine.get(GRAPHICS));
});

test('GPM is not supported inside a grant, because it counts other containers too', async (t) => {
  const node = await startNode(t, '--gpu', 'h100');
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 1024 * MIB }]);
  const inside = await readyGpm(t, node, grant.both);
  t.deepEqual(await inside.client.ask('support'), { result: NVML.SUCCESS, rows: [[0]] } as never);
  for (const which of [0, 1]) t.is(await inside.result(`alloc ${which}`), NVML.SUCCESS);
  for (const command of ['take 0', 'take 1', 'take 0 1']) t.is(await inside.result(command), NVML.NOT_SUPPORTED);
  t.is(await inside.result(`metrics ${VERSION}`), NVML.INVALID_ARGUMENT, 'nothing was sampled');
  const old = await startNode(t, '--gpu', 'h100', '--driver', '515.105.01');
  const before = await readyGpm(t, old, makeGrant(t, old, [{ gpu: 0, memoryBytes: 1024 * MIB }]).both);
  for (const command of ['support', 'take 0', 'take 0 1'])
    t.is(await before.result(command), NVML.FUNCTION_NOT_FOUND, 'what the driver does not have is not there');
});
