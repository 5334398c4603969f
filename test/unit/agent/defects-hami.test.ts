// What HAMi's monitor gets wrong, as defects.test.ts has it of others; what they have in common is there.
import test from 'ava';
import { accumulate } from '../../../src/agent/counters/accumulate.ts';
import { MIB } from '../../../src/common/quantity.ts';
import { seriesOf } from '../../support/product/agent.ts';
import { compared, gpu, ledgerOf, ofGrant, owners, reading, row, sampledProcess, sampleOf, slot, use } from './node.ts';
import { follow, pod, show, used } from './pages.ts';

test('HAMi: a ratio is a part of 1 for GPUs and containers alike', async (t) => {
  const parts = {
    ...{ utilizationPercent: 50, memoryBusyPercent: 50, encoderPercent: 50, decoderPercent: 50 },
    ...{ graphicsActivePpm: 500_000, smActivePpm: 500_000, smOccupancyPpm: 500_000 },
    ...{ tensorActivePpm: 500_000, dramActivePpm: 500_000, fp32ActivePpm: 500_000 },
  };
  const sample = sampleOf([gpu(0, parts)], [sampledProcess(1, [use(0, { bytes: MIB, smPercent: 50 })])]);
  const grant = pod('a', 'main');
  const gpus = grant.gpus.map((one) => ({ ...one, coresPercent: 50 }));
  const page = await show(follow([sample], [{ ...grant, gpus }], { 1: ofGrant('a') }).state);
  const ratios = page.split('\n').filter((line) => /^cotenant_\w+_ratio\{/.test(line));
  t.true(new Set(ratios.map((line) => line.split('{')[0])).size >= 13, 'eleven of a GPU, two of a container');
  for (const line of ratios) t.is(Number(line.split(' ').at(-1)), 0.5, line);
});

test('HAMi 281, 1794: a container shows 0 before it uses its GPU, until its grant ends', async (t) => {
  const idle = sampleOf([gpu(0)], []);
  const busy = sampleOf([gpu(0)], [sampledProcess(1, [use(0, { bytes: MIB, smUs: 1_000_000 })])]);
  t.is(used(await show(follow([idle], [pod('a', 'main')], {}).state), { container: 'main' }), 0);
  const during = follow([busy], [pod('a', 'main')], { 1: ofGrant('a') });
  const after = compared({ ...idle, atMs: idle.atMs + 5000 }, [], {});
  const page = await show(after, accumulate(during.totals, after, owners({})));
  t.is(used(page, {}), undefined);
  t.is(seriesOf(page, 'cotenant_container_sm_seconds_total', { container: 'main' }), 1);
});

test('HAMi 863, 2158: a container with two GPUs has a figure and a verdict on each', async (t) => {
  const sample = sampleOf(
    [gpu(0), gpu(1)],
    [
      sampledProcess(1, [use(0, { bytes: 100 * MIB }), use(1, { bytes: 5000 * MIB })]),
      sampledProcess(2, [use(0, { bytes: 700 * MIB })]),
    ],
  );
  const grants = [pod('a', 'main', 1000, [0, 1]), pod('b', 'side', 1000)];
  const { state } = follow([sample], grants, { 1: ofGrant('a'), 2: ofGrant('b') });
  const page = await show(state);
  t.is(used(page, { container: 'main', gpu: '0' }), 100 * MIB);
  t.is(used(page, { container: 'main', gpu: '1' }), 5000 * MIB);
  t.is(used(page, { container: 'side', gpu: '0' }), 700 * MIB);
  t.is(used(page, { container: 'side', gpu: '1' }), undefined);
  t.deepEqual(
    state.containers.map(({ verdict }) => verdict.severity !== 'within'),
    [true, false],
  );
});

test('HAMi: what a tenant writes into its ledger is reported apart from driver figures', async (t) => {
  const sample = sampleOf([gpu(0)], [sampledProcess(1, [use(0, { bytes: 300 * MIB })])]);
  const forged = ledgerOf([slot(1, [row({ heldBytes: 2 ** 50 })])]);
  const page = await show(compared(sample, [reading(pod('a', 'main'), forged)], { 1: ofGrant('a') }));
  t.is(used(page, {}), 300 * MIB);
  t.is(seriesOf(page, 'cotenant_container_memory_ledger_bytes', { kind: 'buffer' }), 2 ** 50);
});

test('HAMi 2561: a UUID is shown whole, however long', async (t) => {
  const uuid = `MIG-GPU-${'0'.repeat(60)}/13/0`;
  t.is(
    seriesOf(await show(follow([sampleOf([gpu(0, { uuid })], [])], [], {}).state), 'cotenant_device_healthy', {
      gpu_uuid: uuid,
    }),
    1,
  );
});
