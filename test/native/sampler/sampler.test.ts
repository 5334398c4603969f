import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import test, { type ExecutionContext } from 'ava';
import type { SampledGpu, Sample as WholeSample } from '../../../src/agent/sampling/sample.ts';
import { OUT_OF_MEMORY, readyClient } from '../../support/native/client.ts';
import { BUILD, environment, type SimulatedNode, startNode } from '../../support/native/node.ts';
import { MIB } from '../../support/product/grant.ts';
import { sampleReader } from '../../support/product/sample.ts';

type Sample = Omit<WholeSample, 'gpus'> & {
  readonly gpus: readonly (SampledGpu & Readonly<Record<string, unknown>>)[];
};

/** A sampler of this node, and functions to wait for its output. */
function follow(t: ExecutionContext, node: SimulatedNode, gpus: number | undefined, env: Record<string, string> = {}) {
  const args = ['--interval-ms', '50', '--library', join(node.lib, 'libnvidia-ml.so.1')];
  const child = spawn(join(BUILD, 'cotenant-sampler'), args, {
    stdio: ['pipe', 'pipe', 'inherit'],
    env: environment(env),
  });
  t.teardown(() => child.kill('SIGKILL'));
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const seen = { rounds: 0 };
  const read = sampleReader();
  /** The first sample from now on that looks so; every line on the way is one that the agent takes. */
  const until = async (looks: (sample: Sample) => boolean, what: string): Promise<Sample> => {
    for (const deadline = Date.now() + 30_000; Date.now() < deadline; ) {
      const { value, done } = await lines.next();
      if (done) throw new Error(`the sampler ended before ${what}`);
      const sample: Sample = read(String(value));
      if (gpus !== undefined) t.is(sample.gpus.length, gpus);
      t.true(sample.round > seen.rounds, 'rounds are counted');
      seen.rounds = sample.round;
      if (looks(sample)) return sample;
    }
    throw new Error(`not within 30 s: ${what}`);
  };
  return { child, until, seen };
}

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

/** The Xids of a sample: GPU, number, how often. */
const xidsOf = (sample: Sample) => (sample.xids ?? []).map(({ gpu, xid, count }) => [gpu, xid, count]);

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

for (const [what, fault] of [
  ['whether it is divided', 'nvmlDeviceGetMigMode=999@3x1'],
  ['into how many', 'nvmlDeviceGetMaxMigDeviceCount=999@2x1'],
  ['one of them', 'nvmlDeviceGetMigDeviceHandleByIndex=999@8x1'],
  ['the name of one', 'nvmlDeviceGetUUID=999@7x1'],
] as const)
  test(`a divided GPU keeps its state if the driver cannot report ${what}`, async (t) => {
    const node = await startNode(t, '--gpu', 'h100,mig=1g.10gb+3g.40gb', '--gpu', 't4');
    const [call = ''] = fault.split('=');
    const { until, seen } = follow(t, node, 4, { COTENANT_SIM_FAULTS: fault });
    const shape = ({ gpus }: Sample) =>
      gpus.map(({ index, uuid, parent, gpuInstance, migEnabled }) => [index, uuid, parent, gpuInstance, migEnabled]);
    const first = await until(() => true, 'the first sample');
    t.is(first.gpus[0]?.migEnabled, true);
    node.control('lose', '1');
    await until(({ gpus }) => gpus[1]?.healthy === false, 'it is lost');
    node.control('recover', '1');
    const failed = await until(({ errors }) => errors.some((one) => one.call === call && one.code === 999), 'a look');
    t.deepEqual(shape(failed), shape(first));
    const from = seen.rounds;
    t.deepEqual(shape(await until(({ round }) => round > from + 3, 'some more')), shape(first));
  });

for (const [what, fault, isThere] of [
  ['whether it is divided', 'nvmlDeviceGetMigMode=999@1x1', false],
  ['into how many', 'nvmlDeviceGetMaxMigDeviceCount=999@1x1', false],
  ['one of them', 'nvmlDeviceGetMigDeviceHandleByIndex=999@1x1', false],
  ['the name of one', 'nvmlDeviceGetUUID=999@2x1', false],
  ['the number of one', 'nvmlDeviceGetGpuInstanceId=999@1x1', true],
] as const)
  test(`a fact of MIG that could not be read is soon read again: ${what}`, async (t) => {
    const node = await startNode(t, '--gpu', 'h100,mig=1g.10gb+3g.40gb');
    const { until } = follow(t, node, undefined, { COTENANT_SIM_FAULTS: fault });
    const numbers = ({ gpus }: Sample) => gpus.map(({ gpuInstance }) => gpuInstance).toSorted();
    const first = await until(() => true, 'the first sample');
    t.is(first.gpus.length === 3, isThere);
    t.notDeepEqual(numbers(first), [1, 2, undefined]);
    const gpu = (sample: Sample) => [sample.gpus[0]?.migEnabled, sample.gpus[0]?.migModeUnknown];
    const isUnreported = fault.startsWith('nvmlDeviceGetMigMode');
    t.deepEqual(gpu(first), isUnreported ? [undefined, true] : [true, undefined]);
    const later = await until(({ gpus }) => gpus.filter((one) => one.gpuInstance !== undefined).length === 2, 'all');
    t.deepEqual(numbers(later), [1, 2, undefined]);
    t.deepEqual(gpu(later), [true, undefined]);
  });

test('a GPU that the driver no longer counts disappears and can come back', async (t) => {
  const node = await startNode(t, '--gpu', 't4', '--gpu', 'l4');
  const client = await readyClient(t, node, { env: { CUDA_VISIBLE_DEVICES: node.uuid(1) } });
  const { until } = follow(t, node, undefined);
  const places = (sample: Sample) =>
    sample.gpus.map(({ index, healthy }) => (healthy ? index : `${index} lost`)).join(' ');
  const uses = ({ processes }: Sample) => processes.find(({ pid }) => pid === client.pid)?.gpus ?? [];
  await until(
    (sample) => places(sample) === '0 1' && uses(sample).some(({ gpu, listed }) => gpu === 1 && listed),
    'both',
  );
  node.control('hide', '1');
  await until((sample) => places(sample) === '0 1 lost', 'it is lost at once');
  await until((sample) => places(sample) === '0', 'it is gone');
  node.control('show', '1');
  node.control('lose', '0');
  await until((sample) => places(sample) === '0 lost', 'a look at what there is');
  node.control('recover', '0');
  const back = await until((sample) => places(sample) === '0 1', 'it is back, in its place');
  t.is(back.gpus[1]?.uuid, node.uuid(1));
  await until((sample) => uses(sample).some(({ gpu, listed }) => gpu === 1 && listed), 'who uses it, too');
});

test('a lost GPU gets only the calls that tell whether it is back', async (t) => {
  const node = await startNode(t, '--gpu', 't4', '--gpu', 't4');
  const { until, seen } = follow(t, node, 2);
  await until(({ round }) => round > 6, 'all is read');
  node.control('lose', '1');
  const lost = await until(({ gpus }) => gpus[1]?.healthy === false, 'it is lost');
  const reported = Object.keys(lost.gpus[0] ?? {});
  t.true(reported.includes('temperatureC') && reported.includes('usedBytes'), 'all readings of the other GPU');
  const count = ({ errors }: Sample) =>
    errors.filter(({ code }) => code === 15).reduce((sum, one) => sum + one.count, 0);
  const [first, from] = [await until(() => true, 'another one'), seen.rounds];
  const last = await until(({ round }) => round >= from + 20, 'twenty more');
  t.is(count(last) - count(first), seen.rounds - from, 'one question a round');
  t.is(last.gpus[1]?.temperatureC, undefined);
  node.control('recover', '1');
  await until(({ gpus }) => gpus[1]?.healthy === true && gpus[1].temperatureC !== undefined, 'all of it again');
});

for (const [code, what] of [
  [3, 'is not supported'],
  [999, 'fails'],
] as const)
  test(`a call that ${what} is retried ever less often; its recovery is reported`, async (t) => {
    const node = await startNode(t, '--gpu', 't4');
    const lists = 'nvmlDeviceGetComputeRunningProcesses_v3';
    const faults = `nvmlDeviceGetUtilizationRates=${code},${lists}=${code}@3x2`;
    const { until, seen } = follow(t, node, 1, { COTENANT_SIM_FAULTS: faults });
    const count = ({ errors }: Sample, call: string) =>
      errors.find((one) => one.call === call && one.code === code)?.count;
    const began = Date.now(); // before the failure, which this program may read late
    const [gpu] = (await until(({ round }) => round === 4, 'the second failure')).gpus;
    t.deepEqual([gpu?.processLists.includes('compute'), gpu?.processLists.includes('graphics')], [false, true]);
    const sample = await until(({ gpus }) => gpus[0]?.processLists.includes('compute') === true, 'it answers again');
    const tookMs = Date.now() - began;
    t.true(tookMs > 1000 && tookMs < 10_000, `${tookMs} ms`);
    t.is(count(sample, lists), 2);
    t.true(seen.rounds > 10, `${seen.rounds} rounds`);
    const times = count(sample, 'nvmlDeviceGetUtilizationRates') ?? 0;
    t.true(times >= 2 && times <= 4, `${times} times in ${seen.rounds} rounds`);
  });

test('a failed list is reported by name; one that the driver lacks is not', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const faults = 'nvmlDeviceGetGraphicsRunningProcesses_v3=999@3x2,nvmlDeviceGetMPSComputeRunningProcesses_v3=3';
  const { until, seen } = follow(t, node, 1, { COTENANT_SIM_FAULTS: faults });
  const lists = ({ gpus: [gpu] }: Sample) => [gpu?.processLists, gpu?.failedProcessLists];
  const asked = ({ errors }: Sample) => errors.filter(({ code }) => code === 999).map(({ count }) => count);
  t.deepEqual(lists(await until(({ round }) => round === 2, 'all is well')), [['compute', 'graphics'], undefined]);
  t.deepEqual(lists(await until(({ round }) => round === 3, 'the first failure')), [['compute'], ['graphics']]);
  await until(({ round }) => round === 4, 'the second failure');
  const waiting = await until(({ round }) => round === 5, 'it is not asked');
  t.deepEqual([asked(waiting), lists(waiting)], [[2], [['compute'], ['graphics']]]);
  const again = await until(({ gpus }) => gpus[0]?.processLists.includes('graphics') === true, 'it answers again');
  t.deepEqual([asked(again), lists(again)], [[2], [['compute', 'graphics'], undefined]]);
  t.true(seen.rounds > 10);
});

test('a list that never answered and keeps failing is ignored after a while', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const faults = 'nvmlDeviceGetMPSComputeRunningProcesses_v3=999';
  const { until } = follow(t, node, 1, { COTENANT_SIM_FAULTS: faults });
  const failed = ({ gpus: [gpu] }: Sample) => gpu?.failedProcessLists;
  t.deepEqual(failed(await until(({ round }) => round === 60, 'a minute of samples')), ['mps']);
  const given = await until(({ round }) => round === 61, 'the next one');
  t.deepEqual([given.gpus[0]?.processLists, failed(given)], [['compute', 'graphics'], undefined]);
});

test('a driver without health readings and events is sampled', async (t) => {
  const node = await startNode(t, '--gpu', 'h100');
  const refused = [
    'nvmlDeviceGetTotalEccErrors',
    'nvmlDeviceGetRemappedRows',
    'nvmlDeviceGetCurrentClocksEventReasons',
    'nvmlDeviceGetCurrentClocksThrottleReasons',
    'nvmlDeviceGetFieldValues',
    'nvmlDeviceRegisterEvents',
  ];
  const { until } = follow(t, node, 1, { COTENANT_SIM_FAULTS: refused.map((name) => `${name}=3`).join(',') });
  await until(({ round }) => round > 2, 'some samples');
  node.control('xid', '0', '48');
  const sample = await until(({ round }) => round > 6, 'some more');
  const [gpu = {}] = sample.gpus;
  t.deepEqual(
    Object.keys(gpu).filter((name) => /^(ecc|rows|pages|throttle|pcie[RS]|nvlink)/.test(name)),
    [],
  );
  t.is(sample.gpus[0]?.reportsXids, false);
  t.deepEqual(sample.xids, []);
  for (const name of refused)
    t.true(
      sample.errors.some(({ call, code }) => call === name && code === 3),
      name,
    );
});

test('events are registered again after a failure and for a GPU that is back', async (t) => {
  const node = await startNode(t, '--gpu', 't4', '--gpu', 't4');
  const { until } = follow(t, node, 2, { COTENANT_SIM_FAULTS: 'nvmlDeviceRegisterEvents=999@1x1' });
  const reports = ({ gpus }: Sample) => gpus.map(({ reportsXids }) => reportsXids);
  t.deepEqual(reports(await until(({ round }) => round > 2, 'the first one is refused')), [false, true]);
  for (const gpu of ['1', '1']) {
    node.control('lose', gpu);
    await until(({ gpus }) => gpus[1]?.healthy === false, 'it is lost');
    node.control('recover', gpu);
    await until((sample) => reports(sample).every((one) => one === true), 'both report events');
  }
  node.control('xid', '0', '31');
  const { xids } = await until((sample) => (sample.xids?.length ?? 0) > 0, 'it is reported');
  t.like(xids?.[0], { gpu: 0, xid: 31, count: 1 });
});

test('facts of a GPU and its driver that failed are read again', async (t) => {
  const node = await startNode(t, '--gpu', 't4', '--gpu', 'l4');
  const refused = [
    'nvmlDeviceGetName',
    'nvmlDeviceGetPciInfo_v3',
    'nvmlDeviceGetMinorNumber',
    'nvmlSystemGetDriverVersion',
    'nvmlSystemGetCudaDriverVersion_v2',
  ];
  const faults = refused.map((call) => `${call}=999@1x1`).join(',');
  const { until } = follow(t, node, 2, { COTENANT_SIM_FAULTS: faults });
  const facts = ({ gpus: [gpu], driverVersion, cudaVersion }: Sample) => [
    gpu?.name,
    gpu?.pciBusId,
    gpu?.minor,
    driverVersion,
    cudaVersion,
  ];
  const first = await until(() => true, 'the first sample');
  t.deepEqual(facts(first), ['', '', undefined, '', 0]);
  t.true([first.gpus[1]?.name, first.gpus[1]?.pciBusId].every(Boolean), 'the other GPU reports them');
  node.control('lose', '1');
  await until(({ gpus }) => gpus[1]?.healthy === false, 'it is lost');
  node.control('recover', '1');
  const later = await until(({ gpus }) => gpus[0]?.minor === 0, 'another look');
  const [name, pciBusId, minor, driverVersion, cudaVersion] = facts(later);
  t.regex(String(name), /T4/);
  t.regex(String(pciBusId), /^[0-9A-F]{8}:/);
  t.is(minor, 0);
  t.regex(String(driverVersion), /^\d+\./);
  t.true(Number(cudaVersion) >= 11000);
});

test('a failed wait for events is counted and tried again', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const { until } = follow(t, node, 1, { COTENANT_SIM_FAULTS: 'nvmlEventSetWait_v2=999@1x1' });
  await until(
    ({ errors }) => errors.some(({ call, code }) => call === 'nvmlEventSetWait_v2' && code === 999),
    'it fails',
  );
  node.control('xid', '0', '31');
  await until((sample) => xidsOf(sample).some(([, xid]) => xid === 31), 'Xids of the meantime are reported');
});

test('events that cannot be registered are not waited for, and are no errors', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const faults = 'nvmlDeviceRegisterEvents=3,nvmlEventSetWait_v2=3';
  const { until } = follow(t, node, 1, { COTENANT_SIM_FAULTS: faults });
  let samples = 0;
  let registrations = 0;
  await until(({ errors }) => {
    t.false(
      errors.some(({ call }) => call.startsWith('nvmlEventSet')),
      'no GPU has registered events',
    );
    registrations = errors.find(({ call }) => call === 'nvmlDeviceRegisterEvents')?.count ?? registrations;
    samples++;
    return samples >= 20;
  }, 'twenty samples');
  t.true(registrations <= 3, `registered ${registrations} times in ${samples} samples`);
});

const SMS = 132; // of the simulated H100
const activityOf = (sample: Sample, gpu = 0) =>
  Object.fromEntries(Object.entries(sample.gpus[gpu] ?? {}).filter(([name]) => /(Active|Occupancy)Ppm$/.test(name)));
const failures = (sample: Sample) =>
  sample.errors.filter(({ call }) => call.startsWith('nvmlGpm')).map(({ call, code, count }) => [call, code, count]);

test('GPM readings are reported from the second sample on, in parts per million', async (t) => {
  const node = await startNode(t, '--gpu', 'h100', '--gpu', 'a100');
  node.control('activity', '0', 'occupancy', '20');
  const { until } = follow(t, node, 2);
  t.deepEqual(activityOf(await until(() => true, 'the first sample')), {}, 'there is nothing to hold it against');
  const idle = await until((sample) => activityOf(sample).smActivePpm !== undefined, 'figures');
  t.deepEqual(activityOf(idle), { graphicsActivePpm: 0, smActivePpm: 0, smOccupancyPpm: 0 });
  const tenant = await readyClient(t, node);
  await tenant.must(`grid ${SMS / 2}`);
  const busy = tenant.must('spin 6000 500');
  const sample = await until((one) => Number(activityOf(one).smActivePpm) > 0, 'figures of work');
  await busy;
  const { graphicsActivePpm, smActivePpm, smOccupancyPpm } = activityOf(sample) as Record<string, number>;
  t.true(graphicsActivePpm !== undefined && graphicsActivePpm <= 1_000_000, String(graphicsActivePpm));
  t.true(Math.abs(Number(graphicsActivePpm) / 2 - Number(smActivePpm)) <= 10, `${graphicsActivePpm} ${smActivePpm}`);
  t.true(Math.abs(Number(graphicsActivePpm) / 5 - Number(smOccupancyPpm)) <= 10, String(smOccupancyPpm));
  t.deepEqual(activityOf(sample, 1), {}, 'a GPU before Hopper');
  t.deepEqual(failures(sample), [], 'and that is no failure');
});

test('GPM is not tried again without the calls or the permission', async (t) => {
  const old = await startNode(t, '--gpu', 'h100', '--driver', '515.105.01');
  const node = await startNode(t, '--gpu', 'h100', '--gpu', 'h100');
  const before = follow(t, old, 1);
  const denied = follow(t, node, 2, { COTENANT_SIM_FAULTS: 'nvmlGpmSampleGet=4' });
  const from = Date.now();
  const later = (sample: Sample) => Date.now() - from > 7000 && sample.round > 3; // the next sample would have been due
  const [without, refused] = await Promise.all([before.until(later, 'later'), denied.until(later, 'later')]);
  t.deepEqual([activityOf(without), failures(without)], [{}, []]);
  t.is(without.gpus[0]?.gpmDenied, undefined);
  t.deepEqual(failures(refused), [['nvmlGpmSampleGet', 4, 2]], 'once for each GPU');
  for (const gpu of [0, 1]) {
    t.deepEqual(activityOf(refused, gpu), {});
    t.is(refused.gpus[gpu]?.gpmDenied, true);
  }
});

test('GPM is tried again after any other failure', async (t) => {
  const node = await startNode(t, '--gpu', 'h100');
  const faults = 'nvmlGpmSampleGet=999@1x1,nvmlGpmMetricsGet=999@1x1,nvmlGpmSampleAlloc=20@2x1';
  const { until } = follow(t, node, 1, { COTENANT_SIM_FAULTS: faults });
  const sample = await until((one) => activityOf(one).smActivePpm !== undefined, 'figures');
  t.deepEqual(failures(sample).toSorted(), [
    ['nvmlGpmMetricsGet', 999, 1],
    ['nvmlGpmSampleAlloc', 20, 1],
    ['nvmlGpmSampleGet', 999, 1],
  ]);
});

test('each MIG instance has its own GPM readings', async (t) => {
  const node = await startNode(t, '--gpu', 'h100,mig=1g.10gb+3g.40gb');
  const { until } = follow(t, node, 3);
  const idle = await until((sample) => activityOf(sample, 2).smActivePpm !== undefined, 'figures');
  t.deepEqual(
    [0, 1, 2].map((gpu) => activityOf(idle, gpu).smActivePpm),
    [undefined, 0, 0],
  );
  const tenant = await readyClient(t, node, { env: { CUDA_VISIBLE_DEVICES: String(idle.gpus[1]?.uuid) } });
  const busy = tenant.must('spin 6000 500');
  const sample = await until((one) => Number(activityOf(one, 1).smActivePpm) > 0, 'figures of work');
  await busy;
  t.deepEqual([activityOf(sample, 0), activityOf(sample, 2).smActivePpm], [{}, 0]);
  t.deepEqual(failures(sample), []);
});
