// The metrics of HAMi's monitor, under its current and its older names, and those of its scheduler that HAMi's
// dashboard queries. HAMi's ratios are percentages, except that of a node's memory; so are these.

import type { Snapshot, SnapshotDevice } from '../../agent/snapshot/snapshot.ts';
import { type Collector, gauge, type Labels, type Metric, type Series } from '../collectors/collector.ts';
import { type CompatContext, deviceOf, type Holder, holdersOf, parentOf, profileOf } from './shared.ts';

type Names = {
  readonly hostLabels: readonly string[];
  readonly containerLabels: readonly string[];
  readonly hostUsed: string;
  readonly hostUtilization: string;
  readonly used: string;
  readonly limit: string;
  readonly memory: string;
  readonly utilization: string;
  readonly lastKernel: string;
  /** A MIG instance of a container, and the labels that describe it. */
  readonly instance: string;
  readonly instanceLabels: readonly string[];
  /** Memory by kind. The older names have none. */
  readonly kinds?: { readonly context: string; readonly buffer: string };
  /** Metrics of GPUs that HAMi's scheduler has. The older ones are not served. */
  readonly scheduler?: Readonly<
    Record<'limit' | 'allocated' | 'allocatedRatio' | 'cores' | 'allocatedCores' | 'shared' | 'memoryBusy', string>
  >;
};

/** A label of every series of HAMi. */
const FIXED: Labels = { zone: 'vGPU' };
const PRESENT: Names = {
  hostLabels: ['node', 'device_index', 'device_uuid', 'device_type'],
  containerLabels: ['namespace', 'pod', 'container', 'vdevice_index', 'device_uuid'],
  hostUsed: 'hami_host_gpu_memory_used_bytes',
  hostUtilization: 'hami_host_gpu_utilization_ratio',
  used: 'hami_vgpu_memory_used_bytes',
  limit: 'hami_vgpu_memory_limit_bytes',
  memory: 'hami_container_device_memory_bytes',
  utilization: 'hami_container_device_utilization_ratio',
  lastKernel: 'hami_container_last_kernel_elapsed_seconds',
  instance: 'hami_mig_device_info',
  instanceLabels: ['mig_uuid', 'profile', 'gpu_instance_id', 'compute_instance_id'],
  kinds: {
    context: 'hami_vgpu_memory_context_bytes',
    buffer: 'hami_vgpu_memory_buffer_bytes',
  },
  scheduler: {
    limit: 'hami_gpu_memory_limit_bytes',
    allocated: 'hami_gpu_memory_allocated_bytes',
    allocatedRatio: 'hami_node_gpu_memory_allocated_ratio',
    cores: 'hami_gpu_core_limit_ratio',
    allocatedCores: 'hami_gpu_core_allocated_ratio',
    shared: 'hami_gpu_shared_count',
    memoryBusy: 'hami_host_gpu_memory_controller_utilization_ratio',
  },
};
const LEGACY: Names = {
  hostLabels: ['nodeid', 'deviceidx', 'deviceuuid', 'devicetype'],
  containerLabels: ['podnamespace', 'podname', 'ctrname', 'vdeviceid', 'deviceuuid'],
  hostUsed: 'HostGPUMemoryUsage',
  hostUtilization: 'HostCoreUtilization',
  used: 'vGPU_device_memory_usage_in_bytes',
  limit: 'vGPU_device_memory_limit_in_bytes',
  memory: 'Device_memory_desc_of_container',
  utilization: 'Device_utilization_desc_of_container',
  lastKernel: 'Device_last_kernel_of_container',
  instance: 'MigInfo',
  instanceLabels: ['instanceid'],
};

function metricsOf(names: Names): Readonly<Record<string, Metric>> {
  const fixed = Object.keys(FIXED);
  const ofHost = (help: string) => gauge(help, [...names.hostLabels, ...fixed]);
  const ofContainer = (help: string) => gauge(help, [...names.containerLabels, ...fixed]);
  const { kinds, scheduler } = names;
  return {
    [names.hostUsed]: ofHost('Memory of the GPU in use, in bytes.'),
    [names.hostUtilization]: ofHost('Utilization of the GPU, in percent.'),
    [names.used]: ofContainer('Memory of the container on the GPU, in bytes, as the driver reports it.'),
    [names.limit]: ofContainer('Memory limit of the container on the GPU, in bytes.'),
    [names.memory]: ofContainer('Memory of the container on the GPU, in bytes.'),
    [names.utilization]: ofContainer('Compute of the GPU that the container used, in percent.'),
    [names.lastKernel]: ofContainer('Seconds since the container last used the GPU.'),
    ...(kinds && {
      [kinds.context]: ofContainer('Memory of the contexts of the container, in bytes.'),
      [kinds.buffer]: ofContainer('Memory of the buffers of the container, in bytes.'),
    }),
    [names.instance]: gauge('The container has this MIG instance; always 1.', [
      ...names.containerLabels,
      ...names.instanceLabels,
      ...fixed,
    ]),
    ...(scheduler && {
      [scheduler.limit]: ofHost('Memory of the GPU, in bytes.'),
      [scheduler.allocated]: ofHost('Memory of the GPU that is granted, in bytes.'),
      [scheduler.allocatedRatio]: ofHost('Memory of the GPU that is granted, 0 to 1.'),
      [scheduler.cores]: ofHost('Compute of the GPU, in percent.'),
      [scheduler.allocatedCores]: ofHost('Compute of the GPU that is granted, in percent.'),
      [scheduler.shared]: ofHost('Containers that have the GPU.'),
      [scheduler.memoryBusy]: ofHost('Utilization of the memory bus of the GPU, in percent.'),
    }),
  };
}

const labeled = (names: readonly string[], values: readonly string[]): Labels => ({
  ...Object.fromEntries(names.map((name, index) => [name, values[index] ?? ''])),
  ...FIXED,
});

/** Under which names to set series, and how. */
type Target = { readonly names: Names; readonly set: Series<string>['set'] };

function setGpu(device: SnapshotDevice, labels: Labels, shared: number, { names, set }: Target) {
  const { gpu, grantedBytes, grantedCoresPercent } = device;
  set(names.hostUsed, labels, gpu.usedBytes);
  set(names.hostUtilization, labels, gpu.utilizationPercent);
  const { scheduler } = names;
  if (!scheduler) return;
  set(scheduler.limit, labels, gpu.totalBytes);
  set(scheduler.allocated, labels, grantedBytes);
  set(scheduler.allocatedRatio, labels, gpu.totalBytes ? grantedBytes / gpu.totalBytes : undefined);
  set(scheduler.cores, labels, 100);
  set(scheduler.allocatedCores, labels, grantedCoresPercent);
  set(scheduler.shared, labels, shared);
  set(scheduler.memoryBusy, labels, gpu.memoryBusyPercent);
}

function setInstance(snapshot: Snapshot, holder: Holder, labels: Labels, { names, set }: Target) {
  const gpu = deviceOf(snapshot, holder.gpuUuid)?.gpu;
  const parent = gpu && parentOf(snapshot, gpu);
  if (!parent) return;
  const ids = [gpu.gpuInstance, gpu.computeInstance].map((id) => (id === undefined ? '' : String(id)));
  const values = names.instanceLabels.length === 1 ? ids : [gpu.uuid, profileOf(gpu), ...ids];
  const ofParent = labeled(names.containerLabels.slice(-1), [parent.uuid]);
  set(names.instance, { ...labels, ...ofParent, ...labeled(names.instanceLabels, values) }, 1);
}

const collectorOf = (name: string, names: Names, { nodeName }: CompatContext): Collector => ({
  name,
  metrics: metricsOf(names),
  collect(snapshot, { set }) {
    const holders = holdersOf(snapshot);
    for (const device of snapshot.devices) {
      const shared = holders.filter(({ gpuUuid }) => gpuUuid === device.gpu.uuid).length;
      const { gpu } = device;
      const labels = labeled(names.hostLabels, [nodeName, String(gpu.index), gpu.uuid, gpu.name]);
      setGpu(device, labels, shared, { names, set });
    }
    /** GPUs of each container so far: HAMi numbers them. */
    const counts = new Map<string, number>();
    for (const holder of holders) {
      const { namespace, pod, container, grant } = holder;
      const key = JSON.stringify([namespace, pod, container]);
      const index = counts.get(key) ?? 0;
      counts.set(key, index + 1);
      const labels = labeled(names.containerLabels, [namespace, pod, container, String(index), holder.gpuUuid]);
      set(names.used, labels, holder.usedBytes);
      set(names.limit, labels, grant?.limitBytes);
      set(names.memory, labels, holder.usedBytes);
      set(names.utilization, labels, holder.smPercent === undefined ? undefined : Math.min(100, holder.smPercent));
      if (holder.lastActiveMs !== undefined)
        set(names.lastKernel, labels, Math.max(0, (snapshot.atMs - holder.lastActiveMs) / 1000));
      if (names.kinds) {
        set(names.kinds.context, labels, grant?.ledger.contextBytes);
        set(names.kinds.buffer, labels, grant?.ledger.bufferBytes);
      }
      setInstance(snapshot, holder, labels, { names, set });
    }
  },
});

export const hami = (context: CompatContext): Collector => collectorOf('compat-hami', PRESENT, context);
export const hamiLegacy = (context: CompatContext): Collector => collectorOf('compat-hami-legacy', LEGACY, context);
