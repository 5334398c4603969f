// The names of HAMi's monitor, present and older ones, which differ in names and labels alone. Its ratios are percentages; so
// are these.
import { type Family, metricSet } from '../family.ts';
import { type CompatContext, holdersOf } from './set.ts';

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
  /** By kind; the older ones have none. */
  readonly kinds?: { readonly context: string; readonly buffer: string };
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
  kinds: { context: 'hami_vgpu_memory_context_bytes', buffer: 'hami_vgpu_memory_buffer_bytes' },
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
  fixed: { zone: 'vGPU' },
};

const labelled = (names: readonly string[], values: readonly string[], fixed: Names['fixed']) => ({
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
    const hostUsed = ofHost(names.hostUsed, 'Memory of the card in use, in bytes.');
    const hostUtilization = ofHost(names.hostUtilization, 'Utilization of the card, in percent.');
    const used = ofContainer(
      names.used,
      'Memory in use by the container on the card, in bytes, as the driver counts it.',
    );
    const limit = ofContainer(names.limit, 'Memory that the container may have on the card, in bytes.');
    const memory = ofContainer(names.memory, 'Memory in use by the container on the card, in bytes.');
    const utilization = ofContainer(names.utilization, 'Compute of the card that the container used, in percent.');
    const lastKernel = ofContainer(names.lastKernel, 'Seconds since the container last used the card.');
    const context = names.kinds && ofContainer(names.kinds.context, 'Of it, contexts, in bytes.');
    const buffer = names.kinds && ofContainer(names.kinds.buffer, 'Of it, buffers, in bytes.');
    return {
      clear: set.clear,
      fill(view) {
        for (const { card } of view.devices) {
          const labels = labelled(names.host, [nodeName, String(card.index), card.uuid, card.name], names.fixed);
          hostUsed(labels, card.usedBytes);
          hostUtilization(labels, card.utilizationPercent);
        }
        const counts = new Map<string, number>();
        for (const holder of holdersOf(view)) {
          const who = JSON.stringify([holder.namespace, holder.pod, holder.container]);
          const index = counts.get(who) ?? 0;
          counts.set(who, index + 1);
          const labels = labelled(
            names.container,
            [holder.namespace, holder.pod, holder.container, String(index), holder.gpuUuid],
            names.fixed,
          );
          used(labels, holder.usedBytes);
          limit(labels, holder.grant?.limitBytes);
          memory(labels, holder.usedBytes);
          utilization(labels, holder.smPercent === undefined ? undefined : Math.min(100, holder.smPercent));
          if (holder.lastActiveMs !== undefined)
            lastKernel(labels, Math.max(0, (view.atMs - holder.lastActiveMs) / 1000));
          context?.(labels, holder.grant?.ledger.contextBytes);
          buffer?.(labels, holder.grant?.ledger.bufferBytes);
        }
      },
    };
  },
});

export const hami = (of: CompatContext): Family => family('compat-hami', PRESENT, of);
export const hamiLegacy = (of: CompatContext): Family => family('compat-hami-legacy', LEGACY, of);
