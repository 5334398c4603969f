// The sampler on a simulated node: processes, Xids, health, and MIG instances as the driver reports them.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import test from 'ava';
import { OUT_OF_MEMORY, readyClient } from '../../support/native/client.ts';
import { BUILD, environment, startNode } from '../../support/native/node.ts';
import { MIB } from '../../support/product/grant.ts';
import { sampleReader } from '../../support/product/sample.ts';
import { follow, type Sample, xidsOf } from './following.ts';

test('a sampler follows processes that start and end and a GPU that is lost and back', async (t) => {
  const node = await startNode(t, '--gpu', 't4', '--gpu', 't4');
  const { child, until, seen } = follow(t, node, 2);
  const ended = once(child, 'exit');
  const listed = (sample: Sample, pid: number) =>
    sample.processes.find((process) => process.pid === pid)?.gpus.find((gpu) => gpu.listed);
  const context = node.usage().gpus[0]?.contextBytes ?? 0;
  for (let turn = 0; turn < 5; turn++) {
    const client = await readyClient(t, node);
    await client.must(`alloc ${(turn + 1) * 2 * MIB}`);
    const bytes = context + (turn + 1) * 2 * MIB;
    await until((sample) => listed(sample, client.pid)?.bytes === bytes, `process ${turn} with what it holds`);
    await client.kill();
    await until((sample) => !listed(sample, client.pid), `process ${turn} is no longer listed`);
    await until((sample) => !sample.processes.some(({ pid }) => pid === client.pid), `process ${turn} is forgotten`);
  }
  const healthy = (sample: Sample) => sample.gpus.map((gpu) => gpu.healthy);
  node.control('lose', '1');
  t.deepEqual(healthy(await until((sample) => !healthy(sample)[1], 'the GPU is lost')), [true, false]);
  node.control('recover', '1');
  await until((sample) => healthy(sample).every(Boolean), 'the GPU is back');
  child.stdin.write(
    `interval\ninterval 0\ninterval 99999999999999999999\n\0\0\n${'x'.repeat(100_000)}\n\ninterval 60\n`,
  );
  const before = seen.rounds;
  await until((sample) => sample.round > before + 3, 'it goes on');
  child.stdin.write('stop\n');
  t.deepEqual(await ended, [0, null]);
});

test('a process with a size of all ones is listed without a size', async (t) => {
  const node = await startNode(t, '--gpu', 't4', '--gpu', 't4');
  const { until } = follow(t, node, 2);
  const client = await readyClient(t, node);
  await client.must(`alloc ${2 * MIB}`);
  const reported = (node.usage().gpus[0]?.contextBytes ?? 0) + 2 * MIB;
  const uses = ({ processes }: Sample) => processes.find(({ pid }) => pid === client.pid)?.gpus ?? [];
  await until((sample) => uses(sample)[0]?.bytes === reported, 'its memory is reported');
  node.control('hide-process-memory', '0', '1');
  const sample = await until((one) => uses(one).length === 1 && uses(one)[0]?.bytes === undefined, 'it is not');
  t.like(uses(sample)[0], { gpu: 0, listed: true, types: 1 });
  t.notRegex(JSON.stringify(sample), /18446744073709551615|18446744073709552000/);
  node.control('hide-process-memory', '0', '0');
  await until((one) => uses(one)[0]?.bytes === reported, 'it is again');
});

test('each Xid is reported once with its GPU and count, without delaying samples', async (t) => {
  const node = await startNode(t, '--gpu', 'h100', '--gpu', 't4');
  const { until } = follow(t, node, 2);
  const first = await until(({ gpus }) => gpus.every(({ reportsXids }) => reportsXids), 'it waits for events');
  t.deepEqual(first.xids, []);
  const before = Date.now();
  const met: number[][] = [];
  const all = (sample: Sample, more: number) => {
    met.push(...xidsOf(sample));
    for (const { atMs } of sample.xids ?? []) t.true(atMs >= before && atMs <= Date.now(), String(atMs));
    return met.reduce((sum, [, , count = 0]) => sum + count, 0) >= more;
  };
  for (const args of [
    ['xid', '0', '48'],
    ['xid', '1', '13'],
    ['xid', '1', '13'],
    ['lose', '1'],
  ])
    node.control(...args);
  await until((sample) => all(sample, 4), 'four events');
  const sums = new Map<string, number>();
  for (const [gpu, xid, count = 0] of met) sums.set(`${gpu} ${xid}`, (sums.get(`${gpu} ${xid}`) ?? 0) + count);
  t.deepEqual(Object.fromEntries(sums), { '0 48': 1, '1 13': 2, '1 79': 1 });
  met.length = 0;
  node.control('xid', '1', '45');
  await until((sample) => all(sample, 1), 'one more, of a GPU that is lost');
  t.deepEqual(met, [[1, 45, 1]], 'and none of the old ones again');
});

test('ECC, row remapping, throttling and link traffic are reported where supported', async (t) => {
  const node = await startNode(t, '--gpu', 'h100', '--gpu', 't4');
  for (const args of [
    ['ecc', '0', 'corrected', '5'],
    ['ecc', '0', 'uncorrected', '2'],
    ['rows', '0', 'corrected', '1'],
    ['rows', '0', 'uncorrected', '3'],
    ['rows', '0', 'failed', '1'],
    ['throttle', '0', 'power-brake'],
    ['pcie', '0', 'received', '1000'],
    ['pcie', '0', 'sent', '2000'],
    ['nvlink', '0', 'received', '4096'],
    ['rows', '1', 'uncorrected', '2'],
    ['rows', '1', 'pending', '1'],
  ])
    node.control(...args);
  const { until } = follow(t, node, 2);
  const { gpus } = await until(() => true, 'the first sample');
  const of = (gpu: number, pattern: RegExp) =>
    Object.fromEntries(Object.entries(gpus[gpu] ?? {}).filter(([name]) => pattern.test(name)));
  const { temperatureC = Number.NaN, memoryTemperatureC } = gpus[0] ?? {};
  t.is(memoryTemperatureC, temperatureC + 9);
  t.is(gpus[1]?.memoryTemperatureC, undefined);
  const health = /^(ecc|rows|pages|throttle|pcie[RS]|nvlink)/;
  t.deepEqual(of(0, health), {
    throttleReasons: 0x80 | 0x8 | 0x1,
    eccCorrectedVolatile: 5,
    eccCorrectedAggregate: 5,
    eccUncorrectedVolatile: 2,
    eccUncorrectedAggregate: 2,
    rowsCorrected: 1,
    rowsUncorrected: 3,
    rowsPending: 0,
    rowsFailed: 1,
    pcieReceivedBytes: 1000,
    pcieSentBytes: 2000,
    nvlinkReceivedBytes: 4096,
    nvlinkSentBytes: 0,
  });
  t.deepEqual(of(1, health), {
    throttleReasons: 1,
    eccCorrectedVolatile: 0,
    eccCorrectedAggregate: 0,
    eccUncorrectedVolatile: 0,
    eccUncorrectedAggregate: 0,
    pagesCorrected: 0,
    pagesUncorrected: 2,
    pagesPending: 1,
    pcieReceivedBytes: 0,
    pcieSentBytes: 0,
  });
});

test('MIG instances report memory and processes, their GPU what they share', async (t) => {
  const node = await startNode(t, '--gpu', 'h100,mig=1g.10gb+3g.40gb', '--gpu', 't4');
  const { until } = follow(t, node, 4);
  const { gpus } = await until(() => true, 'the first sample');
  // GPUs as NVML numbers them, instances behind them.
  t.deepEqual(
    gpus.map(({ index, parent, gpuInstance, migEnabled }) => [index, parent, gpuInstance, migEnabled]),
    [
      [0, undefined, undefined, true],
      [1, undefined, undefined, undefined],
      [2, 0, 1, undefined],
      [3, 0, 2, undefined],
    ],
  );
  t.regex(String(gpus[2]?.uuid), /^MIG-/);
  t.regex(String(gpus[3]?.name), / MIG 3g\.40gb$/);
  const has = (gpu: number, ...names: string[]) => names.map((name) => gpus[gpu]?.[name] !== undefined);
  t.deepEqual(has(0, 'totalBytes', 'usedBytes', 'temperatureC', 'eccCorrectedVolatile', 'utilizationPercent'), [
    false,
    false,
    true,
    true,
    false,
  ]);
  t.deepEqual(has(2, 'totalBytes', 'usedBytes', 'temperatureC', 'eccCorrectedVolatile'), [true, true, false, false]);
  t.is(gpus[3]?.totalBytes, 40 * 1024 * MIB);

  const on = (gpu: number) => readyClient(t, node, { env: { CUDA_VISIBLE_DEVICES: String(gpus[gpu]?.uuid) } });
  const [first, second] = [await on(2), await on(3)];
  await first.must(`alloc ${100 * MIB}`);
  await second.must(`alloc ${300 * MIB}`);
  const context = node.usage().gpus[2]?.contextBytes ?? 0;
  const bytesOf = (sample: Sample, pid: number) =>
    sample.processes.find((process) => process.pid === pid)?.gpus.map(({ gpu, listed, bytes }) => [gpu, listed, bytes]);
  // GPUs are asked one after the other: what comes meanwhile may be in a sample of one of them only.
  const holds = (one: Sample, pid: number, mib: number) => bytesOf(one, pid)?.[0]?.[2] === context + mib * MIB;
  const sample = await until((one) => holds(one, first.pid, 100) && holds(one, second.pid, 300), 'they are listed');
  t.deepEqual(bytesOf(sample, first.pid), [[2, true, context + 100 * MIB]], 'on its instance, and nowhere else');
  t.deepEqual(bytesOf(sample, second.pid), [[3, true, context + 300 * MIB]]);
  t.is(sample.gpus[2]?.usedBytes, context + 100 * MIB);
  t.is(sample.gpus[3]?.usedBytes, context + 300 * MIB);
  t.is((await first.ask(`alloc ${20 * 1024 * MIB}`))[0], OUT_OF_MEMORY, 'an instance has its own memory');
  // An event of an instance is its GPU's.
  node.control('xid', '3', '31');
  await until((one) => xidsOf(one).some(([gpu, xid]) => gpu === 0 && xid === 31), 'its Xid');
});

test('a removed MIG instance disappears and the others keep their indices', async (t) => {
  const node = await startNode(t, '--gpu', 'a100,mig=1g.10gb+2g.20gb', '--gpu', 't4');
  // The first enumeration asks for seven numbers; in all later ones the first number has none.
  const env = { COTENANT_SIM_FAULTS: 'nvmlDeviceGetMigDeviceHandleByIndex=6@8x1' };
  const args = ['--interval-ms', '50', '--library', join(node.lib, 'libnvidia-ml.so.1')];
  const child = spawn(join(BUILD, 'cotenant-sampler'), args, {
    stdio: ['pipe', 'pipe', 'inherit'],
    env: environment(env),
  });
  t.teardown(() => child.kill('SIGKILL'));
  const seen: string[] = [];
  const read = sampleReader();
  // Its return makes the sampler ask what there is.
  let next: 'lose' | 'recover' | undefined = 'lose';
  for await (const line of createInterface({ input: child.stdout })) {
    const { gpus } = read(line);
    if (next && gpus[0]?.healthy === (next === 'lose')) {
      node.control(next, '0');
      next = next === 'lose' ? 'recover' : undefined;
    }
    const places = gpus.map(({ index }) => index).join(' ');
    if (seen.at(-1) !== places) seen.push(places);
    if (seen.length === 2) break;
  }
  t.deepEqual(seen, ['0 1 2 3', '0 1 3']);
});
