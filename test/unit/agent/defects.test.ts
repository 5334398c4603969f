// What other exporters and enforcers for shared GPUs get wrong, by their sources and their users' reports: each is a
// case that ours must get right, from a sample of the driver to the page, or to the verdict. What needs a driver, a
// kubelet or a network to be seen is tested where those are (native/sampler, integration/agent/kube,
// integration/agent/page). HAMi's are in defects-hami.test.ts.
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { ownerOfProcess } from '../../../src/agent/attribution/attribute.ts';
import { configure } from '../../../src/agent/config.ts';
import type { Grant } from '../../../src/agent/grants/grant.ts';
import { ownerOf } from '../../../src/agent/os/cgroup.ts';
import type { Sample, SampledProcess } from '../../../src/agent/sampling/sample.ts';
import { createRecorder } from '../../../src/agent/snapshot/history.ts';
import { createLocalSource } from '../../../src/agent/snapshot/source.ts';
import { MIB } from '../../../src/common/quantity.ts';
import { createExporter } from '../../../src/exporter/routes.ts';
import { placePod } from '../../../src/placement/place-pod.ts';
import { startHttpServer } from '../../../src/serving/http-server.ts';
import { seriesOf } from '../../support/product/agent.ts';
import { NO_PODS } from './attribution/no-pods.ts';
import {
  compared,
  gpu,
  grantOf,
  ledgerOf,
  ofContainer,
  ofGrant,
  reading,
  row,
  sampledProcess,
  sampleOf,
  slot,
  use,
} from './node.ts';
import { follow, type Owners, pod, show, used } from './pages.ts';

test("dcgm-exporter 1: two containers of a pod have a figure each, not the pod's sum", async (t) => {
  const sample = sampleOf(
    [gpu(0)],
    [sampledProcess(1, [use(0, { bytes: 300 * MIB })]), sampledProcess(2, [use(0, { bytes: 50 * MIB })])],
  );
  const page = await show(
    follow([sample], [pod('a', 'main'), pod('b', 'side')], { 1: ofGrant('a'), 2: ofGrant('b') }).state,
  );
  t.is(used(page, { pod: 'one', container: 'main' }), 300 * MIB);
  t.is(used(page, { pod: 'one', container: 'side' }), 50 * MIB);
});

test('dcgm-exporter 2: no family mixes GPUs and containers, so sums are right', async (t) => {
  const sample = sampleOf(
    [gpu(0, { usedBytes: 500 * MIB })],
    [sampledProcess(1, [use(0, { bytes: 300 * MIB })]), sampledProcess(2, [use(0, { bytes: 50 * MIB })])],
  );
  const page = await show(follow([sample], [pod('a', 'main')], { 1: ofGrant('a'), 2: ofContainer('c') }).state);
  const sum = (name: string) => seriesOf(page, name) ?? 0;
  t.is(
    sum('cotenant_container_memory_used_bytes') +
      sum('cotenant_foreign_memory_used_bytes') +
      sum('cotenant_device_memory_unattributed_bytes'),
    sum('cotenant_device_memory_used_bytes'),
  );
  t.is(sum('DCGM_FI_DEV_FB_USED'), 500);
});

test('dcgm-exporter 3: memory that the driver does not report is absent and counted', async (t) => {
  const sample = sampleOf([gpu(0, { usedBytes: 500 * MIB })], [sampledProcess(1, [use(0)])]);
  const page = await show(follow([sample], [pod('a', 'main')], { 1: ofGrant('a') }).state);
  t.is(used(page, {}), undefined);
  t.is(seriesOf(page, 'cotenant_container_processes'), 1);
  t.is(seriesOf(page, 'cotenant_device_memory_unattributed_bytes'), undefined);
  t.is(seriesOf(page, 'hami_vgpu_memory_used_bytes'), undefined);
  t.notRegex(page, /1759218604441[56]|1\.8446744\d*e\+19|\bNaN\b/);
});

test("dcgm-exporter 4, HAMi 555: no share is above 1, and each user's time counts once", async (t) => {
  const at = (smUs: number) =>
    sampleOf(
      [gpu(0)],
      [1, 2, 3].map((pid) => sampledProcess(pid, [use(0, { smPercent: 34, smUs })])),
    );
  const { state, totals } = follow([at(0), at(300_000), at(300_000)], [pod('a', 'main')], {
    1: ofGrant('a'),
    2: ofGrant('a'),
    3: ofGrant('a'),
  });
  const page = await show(state, totals);
  t.is(seriesOf(page, 'cotenant_container_sm_utilization_ratio'), 1);
  t.is(seriesOf(page, 'hami_container_device_utilization_ratio'), 100);
  t.is(seriesOf(page, 'cotenant_container_sm_seconds_total'), 0.9);
});

/** What is said of who uses a GPU, in this family or that. */
const OF_USERS = [
  'cotenant_container_memory_bypass_bytes',
  'cotenant_container_memory_over_limit',
  'cotenant_container_processes',
  'cotenant_device_containers',
  'cotenant_device_memory_unattributed_bytes',
] as const;

test('dcgm-exporter 5: after a failed process list no use of the GPU is reported', async (t) => {
  const listed = sampleOf([gpu(0)], [sampledProcess(1, [use(0, { bytes: 300 * MIB })])]);
  const failed = sampleOf([gpu(0, { processLists: ['graphics'] })], []);
  const grants = [pod('a', 'main')];
  const before = await show(follow([listed], grants, { 1: ofGrant('a') }).state);
  t.is(used(before, {}), 300 * MIB);
  for (const name of OF_USERS) t.not(seriesOf(before, name), undefined, name);
  const page = await show(follow([listed, failed], grants, { 1: ofGrant('a') }).state);
  t.is(used(page, {}), undefined);
  for (const name of OF_USERS) t.is(seriesOf(page, name), undefined, name);
  const idle = await show(follow([sampleOf([gpu(0)], [])], grants, {}).state);
  t.is(used(idle, {}), 0, 'who is there and holds nothing has 0');
});

test('dcgm-exporter 5, 6: if one process list failed, the others alone give no figure', async (t) => {
  const grants = [pod('a', 'render')];
  const byPid = { 1: ofGrant('a'), 2: ofContainer('c') };
  const both = (types: number) => [1, 2].map((pid) => sampledProcess(pid, [use(0, { bytes: 3000 * MIB, types })]));
  const of = [
    ...OF_USERS,
    'cotenant_container_memory_used_bytes',
    'cotenant_container_sm_utilization_ratio',
    'cotenant_foreign_memory_used_bytes',
    'hami_vgpu_memory_used_bytes',
  ];
  const listed = sampleOf([gpu(0, { usedBytes: 6000 * MIB })], both(2));
  const page = await show(follow([listed], grants, byPid).state);
  for (const name of of) t.not(seriesOf(page, name), undefined, name);
  t.is(used(page, {}), 3000 * MIB);
  for (const failed of ['graphics', 'mps']) {
    const processLists = ['compute', 'graphics', 'mps'].filter((list) => list !== failed);
    for (const seen of [[], both(1)]) {
      const sample = sampleOf([gpu(0, { usedBytes: 6000 * MIB, processLists, failedProcessLists: [failed] })], seen);
      const { state } = follow([listed, sample], grants, byPid);
      const silent = await show(state);
      // A container that is over by what is reported is over.
      const absent = of.filter((name) => seen.length === 0 || name !== 'cotenant_container_memory_over_limit');
      for (const name of absent) t.is(seriesOf(silent, name), undefined, `${failed}, ${seen.length} seen: ${name}`);
      t.is(seriesOf(silent, 'cotenant_device_processes'), undefined, 'nor of what kind they are');
      t.false(state.containers[0]?.allGpusKnown);
    }
  }
});

/** What is said of how much compute containers and processes use. */
const COMPUTE = [
  'cotenant_container_sm_utilization_ratio',
  'cotenant_process_sm_utilization_ratio',
  'hami_container_device_utilization_ratio',
  'Device_utilization_desc_of_container',
  'metagpu_process_absolute_gpu_utilization',
  'metagpu_process_metagpu_relative_gpu_utilization',
  'DCGM_CUSTOM_PROCESS_SM_UTIL',
] as const;
const COMPUTE_TIME = [
  'cotenant_container_sm_seconds_total',
  'cotenant_container_memory_busy_seconds_total',
  'cotenant_container_encoder_seconds_total',
  'cotenant_container_decoder_seconds_total',
  'cotenant_foreign_sm_seconds_total',
] as const;

test('dcgm-exporter 5: use that the driver does not report is absent everywhere, not 0', async (t) => {
  const grants = [pod('a', 'busy'), pod('b', 'idle')];
  const byPid = { 1: ofGrant('a'), 2: ofContainer('c') };
  const at = (
    hasProcessUtilization: boolean,
    smPercent: number,
    smUs: number,
    processLists = ['compute', 'graphics', 'mps'],
  ) => {
    const { hasProcessUtilization: _, ...silent } = gpu(0, { processLists });
    const processes = processLists.includes('compute')
      ? [1, 2].map((pid) => sampledProcess(pid, [use(0, { bytes: MIB, smPercent, smUs })]))
      : [];
    return sampleOf([hasProcessUtilization ? { ...silent, hasProcessUtilization } : silent], processes);
  };
  const pageAfter = async (...samples: Sample[]) => {
    const { state, totals } = follow(samples, grants, byPid);
    return show(state, totals);
  };
  const [listed, unreported] = [at(true, 50, 500_000), at(false, 0, 500_000)];
  const page = await pageAfter(listed);
  for (const name of [...COMPUTE, ...COMPUTE_TIME]) t.not(seriesOf(page, name), undefined, name);
  t.is(seriesOf(page, 'cotenant_container_sm_utilization_ratio', { container: 'busy' }), 0.5);
  t.is(seriesOf(page, 'cotenant_container_sm_utilization_ratio', { container: 'idle' }), 0);

  // The totals of what was reported stay: the next answer is of this time, too.
  const [once, again] = [
    await pageAfter(listed, unreported),
    await pageAfter(listed, unreported, at(true, 50, 1_500_000)),
  ];
  for (const name of COMPUTE) t.is(seriesOf(once, name), undefined, name);
  for (const name of COMPUTE_TIME) t.not(seriesOf(once, name), undefined, name);
  t.is(seriesOf(once, 'cotenant_container_memory_used_bytes'), 2 ** 20);
  t.is(seriesOf(again, 'cotenant_container_sm_seconds_total', { container: 'busy' }), 1.5);
  // What was never reported, or not for longer than the driver remembers, has no total.
  const silence = Array.from({ length: 12 }, () => unreported);
  for (const samples of [[unreported], [listed, ...silence]]) {
    const nothing = await pageAfter(...samples);
    for (const name of [...COMPUTE, ...COMPUTE_TIME]) t.is(seriesOf(nothing, name), undefined, name);
  }
  const back = await pageAfter(listed, ...silence, at(true, 0, 2_500_000));
  t.is(seriesOf(back, 'cotenant_container_sm_seconds_total', { container: 'busy' }), 2.5);

  // The lists say whose use it is.
  const unlisted = await pageAfter(listed, at(true, 0, 0, ['graphics']));
  for (const name of COMPUTE) t.is(seriesOf(unlisted, name), undefined, name);
});

test('dcgm-exporter 6, MetaGPU 3: graphics and MPS count; two lists count once', async (t) => {
  const sample = sampleOf(
    [gpu(0)],
    [
      sampledProcess(1, [use(0, { bytes: 100 * MIB, types: 2 })]),
      sampledProcess(2, [use(0, { bytes: 10 * MIB, types: 4 })]),
      sampledProcess(3, [use(0, { bytes: MIB, types: 3 })]),
      sampledProcess(4, [use(0, { bytes: MIB, types: 5 })]), // as the driver lists MPS clients
    ],
  );
  const page = await show(
    follow([sample], [pod('a', 'main')], { 1: ofGrant('a'), 2: ofGrant('a'), 3: ofGrant('a'), 4: ofGrant('a') }).state,
  );
  t.is(used(page, {}), 112 * MIB);
  t.is(seriesOf(page, 'cotenant_container_processes'), 4);
  for (const [type, count] of [
    ['compute', 0],
    ['graphics', 1],
    ['compute+graphics', 1],
    ['mps', 2],
  ] as const)
    t.is(seriesOf(page, 'cotenant_device_processes', { type }), count, type);
});

test('dcgm-exporter 7: less than a MiB is seen', async (t) => {
  const sample = sampleOf([gpu(0)], [sampledProcess(1, [use(0, { bytes: 4097 })])]);
  t.is(used(await show(follow([sample], [pod('a', 'main')], { 1: ofGrant('a') }).state), {}), 4097);
});

test('dcgm-exporter 9: a reused PID is another process with a time of its own', (t) => {
  const known = new Map([[7, { id: 'a', startTicks: 70 }]]);
  const again: SampledProcess = { ...sampledProcess(7, []), startTicks: 99, ancestors: [] };
  t.deepEqual(
    ownerOfProcess(again, { roots: [], grantIds: new Set(['a']), known, pods: NO_PODS, isAlive: () => false }),
    { kind: 'host' },
  );
  const at = (startTicks: number, smUs: number) =>
    sampleOf([gpu(0)], [{ ...sampledProcess(7, [use(0, { smUs })]), startTicks }]);
  const { totals } = follow([at(70, 2_000_000), at(99, 500_000)], [pod('a', 'main')], { 7: ofGrant('a') });
  t.is([...totals.containers.values()][0]?.smSeconds, 2.5);
});

test('dcgm-exporter 10, MetaGPU 4: containers are found in every kind of cgroup', (t) => {
  const [uid, id] = ['0f3c1c4e-77aa-4c2f-9f3b-2b5d0c9a1e77', 'ab'.repeat(32)];
  for (const path of [
    `9:memory:/kubepods/pod${uid}/${id}`,
    `0::/kubepods.slice/kubepods-pod${uid.replaceAll('-', '_')}.slice/cri-containerd-${id}.scope`,
    `0::/kubepods/burstable/pod4d1e2a7b9c0f4e5d8a6b3c2d1e0f9a8b/${id}`,
    `0::/../cri-containerd-${id}.scope`,
  ])
    t.is(ownerOf(path).containerId, id, path);
});

test("dcgm-exporter: a tenant's text cannot break the page", async (t) => {
  const sample = sampleOf([gpu(0, { name: 'a "gpu"\\' })], [sampledProcess(1, [use(0, { bytes: MIB })])]);
  const hostile = grantOf('a', 100, [0], { namespace: 'x', pod: 'a",b="\n# HELP', container: '\\' });
  const page = await show(follow([sample], [hostile], { 1: ofGrant('a') }).state);
  for (const line of page.split('\n'))
    t.regex(line, /^(|# (HELP|TYPE) [a-zA-Z_]\w* .*|[a-zA-Z_]\w*(\{(\w+="([^"\\\n]|\\["\\n])*",?)*\})? [-+.\de]+)$/);
});

const verdictOf = (sample: Sample, grant: Grant, byPid: Owners) =>
  compared(sample, [reading(grant, ledgerOf(sample.processes.map(({ pid }) => slot(pid, [row(), row()]))))], byPid)
    .containers[0]?.verdict;

test('MetaGPU 1: many processes below the limit are over it together', (t) => {
  const sample = sampleOf(
    [gpu(0)],
    [1, 2].map((pid) => sampledProcess(pid, [use(0, { bytes: 900 * MIB })])),
  );
  t.like(verdictOf(sample, pod('a', 'main'), { 1: ofGrant('a'), 2: ofGrant('a') }), {
    severity: 'hard',
    reason: 'far-over-limit',
  });
});

test('MetaGPU 2: a grant on two GPUs is held on each of them', (t) => {
  const sample = sampleOf(
    [gpu(0), gpu(1)],
    [sampledProcess(1, [use(0, { bytes: 10 * MIB }), use(1, { bytes: 1500 * MIB })])],
  );
  t.like(verdictOf(sample, pod('a', 'main', 1000, [0, 1]), { 1: ofGrant('a') }), {
    severity: 'hard',
    worst: { gpuUuid: 'GPU-1' },
  });
});

test('MetaGPU 5: utilization is that of the last window, not of the life of a process', async (t) => {
  const at = (smPercent: number, smUs: number) =>
    sampleOf([gpu(0)], [sampledProcess(1, [use(0, { smPercent, smUs })])]);
  const { state, totals } = follow([at(100, 1_000_000), at(0, 1_000_000)], [pod('a', 'main')], { 1: ofGrant('a') });
  const page = await show(state, totals);
  t.is(seriesOf(page, 'cotenant_container_sm_utilization_ratio'), 0);
  t.is(seriesOf(page, 'metagpu_process_absolute_gpu_utilization'), 0);
});

test('MetaGPU 6 and 7: grants are counted to the byte, and each container once', async (t) => {
  const grants = [pod('a', 'a', 333), pod('b', 'b', 334), pod('c', 'c', 335)];
  const sample = sampleOf(
    [gpu(0)],
    [1, 2, 3].map((pid) => sampledProcess(pid, [use(0, { bytes: 1 })])),
  );
  const page = await show(follow([sample], grants, { 1: ofGrant('a'), 2: ofGrant('b'), 3: ofGrant('c') }).state);
  t.is(seriesOf(page, 'cotenant_device_memory_allocated_bytes'), 1002 * MIB);
  t.is(seriesOf(page, 'cotenant_device_containers'), 3);
  t.is(seriesOf(page, 'metagpu_device_memory_share_size'), 240, 'its shares are no whole MiB by force');
});

test('MetaGPU 8: a setting that would have no effect is refused', (t) => {
  t.throws(() => configure({ metaGpus: 4 }, 'test'), { message: /metaGpus: no such setting/ });
});

test('MetaGPU 9 and 10: a request that fits no single GPU is refused with each reason', (t) => {
  const free = (name: string, mib: number) => ({
    gpuUuid: `GPU-${name}`,
    model: '',
    usableBytes: 16_000 * MIB,
    healthy: true,
    grantedBytes: (16_000 - mib) * MIB,
    grantedCoresPercent: 0,
    tenants: 1,
  });
  const find = (mib: readonly number[], freeMib: readonly number[]) => {
    const shares = mib.map((each) => ({ memory: { kind: 'bytes' as const, bytes: each * MIB } }));
    const gpus = freeMib.map((each, index) => free(String(index), each));
    const containers = [{ name: 'main', kind: 'app', memoryIsolation: 'on', gpus: shares }] as const;
    const node = { mostTenantsPerGpu: 50, gpus };
    const found = placePod({ gpuModels: [], gpuUuids: [], containers }, node, 'binpack');
    return found.ok
      ? found.containers.flatMap((one) => one.gpus).map((gpu) => `${gpu.gpuUuid} ${gpu.memoryBytes / MIB}`)
      : found.reason('all');
  };
  const alone = String(find([9000], [8000, 8000]));
  t.regex(alone, /^GPU-0 has 8000 MiB .*; GPU-1 has 8000 MiB /);
  // What the first of two takes is not looked at as if it were free, nor is its search begun anew for the second.
  t.deepEqual(find([7000, 7000], [8000, 8000]), ['GPU-0 7000', 'GPU-1 7000']);
  t.regex(String(find([7000, 7000], [8000, 6000])), /^only 1 of 2 requested GPUs can be granted: GPU-1 has 6000 MiB /);
});

test('MetaGPU 11: nothing of ours runs a program in a container of others, or could', (t) => {
  const root = join(import.meta.dirname, '../../..');
  const files = ['charts/cotenant/templates', 'src', 'webhook'].flatMap((folder) =>
    readdirSync(join(root, folder), { recursive: true, withFileTypes: true })
      .filter((entry) => entry.isFile())
      .map((entry) => join(entry.parentPath, entry.name)),
  );
  t.true(files.length > 200);
  const said = files.filter((path) => /pods\/(exec|attach)\b|NamespacedPodExec/.test(readFileSync(path, 'utf8')));
  t.deepEqual(said, []);
});

test('MetaGPU 12: no one can stop, grant or change anything over the network', async (t) => {
  const source = {
    scrape: async () => 'nothing' as const,
    ...createLocalSource({ own: async () => '', snapshot: () => undefined, history: createRecorder().history }),
  };
  const { port, close } = await startHttpServer(createExporter(source), { listen: { host: '127.0.0.1', port: 0 } });
  t.teardown(close);
  const ask = async (method: string, path: string) =>
    (await fetch(`http://127.0.0.1:${port}${path}`, { method })).status;
  t.is(await ask('GET', '/livez'), 200);
  for (const path of ['/', '/metrics', '/livez', '/v1/grants', '/v1/compute', '/kill'])
    for (const method of ['POST', 'PUT', 'PATCH', 'DELETE']) t.is(await ask(method, path), 404, `${method} ${path}`);
  for (const path of ['/v1/status', '/v1/grants', '/v1/actions?of=x']) t.is(await ask('GET', path), 404, path);
});

test('MetaGPU 13 and 14: metrics report driver errors; a lost GPU is unhealthy', async (t) => {
  const lost = await show(
    follow([sampleOf([gpu(0, { healthy: false, processLists: [] }), gpu(1)], [])], [pod('a', 'main')], {}).state,
  );
  t.is(seriesOf(lost, 'cotenant_device_healthy', { gpu: '0' }), 0);
  t.is(seriesOf(lost, 'cotenant_device_healthy', { gpu: '1' }), 1);
  t.is(used(lost, {}), undefined);
  const failed: Sample = {
    ...sampleOf([], []),
    problem: 'NVML does not start',
    errors: [{ call: 'nvmlInit_v2', code: 999, count: 3 }],
  };
  const page = await show(follow([failed], [pod('a', 'main')], {}).state);
  t.is(seriesOf(page, 'cotenant_exporter_nvml_errors_total', { call: 'nvmlInit_v2', code: '999' }), 3);
});
