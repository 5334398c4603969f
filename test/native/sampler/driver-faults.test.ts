import test from 'ava';
import { readyClient } from '../../support/native/client.ts';
import { startNode } from '../../support/native/node.ts';
import { follow, type Sample, xidsOf } from './following.ts';

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
    // By the sampler's clock, however late this program reads its lines.
    const tookMs = sample.atMs - began;
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
