// Metrics of GPUs: identity, memory, utilization, clocks, power, and how each is shared. A reading that NVML lacks is
// absent.
import type { SampledGpu } from '../../agent/sampling/sample.ts';
import type { Snapshot, SnapshotDevice } from '../../agent/snapshot/snapshot.ts';
import {
  counter,
  defineCollector,
  GPU_LABELS,
  gauge,
  gpuLabels,
  type Labels,
  reading,
  type Series,
  scaled,
  setReadings,
} from './collector.ts';

const HERTZ_PER_MHZ = 1e6;

const ofGpu = (help: string, ...labels: readonly string[]) => gauge(help, [...GPU_LABELS, ...labels]);

const METRICS = {
  cotenant_device_info: ofGpu(
    'A GPU of this node; always 1.',
    'model',
    'pci_bus_id',
    'minor',
    'driver_version',
    'cuda_version',
    'mig_mode',
  ),
  cotenant_device_memory_total_bytes: reading('Memory of the GPU.', 'totalBytes'),
  cotenant_device_memory_used_bytes: reading(
    'Memory in use, without what the driver reserves for itself where it reports that.',
    'usedBytes',
  ),
  cotenant_device_memory_free_bytes: reading('Memory that the driver can still allocate.', 'freeBytes'),
  cotenant_device_memory_reserved_bytes: reading('Memory that the driver reserves for itself.', 'reservedBytes'),
  cotenant_device_memory_allocated_bytes: ofGpu('Sum of the memory grants on the GPU.'),
  cotenant_device_memory_unattributed_bytes: ofGpu(
    'Used memory that the driver reports for no container: managed memory, host processes, exited processes.',
  ),
  cotenant_device_compute_policy: ofGpu(
    'Compute policy of the GPU, and the setting it comes from; always 1.',
    'policy',
    'source',
  ),
  cotenant_device_sm_allocated_ratio: ofGpu('Sum of the compute grants on the GPU; 1 is the whole GPU.'),
  cotenant_device_utilization_ratio: reading(
    'Fraction of the last sample period in which any kernel ran. Not occupancy.',
    'utilizationPercent',
    100,
  ),
  cotenant_device_memory_busy_ratio: reading(
    'Fraction of the last sample period in which GPU memory was read or written.',
    'memoryBusyPercent',
    100,
  ),
  cotenant_device_encoder_utilization_ratio: reading('Utilization of the video encoder.', 'encoderPercent', 100),
  cotenant_device_decoder_utilization_ratio: reading('Utilization of the video decoder.', 'decoderPercent', 100),
  cotenant_device_temperature_celsius: ofGpu('Temperature.', 'sensor'),
  cotenant_device_power_watts: reading('Power draw.', 'powerMilliwatts', 1000),
  cotenant_device_power_limit_watts: reading('Power limit in force.', 'powerLimitMilliwatts', 1000),
  cotenant_device_clock_hertz: ofGpu('Current clock frequency.', 'domain'),
  cotenant_device_max_clock_hertz: ofGpu('Maximum clock frequency.', 'domain'),
  cotenant_device_healthy: ofGpu('0 when the GPU is lost or needs a reset: the driver says so, or an Xid implies it.'),
  cotenant_device_unhealthy_reason: ofGpu('Why the GPU is cordoned: lost, or the Xid; always 1.', 'reason'),
  cotenant_device_fence_holds: ofGpu(
    'Result of the isolation check on the GPU: 0 when an allocation beyond a grant was not refused.',
    'fence',
  ),
  cotenant_device_containers: ofGpu(
    "Containers that hold memory of the GPU. Absent while the driver's process lists fail.",
  ),
  cotenant_device_processes: ofGpu('Processes that use the GPU, by type.', 'type'),
  cotenant_device_allocation_mode: ofGpu('How the GPU is allocated: 1 for the mode that applies.', 'mode'),
  cotenant_mig_info: ofGpu(
    'A MIG instance, which has metrics as a GPU of its own, and its GPU; always 1.',
    'parent_gpu',
    'parent_uuid',
    'gpu_instance_id',
    'compute_instance_id',
    'profile',
  ),
  cotenant_device_energy_joules_total: counter(
    'Energy used since the driver was loaded.',
    GPU_LABELS,
    'energyMillijoules',
    1000,
  ),
} as const;

type Put = Series<keyof typeof METRICS>['set'];

function migMode({ parent, migEnabled, migModeUnknown }: SampledGpu): string {
  if (parent !== undefined || migModeUnknown) return '';
  return migEnabled ? 'enabled' : 'disabled';
}

function setIdentity({ gpu }: SnapshotDevice, snapshot: Snapshot, labels: Labels, set: Put): void {
  const { cudaVersion, driverVersion, devices } = snapshot;
  const info = {
    ...labels,
    model: gpu.name,
    pci_bus_id: gpu.pciBusId,
    minor: gpu.minor === undefined ? '' : String(gpu.minor),
    driver_version: driverVersion,
    cuda_version: `${Math.floor(cudaVersion / 1000)}.${Math.floor((cudaVersion % 1000) / 10)}`,
    mig_mode: migMode(gpu),
  };
  set('cotenant_device_info', info, 1);
  const parent = devices.find((other) => other.gpu.index === gpu.parent)?.gpu;
  if (!parent) return;
  const instance = {
    ...labels,
    parent_gpu: String(parent.index),
    parent_uuid: parent.uuid,
    gpu_instance_id: String(gpu.gpuInstance ?? ''),
    compute_instance_id: String(gpu.computeInstance ?? ''),
    profile: gpu.name.split(' MIG ')[1] ?? '',
  };
  set('cotenant_mig_info', instance, 1);
}

function setSensors(gpu: SampledGpu, labels: Labels, set: Put): void {
  set('cotenant_device_temperature_celsius', { ...labels, sensor: 'gpu' }, gpu.temperatureC);
  set('cotenant_device_temperature_celsius', { ...labels, sensor: 'memory' }, gpu.memoryTemperatureC);
  set('cotenant_device_clock_hertz', { ...labels, domain: 'sm' }, scaled(gpu.smMhz, HERTZ_PER_MHZ));
  set('cotenant_device_clock_hertz', { ...labels, domain: 'memory' }, scaled(gpu.memoryMhz, HERTZ_PER_MHZ));
  set('cotenant_device_max_clock_hertz', { ...labels, domain: 'sm' }, scaled(gpu.maxSmMhz, HERTZ_PER_MHZ));
  set('cotenant_device_max_clock_hertz', { ...labels, domain: 'memory' }, scaled(gpu.maxMemoryMhz, HERTZ_PER_MHZ));
}

function setSharing(device: SnapshotDevice, labels: Labels, set: Put): void {
  const { gpu } = device;
  const unattributed = gpu.usedBytes === undefined ? undefined : device.unattributedBytes;
  set('cotenant_device_memory_allocated_bytes', labels, device.grantedBytes);
  set('cotenant_device_memory_unattributed_bytes', labels, unattributed);
  set('cotenant_device_compute_policy', { ...labels, ...device.compute }, 1);
  set('cotenant_device_sm_allocated_ratio', labels, device.grantedCoresPercent / 100);
  for (const mode of ['exclusive', 'shared', 'mig', 'none'])
    set('cotenant_device_allocation_mode', { ...labels, mode }, device.mode === mode ? 1 : 0);
  set('cotenant_device_containers', labels, device.containers);
  // A process in an answered list may also be in a list that failed, and would then be of another type.
  const lists = gpu.failedProcessLists ? [] : gpu.processLists;
  for (const type of ['compute', 'graphics', 'mps'] as const)
    if (lists.includes(type)) set('cotenant_device_processes', { ...labels, type }, device.processes[type]);
  if (lists.includes('compute') && lists.includes('graphics'))
    set('cotenant_device_processes', { ...labels, type: 'compute+graphics' }, device.processes.both);
}

function setHealth({ gpu, fault, fences }: SnapshotDevice, labels: Labels, set: Put): void {
  // The driver may also report the GPU as lost because of the Xid: one reason, so that there is one alert.
  const reason = fault ? `xid_${fault.xid}` : gpu.healthy ? undefined : 'lost';
  set('cotenant_device_healthy', labels, reason === undefined ? 1 : 0);
  if (reason !== undefined) set('cotenant_device_unhealthy_reason', { ...labels, reason }, 1);
  for (const fence of ['interposer', 'driver'] as const) {
    const result = fences[fence]?.result;
    if (result !== undefined && result !== 'untried')
      set('cotenant_device_fence_holds', { ...labels, fence }, result === 'holds' ? 1 : 0);
  }
}

export const device = defineCollector({
  name: 'device',
  metrics: METRICS,
  collect(snapshot, { set }) {
    for (const entry of snapshot.devices) {
      const labels = gpuLabels(entry.gpu);
      setIdentity(entry, snapshot, labels, set);
      setReadings(METRICS, entry.gpu, labels, set);
      setSensors(entry.gpu, labels, set);
      setSharing(entry, labels, set);
      setHealth(entry, labels, set);
    }
  },
});
