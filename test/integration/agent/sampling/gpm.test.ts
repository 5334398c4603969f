// What GPUs count of their own parts (GPM), from the driver to the page: where a GPU, a driver or a right is missing,
// there is no figure.
import test from 'ava';
import { readyClient } from '../../../support/native/client.ts';
import { eventually, type SimulatedNode, startNode } from '../../../support/native/node.ts';
import { type RunningAgent, seriesOf, startAgent } from '../../../support/product/agent.ts';

const NAMES = ['graphics_active', 'sm_active', 'sm_occupancy', 'tensor_active', 'dram_active', 'fp32_active'];
const SM_ACTIVE = 'cotenant_device_sm_active_ratio';
const SMS = 132; // of the simulated H100
/** Calibration puts work on the GPUs, too. */
const SETTINGS = { intervalMs: 100, urgentIntervalMs: 100, calibrate: false };

const reportedOn = (page: string, labels: Record<string, string> = {}) =>
  NAMES.map((name) => seriesOf(page, `cotenant_device_${name}_ratio`, labels));
const reported = async (agent: RunningAgent, labels: Record<string, string> = {}) =>
  reportedOn(await agent.metrics(), labels);
const gpu = (node: SimulatedNode, index: number) => ({ gpu: String(index), gpu_uuid: node.uuid(index) });

test('GPM shows how little of a GPU small kernels take; before Hopper there is no data', async (t) => {
  t.timeout(180_000);
  const node = await startNode(t, '--gpu', 'h100', '--gpu', 'a100');
  node.control('activity', '0', 'dram', '50');
  const agent = await startAgent(t, node, { settings: { ...SETTINGS, compatibilityMetrics: 'dcgm' } });
  await eventually(async () => (await agent.metric(SM_ACTIVE)) === 0 || undefined, 'an idle GPU');
  t.deepEqual(await reported(agent, gpu(node, 0)), [0, 0, undefined, undefined, 0, undefined]);

  const tenant = await readyClient(t, node);
  await tenant.must(`grid ${SMS / 4}`);
  void tenant.ask('spin 300000 5000').catch(() => {}); // it is killed at it
  // The first figures are of a time in which it did not run all along.
  const page = await eventually(async () => {
    // All of one page: the next one may have other figures.
    const dcgm = await agent.metrics();
    const [graphics = 0, sm] = reportedOn(dcgm, gpu(node, 0));
    return graphics > 0.5 ? { graphics, sm, dcgm } : undefined;
  }, 'a busy GPU');
  await tenant.kill();
  t.true(page.graphics <= 1, String(page.graphics));
  t.true(
    Math.abs((page.sm ?? 0) - page.graphics / 4) < 0.001,
    `${page.sm} of the SMs, of ${page.graphics} of the time`,
  );
  t.regex(page.dcgm, new RegExp(`^DCGM_FI_PROF_SM_ACTIVE\\{gpu="0",.*\\} ${page.sm}$`, 'm'));
  t.regex(page.dcgm, /^DCGM_FI_PROF_DRAM_ACTIVE\{gpu="0",/m);
  t.notRegex(page.dcgm, /^DCGM_FI_PROF_PIPE_TENSOR_ACTIVE\{/m);
  // Traffic of links, which every GPU counts, is there after ten seconds.
  t.notRegex(page.dcgm, /^DCGM_FI_PROF_(?!PCIE|NVLINK)\w+\{gpu="1",/m);
  t.deepEqual(await reported(agent, gpu(node, 1)), Array(NAMES.length).fill(undefined));
  t.is(await agent.metric('cotenant_exporter_nvml_errors_total', { call: 'nvmlGpmSampleGet' }), undefined);
});

test('without permission for the counters one log line and one failure; the rest works', async (t) => {
  t.timeout(180_000);
  const node = await startNode(t, '--gpu', 'h100');
  const agent = await startAgent(t, node, { settings: SETTINGS, env: { COTENANT_SIM_FAULTS: 'nvmlGpmSampleGet=4' } });
  const failures = () => agent.metric('cotenant_exporter_nvml_errors_total', { call: 'nvmlGpmSampleGet', code: '4' });
  await eventually(async () => (await failures()) === 1 || undefined, 'it is refused');
  const from = Date.now();
  await eventually(() => Date.now() - from > 6000 || undefined, 'the time of another sample of the counters');
  t.is(await failures(), 1);
  t.deepEqual(await reported(agent), Array(NAMES.length).fill(undefined));
  const said = agent.log.filter((line) => line.includes('CAP_PERFMON'));
  t.is(said.length, 1, agent.log.join('\n'));
  t.true(said[0]?.includes(node.uuid(0)));
  t.is(await agent.metric('cotenant_up'), 1);
  t.true((await agent.metric('cotenant_device_memory_total_bytes')) !== undefined);
});

test('an old driver has no GPM data and is not asked', async (t) => {
  t.timeout(180_000);
  const node = await startNode(t, '--gpu', 'h100', '--driver', '515.105.01');
  const agent = await startAgent(t, node, { settings: SETTINGS });
  const from = Date.now();
  await eventually(() => Date.now() - from > 3000 || undefined, 'the time of two samples of the counters');
  t.deepEqual(await reported(agent), Array(NAMES.length).fill(undefined));
  t.true((await agent.metric('cotenant_device_memory_total_bytes')) !== undefined);
  t.notRegex(await agent.metrics(), /nvmlGpm/);
});
