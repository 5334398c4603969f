import test from 'ava';
import { readyClient } from '../../support/native/client.ts';
import { startNode } from '../../support/native/node.ts';
import { follow, type Sample } from './following.ts';

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
