// The metrics of MetaGPU's exporter: a GPU is 100 shares, memory is in MiB. Command lines and users are not shown
// ("-").
import { sumOrUnknown } from '../../agent/sampling/sample.ts';
import type { Snapshot } from '../../agent/snapshot/snapshot.ts';
import { type Collector, gauge, type Labels, type Series } from '../collectors/collector.ts';
import { type CompatContext, deviceOf, type Holder, holdersOf, largestProcesses, toMib } from './shared.ts';

const SHARES = 100;
const GPU = ['device_uuid', 'device_index', 'resource_name', 'node_name'];
const POD = ['pod_name', 'pod_namespace', 'resource_name', 'node_name'];
const PROCESS = ['uuid', 'pid', 'cmdline', 'user', ...POD];

const METRICS = {
  metagpu_device_shares: gauge('Shares of the GPU.', GPU),
  metagpu_device_memory_total: gauge('Memory of the GPU, in MiB.', GPU),
  metagpu_device_memory_free: gauge('Free memory of the GPU, in MiB.', GPU),
  metagpu_device_memory_used: gauge('Used memory of the GPU, in MiB.', GPU),
  metagpu_device_memory_share_size: gauge('Memory of one share, in MiB.', GPU),
  metagpu_process_metagpu_requests: gauge('Shares of GPUs that the pod has.', POD),
  metagpu_process_absolute_gpu_utilization: gauge('Compute of the GPU that the process used, in percent.', PROCESS),
  metagpu_process_memory_usage: gauge('Memory of the process, in MiB.', PROCESS),
  metagpu_process_max_allowed_metagpu_gpu_utilization: gauge('Compute limit of its container, in percent.', PROCESS),
  metagpu_process_metagpu_relative_gpu_utilization: gauge(
    'Compute used, relative to the limit of its container, in percent.',
    PROCESS,
  ),
  metagpu_process_max_allowed_metagpu_memory: gauge('Memory limit of its container, in MiB.', PROCESS),
  metagpu_process_metagpu_relative_memory_utilization: gauge(
    'Memory used, relative to the limit of its container, in percent.',
    PROCESS,
  ),
} as const;

type Put = Series<keyof typeof METRICS>['set'];
type Limit = { readonly percent: number; readonly bytes: number | undefined };
/** A process, or the idle containers of a pod. */
type Row = {
  readonly holder: Holder;
  readonly pid: string;
  readonly usedBytes?: number | undefined;
  readonly smPercent?: number | undefined;
  readonly limit: Limit;
};

const podKey = ({ namespace, pod, gpuUuid }: Holder): string => JSON.stringify([namespace, pod, gpuUuid]);

const limitOf = (snapshot: Snapshot, { gpuUuid, grant }: Holder): Limit => ({
  percent: grant && grant.coresPercent > 0 ? grant.coresPercent : 100,
  bytes: grant?.limitBytes ?? deviceOf(snapshot, gpuUuid)?.gpu.totalBytes,
});

function setGpus({ devices }: Snapshot, fixed: Labels, set: Put): void {
  for (const { gpu } of devices) {
    const labels = { device_uuid: gpu.uuid, device_index: String(gpu.index), ...fixed };
    const mib = toMib(gpu.totalBytes);
    set('metagpu_device_shares', labels, SHARES);
    set('metagpu_device_memory_total', labels, mib);
    set('metagpu_device_memory_free', labels, toMib(gpu.freeBytes));
    set('metagpu_device_memory_used', labels, toMib(gpu.usedBytes));
    set('metagpu_device_memory_share_size', labels, mib === undefined ? undefined : mib / SHARES);
  }
}

function setRequests(snapshot: Snapshot, holders: readonly Holder[], fixed: Labels, set: Put): void {
  for (const [first, ...more] of Map.groupBy(holders, ({ namespace, pod }) =>
    JSON.stringify([namespace, pod]),
  ).values()) {
    if (!first) continue;
    const shares = [first, ...more].flatMap(({ gpuUuid, grant }) => {
      const totalBytes = deviceOf(snapshot, gpuUuid)?.gpu.totalBytes;
      if (totalBytes === undefined) return [];
      return [grant ? Math.ceil((SHARES * grant.limitBytes) / totalBytes) : SHARES];
    });
    if (shares.length === 0) continue;
    const labels = { pod_name: first.pod, pod_namespace: first.namespace, ...fixed };
    set(
      'metagpu_process_metagpu_requests',
      labels,
      shares.reduce((sum, own) => sum + own, 0),
    );
  }
}

/** Idle containers have no PID to distinguish them, so those of one pod on a GPU share one row. */
function idleRows(snapshot: Snapshot, holders: readonly Holder[]): readonly Row[] {
  const idle = holders.filter(({ processes }) => processes.length === 0);
  return [...Map.groupBy(idle, podKey).values()].flatMap((all) => {
    const [holder] = all;
    if (!holder) return [];
    const limits = all.map((one) => limitOf(snapshot, one));
    const percent = limits.reduce((sum, limit) => sum + limit.percent, 0);
    return {
      holder,
      pid: '-',
      usedBytes: sumOrUnknown(all.map(({ usedBytes }) => usedBytes)),
      smPercent: sumOrUnknown(all.map(({ smPercent }) => smPercent)),
      limit: { percent: Math.min(100, percent), bytes: sumOrUnknown(limits.map(({ bytes }) => bytes)) },
    };
  });
}

function setRow({ holder, pid, usedBytes, smPercent, limit }: Row, fixed: Labels, set: Put): void {
  const { namespace, pod, gpuUuid } = holder;
  const pids = { uuid: gpuUuid, pid, cmdline: '-', user: '-' };
  const labels = { ...pids, pod_name: pod, pod_namespace: namespace, ...fixed };
  const ofLimit = (used: number | undefined, most: number | undefined) =>
    used === undefined || most === undefined ? undefined : (100 * used) / most;
  set('metagpu_process_absolute_gpu_utilization', labels, smPercent);
  set('metagpu_process_memory_usage', labels, toMib(usedBytes));
  set('metagpu_process_max_allowed_metagpu_gpu_utilization', labels, limit.percent);
  set('metagpu_process_metagpu_relative_gpu_utilization', labels, ofLimit(smPercent, limit.percent));
  set('metagpu_process_max_allowed_metagpu_memory', labels, toMib(limit.bytes));
  set('metagpu_process_metagpu_relative_memory_utilization', labels, ofLimit(usedBytes, limit.bytes));
}

export const metagpu = ({ nodeName }: CompatContext): Collector => ({
  name: 'compat-metagpu',
  metrics: METRICS,
  collect(snapshot, series) {
    const { set } = series;
    const fixed = { resource_name: 'cnvrg.io/metagpu', node_name: nodeName };
    const holders = holdersOf(snapshot);
    setGpus(snapshot, fixed, set);
    setRequests(snapshot, holders, fixed, set);
    for (const { holder, one } of largestProcesses(holders, series))
      setRow({ ...one, holder, pid: String(one.pid), limit: limitOf(snapshot, holder) }, fixed, set);
    for (const row of idleRows(snapshot, holders)) setRow(row, fixed, set);
  },
});
