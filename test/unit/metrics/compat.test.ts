// Families under other exporters' names: whole, against a golden file, and what must hold of their sums.
// After a wanted change: UPDATE_GOLDEN=1 ava test/unit/metrics/compat.test.ts
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { COMPAT_NAMES, compatFamilies, isCompatList } from '../../../src/agent/metrics/compat/sets.ts';
import { createPage, FAMILIES } from '../../../src/agent/metrics/page.ts';
import { seriesOf } from '../../support/agent.ts';
import { exampleContainer, exampleView } from '../../support/views.ts';

const GOLDEN = join(import.meta.dirname, '../../golden/metrics/compat.txt');
const CONTEXT = { nodeName: 'node-a' };
const families = (names: string) => compatFamilies(names, CONTEXT);
const pageOf = async (names: string, view = exampleView) => (await createPage(families(names))(view)).text;
const own = (page: string) =>
  page
    .split('\n')
    .filter((line) => !/cotenant_exporter_/.test(line))
    .join('\n')
    .trim();

test('the families are the golden ones', async (t) => {
  const shown = `${own(await pageOf(COMPAT_NAMES.join(',')))}\n`;
  if (process.env.UPDATE_GOLDEN) writeFileSync(GOLDEN, shown);
  t.is(shown, readFileSync(GOLDEN, 'utf8'));
});

/**
 * What boards that people have ask of a page: dcgm-exporter's (Grafana 12239, as its repository has it and as it was before) and
 * HAMi's. A label that only the scrape gives, such as node_name, is left out.
 */
const BOARDS: Readonly<Record<string, readonly string[]>> = {
  dcgm: [
    'DCGM_FI_DEV_FB_FREE{Hostname=node-a,gpu=0}',
    'DCGM_FI_DEV_GPU_TEMP{Hostname=node-a,gpu=0}',
    'DCGM_FI_DEV_POWER_USAGE{Hostname=node-a,gpu=0}',
    'DCGM_FI_DEV_SM_CLOCK{Hostname=node-a,gpu=0,UUID=GPU-0}',
    'DCGM_FI_PROF_GR_ENGINE_ACTIVE{Hostname=node-a,gpu=0}',
    'DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{Hostname=node-a,gpu=0}',
    'DCGM_FI_DEV_FB_USED{Hostname=node-a,gpu=0}',
    'DCGM_FI_DEV_GPU_UTIL{gpu=0}',
  ],
  'hami-legacy': [
    'vGPU_device_memory_limit_in_bytes{podname=train}',
    'Device_memory_desc_of_container{podname=train}',
    'HostGPUMemoryUsage{nodeid=node-a,deviceuuid=GPU-0}',
    'HostCoreUtilization{nodeid=node-a,deviceuuid=GPU-0}',
  ],
};

test('boards that people have find what they ask for, under the labels that they ask by', async (t) => {
  for (const [name, queries] of Object.entries(BOARDS)) {
    const page = await pageOf(name);
    for (const query of queries) {
      const [, metric = '', matchers = ''] = /^(\w+)\{(.*)\}$/.exec(query) ?? [];
      const labels = Object.fromEntries(matchers.split(',').map((pair) => pair.split('=') as [string, string]));
      t.not(seriesOf(page, metric, labels), undefined, query);
    }
  }
});

test('none is there unless it is asked for, and each by its own name', async (t) => {
  t.deepEqual(families(''), []);
  t.deepEqual(
    families('hami, dcgm').map(({ name }) => name),
    ['compat-dcgm', 'compat-hami'],
  );
  t.deepEqual(['', 'dcgm', 'ack,hami-legacy', 'dcgm,,', 'gpu', 'constructor'].map(isCompatList), [
    true,
    true,
    true,
    false,
    false,
    false,
  ]);
  const names = (page: string) => [...page.matchAll(/^# TYPE (\S+)/gm)].map(([, name]) => name ?? '');
  const all = names(own(await pageOf(COMPAT_NAMES.join(','))));
  t.is(new Set(all).size, all.length);
  const ours = new Set(names((await createPage(FAMILIES)(exampleView)).text));
  t.deepEqual(
    all.filter((name) => ours.has(name)),
    [],
  );
});

test("dcgm-exporter's Xid is the newest of the card, 0 before the first, and absent where the driver tells of none", async (t) => {
  const xid = (code: string, lastMs: number | undefined, gpuUuid = 'GPU-0') => ({
    gpuUuid,
    gpuIndex: 0,
    xid: code,
    count: 1,
    lastMs,
  });
  const told = async (...xids: ReturnType<typeof xid>[]) =>
    seriesOf(await pageOf('dcgm', { ...exampleView, xids }), 'DCGM_FI_DEV_XID_ERRORS', { UUID: 'GPU-0' });
  t.is(await told(xid('79', 1000), xid('31', 3000), xid('13', 2000), xid('48', undefined)), 31);
  t.is(await told(xid('48', undefined), xid('79', 1000, 'GPU-1')), 0);
  t.is(await told(xid('other', 1000)), undefined);
  const page = await pageOf('dcgm', { ...exampleView, xids: [] });
  t.is(seriesOf(page, 'DCGM_FI_DEV_XID_ERRORS', { UUID: 'GPU-1' }), undefined);
});

test('sums over a family of cards are the cards', async (t) => {
  const two = { ...exampleContainer, grantId: 'g2', pod: 'second' };
  const page = await pageOf('dcgm,hami', { ...exampleView, containers: [exampleContainer, two] });
  const usedMib = exampleView.devices.reduce((sum, { card }) => sum + (card.usedBytes ?? 0), 0) / 2 ** 20;
  t.is(seriesOf(page, 'DCGM_FI_DEV_FB_USED'), usedMib);
  t.is(seriesOf(page, 'hami_host_gpu_memory_used_bytes'), usedMib * 2 ** 20);
  // A whole card carries its holder's name, a shared one nobody's.
  t.is(seriesOf(page, 'DCGM_FI_DEV_FB_USED', { UUID: 'GPU-1', pod: 'whole', namespace: 'team' }), 6 * 1024);
  t.is(seriesOf(page, 'DCGM_FI_DEV_FB_USED', { UUID: 'GPU-0', pod: '' }), 6 * 1024);
  t.is(seriesOf(page, 'hami_vgpu_memory_used_bytes', { pod: 'second' }), exampleContainer.usedBytes);
});

test('what the driver does not tell is absent under these names, too', async (t) => {
  const untold = {
    ...exampleContainer,
    bytesTold: false,
    processes: [{ pid: 1, command: 'x', smPercent: 0, inLedger: true }],
  };
  const page = await pageOf(COMPAT_NAMES.join(','), { ...exampleView, containers: [untold], assigned: [] });
  for (const name of ['hami_vgpu_memory_used_bytes', 'metagpu_process_memory_usage', 'DCGM_CUSTOM_PROCESS_MEM_USED'])
    t.is(seriesOf(page, name), undefined, name);
  t.is(seriesOf(page, 'DCGM_FI_DEV_GPU_TEMP', { UUID: 'GPU-1' }), undefined);
  t.notRegex(page, / (NaN|undefined)$/m);
});
