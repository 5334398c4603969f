// The names of HAMi's monitor, present and older ones, which differ in names and labels alone; and of its scheduler what its board
// asks for. Its ratios are percentages, but for that of a node's memory; so are these.
import { type Family, metricSet } from '../format/family.ts';
import { type CompatContext, deviceOf, holdersOf, parentOf, profileOf } from './shared.ts';

type Names = {
  readonly host: readonly string[];
  readonly container: readonly string[];
  readonly hostUsed: string;
  readonly hostUtilization: string;
  readonly used: string;
  readonly limit: string;
  readonly memory: string;
  readonly utilization: string;
  readonly lastKernel: string;
  /** An instance that a container has, and the labels that tell of it. */
  readonly instance: string;
  readonly instanceLabels: readonly string[];
  /** By kind; the older ones have none. */
  readonly kinds?: { readonly context: string; readonly buffer: string };
  /** Of GPUs, by its scheduler; the older ones are not served. */
  readonly scheduler?: Readonly<
    Record<'limit' | 'allocated' | 'allocatedRatio' | 'cores' | 'allocatedCores' | 'shared' | 'memoryBusy', string>
  >;
  /** A label that every series of theirs has. */
  readonly fixed: Readonly<Record<string, string>>;
};

const PRESENT: Names = {
  host: ['node', 'device_index', 'device_uuid', 'device_type'],
  container: ['namespace', 'pod', 'container', 'vdevice_index', 'device_uuid'],
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
  fixed: { zone: 'vGPU' },
};
const LEGACY: Names = {
  host: ['nodeid', 'deviceidx', 'deviceuuid', 'devicetype'],
  container: ['podnamespace', 'podname', 'ctrname', 'vdeviceid', 'deviceuuid'],
  hostUsed: 'HostGPUMemoryUsage',
  hostUtilization: 'HostCoreUtilization',
  used: 'vGPU_device_memory_usage_in_bytes',
  limit: 'vGPU_device_memory_limit_in_bytes',
  memory: 'Device_memory_desc_of_container',
  utilization: 'Device_utilization_desc_of_container',
  lastKernel: 'Device_last_kernel_of_container',
  instance: 'MigInfo',
  instanceLabels: ['instanceid'],
  fixed: { zone: 'vGPU' },
};

const labeled = (names: readonly string[], values: readonly string[], fixed: Names['fixed']) => ({
  ...Object.fromEntries(names.map((name, index) => [name, values[index] ?? ''])),
  ...fixed,
});

const family = (name: string, names: Names, { nodeName }: CompatContext): Family => ({
  name,
  create(registry, guard) {
    const set = metricSet(registry, guard);
    const fixed = Object.keys(names.fixed);
    const ofHost = (metric: string, help: string) => set.gauge(metric, help, [...names.host, ...fixed]);
    const ofContainer = (metric: string, help: string) => set.gauge(metric, help, [...names.container, ...fixed]);
    const hostUsed = ofHost(names.hostUsed, 'Memory of the GPU in use, in bytes.');
    const hostUtilization = ofHost(names.hostUtilization, 'Utilization of the GPU, in percent.');
    const used = ofContainer(
      names.used,
      'Memory in use by the container on the GPU, in bytes, as the driver counts it.',
    );
    const limit = ofContainer(names.limit, 'Memory that the container may have on the GPU, in bytes.');
    const memory = ofContainer(names.memory, 'Memory in use by the container on the GPU, in bytes.');
    const utilization = ofContainer(names.utilization, 'Compute of the GPU that the container used, in percent.');
    const lastKernel = ofContainer(names.lastKernel, 'Seconds since the container last used the GPU.');
    const context = names.kinds && ofContainer(names.kinds.context, 'Of it, contexts, in bytes.');
    const buffer = names.kinds && ofContainer(names.kinds.buffer, 'Of it, buffers, in bytes.');
    const instance = set.gauge(names.instance, 'The container has this instance of a divided GPU; always 1.', [
      ...names.container,
      ...names.instanceLabels,
      ...fixed,
    ]);
    const gpus = names.scheduler && {
      limit: ofHost(names.scheduler.limit, 'Memory of the GPU, in bytes.'),
      allocated: ofHost(names.scheduler.allocated, 'Memory of the GPU that is granted, in bytes.'),
      allocatedRatio: ofHost(names.scheduler.allocatedRatio, 'Memory of the GPU that is granted, 0 to 1.'),
      cores: ofHost(names.scheduler.cores, 'Compute of the GPU, in percent.'),
      allocatedCores: ofHost(names.scheduler.allocatedCores, 'Compute of the GPU that is granted, in percent.'),
      shared: ofHost(names.scheduler.shared, 'Containers that have the GPU.'),
      memoryBusy: ofHost(names.scheduler.memoryBusy, 'Use of the memory bus of the GPU, in percent.'),
    };
    return {
      clear: set.clear,
      fill(snapshot) {
        const holders = holdersOf(snapshot);
        for (const { gpu, grantedBytes, grantedCoresPercent } of snapshot.devices) {
          const labels = labeled(names.host, [nodeName, String(gpu.index), gpu.uuid, gpu.name], names.fixed);
          hostUsed(labels, gpu.usedBytes);
          hostUtilization(labels, gpu.utilizationPercent);
          gpus?.limit(labels, gpu.totalBytes);
          gpus?.allocated(labels, grantedBytes);
          gpus?.allocatedRatio(labels, gpu.totalBytes ? grantedBytes / gpu.totalBytes : undefined);
          gpus?.cores(labels, 100);
          gpus?.allocatedCores(labels, grantedCoresPercent);
          gpus?.shared(labels, holders.filter(({ gpuUuid }) => gpuUuid === gpu.uuid).length);
          gpus?.memoryBusy(labels, gpu.memoryBusyPercent);
        }
        const counts = new Map<string, number>();
        for (const holder of holders) {
          const who = JSON.stringify([holder.namespace, holder.pod, holder.container]);
          const index = counts.get(who) ?? 0;
          counts.set(who, index + 1);
          const labels = labeled(
            names.container,
            [holder.namespace, holder.pod, holder.container, String(index), holder.gpuUuid],
            names.fixed,
          );
          used(labels, holder.usedBytes);
          limit(labels, holder.grant?.limitBytes);
          memory(labels, holder.usedBytes);
          utilization(labels, holder.smPercent === undefined ? undefined : Math.min(100, holder.smPercent));
          if (holder.lastActiveMs !== undefined)
            lastKernel(labels, Math.max(0, (snapshot.atMs - holder.lastActiveMs) / 1000));
          context?.(labels, holder.grant?.ledger.contextBytes);
          buffer?.(labels, holder.grant?.ledger.bufferBytes);
          const gpu = deviceOf(snapshot, holder.gpuUuid)?.gpu;
          const parent = gpu && parentOf(snapshot, gpu);
          if (!parent) continue;
          const ids = [gpu.gpuInstance, gpu.computeInstance].map((id) => (id === undefined ? '' : String(id)));
          const told = names.instanceLabels.length === 1 ? ids : [gpu.uuid, profileOf(gpu), ...ids];
          instance(
            {
              ...labels,
              ...labeled(names.container.slice(-1), [parent.uuid], {}),
              ...labeled(names.instanceLabels, told, {}),
            },
            1,
          );
        }
      },
    };
  },
});

export const hami = (of: CompatContext): Family => family('compat-hami', PRESENT, of);
export const hamiLegacy = (of: CompatContext): Family => family('compat-hami-legacy', LEGACY, of);
