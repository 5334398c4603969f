// Metrics under other exporters' names: whole, against a golden file, and what must hold of their sums.
// After a wanted change: UPDATE_GOLDEN=1 ava test/unit/exporter/compat.test.ts
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import type { Snapshot, SnapshotContainer } from '../../../src/agent/snapshot/snapshot.ts';
import { COMPAT_LIST, COMPAT_NAMES } from '../../../src/api/compat-exporters.ts';
import { compatCollectors } from '../../../src/exporter/compat/index.ts';
import { COLLECTORS, createRenderer } from '../../../src/exporter/render.ts';
import { seriesOf } from '../../support/product/agent.ts';
import { exampleContainer, exampleSnapshot, withInstance } from '../../support/product/snapshots.ts';
import { KNOWN_BOARDS } from '../../support/services/known-boards.ts';

const GOLDEN = join(import.meta.dirname, '../../golden/metrics/compat.txt');
const GIB = 2 ** 30;
const CONTEXT = { nodeName: 'node-a' };
const collectors = (names: string) => compatCollectors(names, CONTEXT);
const pageOf = async (names: string, snapshot = exampleSnapshot) =>
  (await createRenderer(collectors(names))(snapshot)).text;
const own = (page: string) =>
  page
    .split('\n')
    .filter((line) => !/cotenant_exporter_/.test(line))
    .join('\n')
    .trim();

test('compatibility metrics match the golden file', async (t) => {
  const shown = `${own(await pageOf(COMPAT_NAMES.join(','), withInstance))}\n`;
  if (process.env.UPDATE_GOLDEN) writeFileSync(GOLDEN, shown);
  t.is(shown, readFileSync(GOLDEN, 'utf8'));
});

test('dashboards of other exporters find every metric that they query', async (t) => {
  const metric = /\b(?:DCGM|hami|metagpu|Host|Device|vGPU)_?\w*[a-zA-Z]\w+(?=[{ )]|$)/g;
  for (const { set, from, queries } of KNOWN_BOARDS) {
    const page = await pageOf(set, withInstance);
    for (const query of queries) {
      const names = query.match(metric) ?? [];
      t.true(names.length > 0, query);
      // What is a rate is there from the second page on: test/integration/agent/exporter/compat.test.ts.
      for (const name of names.filter((one) => !/COPY_UTIL|CODE_UTIL|ILLEGAL_PROCESS_SM/.test(one)))
        t.not(seriesOf(page, name), undefined, `${from}: ${name}`);
    }
  }
});

test('metrics that are always 0 in HAMi are absent', async (t) => {
  const page = await pageOf('hami', withInstance);
  t.not(seriesOf(page, 'hami_vgpu_memory_context_bytes'), undefined);
  t.not(seriesOf(page, 'hami_vgpu_memory_buffer_bytes'), undefined);
  t.is(seriesOf(page, 'hami_vgpu_memory_module_bytes'), undefined);
});

test('a MIG instance has the labels of its GPU, profile and instance number', async (t) => {
  const page = await pageOf('dcgm,hami,hami-legacy', withInstance);
  const dcgm = { UUID: 'GPU-1', gpu: '1', GPU_I_PROFILE: '1g.6gb', GPU_I_ID: '7' };
  t.is(seriesOf(page, 'DCGM_FI_PROF_GR_ENGINE_ACTIVE', dcgm), 0.25);
  t.is(seriesOf(page, 'DCGM_FI_DEV_FB_TOTAL', { ...dcgm, pod: 'sliced' }), 6 * 1024);
  t.is(seriesOf(page, 'DCGM_FI_DEV_FB_TOTAL', { UUID: 'GPU-0', GPU_I_PROFILE: '', GPU_I_ID: '' }), 24 * 1024);
  t.is(
    seriesOf(page, 'hami_mig_device_info', {
      ...{ namespace: 'team', pod: 'sliced', container: 'main', vdevice_index: '0', device_uuid: 'GPU-1' },
      ...{ mig_uuid: 'MIG-2', profile: '1g.6gb', gpu_instance_id: '7', compute_instance_id: '0' },
    }),
    1,
  );
  t.is(seriesOf(page, 'MigInfo', { podname: 'sliced', deviceuuid: 'GPU-1', instanceid: '7' }), 1);
  t.is(seriesOf(page, 'hami_mig_device_info'), 1, 'no other container has one');
});

test('PCIe and NVLink rates begin after ten seconds of readings', async (t) => {
  const make = createRenderer(collectors('dcgm'));
  const at = async (seconds: number, gigabytes: number | undefined) => {
    const devices = exampleSnapshot.devices.map((device) => ({
      ...device,
      gpu: { ...device.gpu, pcieSentBytes: device.gpu.index === 0 ? gigabytes && gigabytes * 1e9 : undefined },
    })) as typeof exampleSnapshot.devices;
    const { text } = await make({ ...exampleSnapshot, atMs: exampleSnapshot.atMs + 1000 * seconds, devices });
    return seriesOf(text, 'DCGM_FI_PROF_PCIE_TX_BYTES');
  };
  t.is(await at(0, 4), undefined);
  t.is(await at(5, 6), undefined, 'too short');
  t.is(await at(10, 9), 0.5e9);
  t.is(await at(16, 9.3), 0.3e9, 'since the reading of ten seconds ago');
  t.is(await at(46, 9.3), 0);
  t.is(await at(76, 1), undefined, 'the driver counts anew');
  t.is(await at(86, 3), 0.2e9);
  t.is(await at(96, undefined), undefined);
  t.is(await at(126, 9), undefined, 'a missing reading is not made up');
});

test('ACK: type of a process, and engine use of single processes', async (t) => {
  const make = createRenderer(collectors('ack'));
  const one = (types: number) => [{ pid: 100, command: 'x', usedBytes: 1, smPercent: 1, types, inLedger: true }];
  const pageAt = async (seconds: number, container: SnapshotContainer, more: Partial<Snapshot> = {}) => {
    const containerTotals = exampleSnapshot.containerTotals.map((totals) => ({
      ...totals,
      memoryBusySeconds: seconds / 4,
      encoderSeconds: seconds / 2,
    }));
    const atMs = exampleSnapshot.atMs + 1000 * seconds;
    return (await make({ ...exampleSnapshot, assigned: [], atMs, containers: [container], containerTotals, ...more }))
      .text;
  };
  const types = [1, 2, 3, 4, 7].map(async (bits) => {
    const text = await pageAt(0, { ...exampleContainer, processes: one(bits) });
    return /PROCESS_MEM_USED\{.*ProcessType="([^"]*)"/.exec(text)?.[1];
  });
  t.deepEqual(await Promise.all(types), ['C', 'G', 'C+G', 'M+C', 'M+C+G']);
  const alone = { ...exampleContainer, processes: one(1) };
  await pageAt(100, alone);
  const foreignTotals = exampleSnapshot.foreignTotals.map((totals) => ({
    ...totals,
    smSeconds: totals.smSeconds + 4,
    memoryBusySeconds: totals.memoryBusySeconds + 3,
    decoderSeconds: totals.decoderSeconds + 2,
  }));
  const page = await pageAt(120, alone, { foreignTotals });
  t.is(seriesOf(page, 'DCGM_CUSTOM_PROCESS_MEM_COPY_UTIL', { ProcessId: '100' }), 25);
  t.is(seriesOf(page, 'DCGM_CUSTOM_PROCESS_ENCODE_UTIL', { ProcessId: '100' }), 50);
  t.is(seriesOf(page, 'DCGM_CUSTOM_PROCESS_DECODE_UTIL', { ProcessId: '100' }), 0);
  for (const [engine, percent] of [
    ['SM', 20],
    ['MEM_COPY', 15],
    ['ENCODE', 0],
    ['DECODE', 10],
  ] as const)
    t.is(seriesOf(page, `DCGM_CUSTOM_ILLEGAL_PROCESS_${engine}_UTIL`), percent, engine);
  t.is(seriesOf(await pageAt(140, exampleContainer), 'DCGM_CUSTOM_PROCESS_ENCODE_UTIL'), undefined, 'one of two');
});

test('compatibility metrics are off by default and have names of their own', async (t) => {
  t.deepEqual(collectors(''), []);
  t.deepEqual(
    collectors('hami, dcgm').map(({ name }) => name),
    ['compat-dcgm', 'compat-hami'],
  );
  for (const names of ['dcgm-hostname', 'dcgm,dcgm-hostname', 'dcgm-hostname,dcgm']) {
    t.true(COMPAT_LIST.test(names));
    const [before, now] = [own(await pageOf('dcgm')), own(await pageOf(names))];
    t.regex(before, /,Hostname="node-a",/);
    t.is(now, before.replaceAll(',Hostname="', ',hostname="'), names);
  }
  t.deepEqual(
    ['', 'dcgm', 'ack,hami-legacy', 'dcgm,,', 'gpu', 'constructor'].map((list) => COMPAT_LIST.test(list)),
    [true, true, true, false, false, false],
  );
  const names = (page: string) => [...page.matchAll(/^# TYPE (\S+)/gm)].map(([, name]) => name ?? '');
  const all = names(own(await pageOf(COMPAT_NAMES.join(','))));
  t.is(new Set(all).size, all.length);
  const ours = new Set(names((await createRenderer(COLLECTORS)(exampleSnapshot)).text));
  t.deepEqual(
    all.filter((name) => ours.has(name)),
    [],
  );
});

test('DCGM: the last Xid, 0 before the first, absent without Xid events', async (t) => {
  const xid = (code: string, lastMs: number | undefined, gpuUuid = 'GPU-0') => ({
    gpuUuid,
    gpuIndex: 0,
    xid: code,
    count: 1,
    lastMs,
  });
  const xidOf = async (...xids: ReturnType<typeof xid>[]) =>
    seriesOf(await pageOf('dcgm', { ...exampleSnapshot, xids }), 'DCGM_FI_DEV_XID_ERRORS', { UUID: 'GPU-0' });
  t.is(await xidOf(xid('79', 1000), xid('31', 3000), xid('13', 2000), xid('48', undefined)), 31);
  t.is(await xidOf(xid('48', undefined), xid('79', 1000, 'GPU-1')), 0);
  t.is(await xidOf(xid('other', 1000)), undefined);
  const page = await pageOf('dcgm', { ...exampleSnapshot, xids: [] });
  t.is(seriesOf(page, 'DCGM_FI_DEV_XID_ERRORS', { UUID: 'GPU-1' }), undefined);
});

test('sums over compatibility metrics of GPUs are right', async (t) => {
  const two = { ...exampleContainer, grantId: 'g2', pod: 'second' };
  const page = await pageOf('dcgm,hami', { ...exampleSnapshot, containers: [exampleContainer, two] });
  const usedMib = exampleSnapshot.devices.reduce((sum, { gpu }) => sum + (gpu.usedBytes ?? 0), 0) / 2 ** 20;
  t.is(seriesOf(page, 'DCGM_FI_DEV_FB_USED'), usedMib);
  t.is(seriesOf(page, 'hami_host_gpu_memory_used_bytes'), usedMib * 2 ** 20);
  // A whole GPU has its container's labels, a shared one none.
  t.is(seriesOf(page, 'DCGM_FI_DEV_FB_USED', { UUID: 'GPU-1', pod: 'whole', namespace: 'team' }), 6 * 1024);
  t.is(seriesOf(page, 'DCGM_FI_DEV_FB_USED', { UUID: 'GPU-0', pod: '' }), 6 * 1024);
  t.is(seriesOf(page, 'hami_vgpu_memory_used_bytes', { pod: 'second' }), exampleContainer.usedBytes);
});

test('compatibility metrics without a reading are absent', async (t) => {
  const unknown = {
    ...exampleContainer,
    memoryKnown: false,
    processes: [{ pid: 1, command: 'x', smPercent: 0, types: 1, inLedger: true }],
  };
  const page = await pageOf(COMPAT_NAMES.join(','), { ...exampleSnapshot, containers: [unknown], assigned: [] });
  for (const name of ['hami_vgpu_memory_used_bytes', 'metagpu_process_memory_usage', 'DCGM_CUSTOM_PROCESS_MEM_USED'])
    t.is(seriesOf(page, name), undefined, name);
  t.is(seriesOf(page, 'DCGM_FI_DEV_GPU_TEMP', { UUID: 'GPU-1' }), undefined);
  t.notRegex(page, / (NaN|undefined)$/m);
});

test('MetaGPU: the idle containers of a pod on a GPU are one series', async (t) => {
  const idle = { ...exampleContainer, processes: [], usedBytes: 0, smPercent: 0 };
  const containers = [
    { ...idle, limitBytes: GIB, coresPercent: 20 },
    { ...idle, container: 'side', grantId: 'g2', limitBytes: 3 * GIB, coresPercent: 30, usedBytes: GIB },
    { ...idle, container: 'far', grantId: 'g3', gpuUuid: 'GPU-1', gpuIndex: 1, limitBytes: 5 * GIB },
  ];
  const of = async (snapshot: Snapshot) => {
    const page = await pageOf('metagpu', snapshot);
    const labels = { pod_name: exampleContainer.pod, uuid: 'GPU-0', pid: '-' };
    const figures = ['memory_usage', 'max_allowed_metagpu_memory', 'metagpu_relative_memory_utilization'];
    return [...figures, 'max_allowed_metagpu_gpu_utilization'].map((name) =>
      seriesOf(page, `metagpu_process_${name}`, labels),
    );
  };
  const snapshot = { ...exampleSnapshot, assigned: [] };
  t.deepEqual(await of({ ...snapshot, containers }), [1024, 4096, 25, 50]);
  t.deepEqual(await of({ ...snapshot, containers: containers.toReversed() }), [1024, 4096, 25, 50]);
  const unknown = containers.map((one) => ({ ...one, memoryKnown: one.container !== 'side' }));
  t.deepEqual(await of({ ...snapshot, containers: unknown }), [undefined, 4096, undefined, 50]);
  const whole = containers.map((one) => ({ ...one, coresPercent: 0 }));
  t.deepEqual(await of({ ...snapshot, containers: whole }), [1024, 4096, 25, 100]);
});

test('processes beyond the limit count as dropped', async (t) => {
  const process = { command: 'python3', types: 1, usedBytes: 1, smPercent: 0, inLedger: true };
  const processes = Array.from({ length: 57 }, (_, pid) => ({ ...process, pid }));
  const snapshot = { ...exampleSnapshot, assigned: [], containers: [{ ...exampleContainer, processes }] };
  for (const set of ['metagpu', 'ack']) {
    const make = createRenderer(collectors(set));
    await make(snapshot);
    const dropped = seriesOf((await make(snapshot)).text, 'cotenant_exporter_series_dropped_total', {
      collector: `compat-${set}`,
    });
    t.is(dropped, 7 + 7, `${set}: with each page`);
  }
});
