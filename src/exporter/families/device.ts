// GPUs: what they are, hold and do, as the driver tells it. Absent where the driver does not.
import type { SampledGpu } from '../../agent/sampling/sample.ts';
import { DEVICE_LABELS, deviceLabels, type Family, metricSet } from '../format/family.ts';

const MHZ = 1e6;

function migMode({ parent, divided, divisionUntold }: SampledGpu): string {
  if (parent !== undefined || divisionUntold) return '';
  return divided ? 'enabled' : 'disabled';
}

export const device: Family = {
  name: 'device',
  create(registry, guard) {
    const set = metricSet(registry, guard);
    const gauge = (name: string, help: string, labels: readonly string[] = []) =>
      set.gauge(`cotenant_device_${name}`, help, [...DEVICE_LABELS, ...labels]);
    const info = gauge('info', 'A GPU of this node; always 1.', [
      'model',
      'pci_bus_id',
      'minor',
      'driver_version',
      'cuda_version',
      'mig_mode',
    ]);
    const total = gauge('memory_total_bytes', 'Memory of the GPU.');
    const used = gauge('memory_used_bytes', "Memory in use, without the driver's own where the driver tells it apart.");
    const free = gauge('memory_free_bytes', 'Memory that the driver can still give.');
    const reserved = gauge('memory_reserved_bytes', 'Memory that the driver keeps for itself.');
    const allocated = gauge('memory_allocated_bytes', 'Sum of the memory grants on the GPU.');
    const unattributed = gauge(
      'unattributed_memory_bytes',
      'Used memory that belongs to no container that could be told: managed memory, processes of the host, ghosts.',
    );
    const policy = gauge('compute_policy', 'The policy of its compute, and who said so; always 1.', [
      'policy',
      'source',
    ]);
    const smAllocated = gauge('sm_allocated_ratio', 'Sum of the compute grants on the GPU, 1 being all of it.');
    const utilization = gauge(
      'utilization_ratio',
      'Share of the last sample period in which any kernel ran; not occupancy.',
    );
    const memoryBusy = gauge(
      'memory_busy_ratio',
      'Share of the last sample period in which memory was read or written.',
    );
    const encoder = gauge('encoder_utilization_ratio', 'Use of the video encoder.');
    const decoder = gauge('decoder_utilization_ratio', 'Use of the video decoder.');
    const temperature = gauge('temperature_celsius', 'Temperature.', ['sensor']);
    const power = gauge('power_watts', 'Power drawn.');
    const powerLimit = gauge('power_limit_watts', 'Power limit in force.');
    const clock = gauge('clock_hertz', 'Present clock.', ['domain']);
    const maxClock = gauge('max_clock_hertz', 'Highest clock.', ['domain']);
    const healthy = gauge(
      'healthy',
      '0 when the GPU is lost or wants a reset: by the driver, or after an Xid that says so.',
    );
    const unhealthy = gauge('unhealthy_reason', 'Why the GPU takes nobody new: lost, or the Xid; always 1.', [
      'reason',
    ]);
    const fenceHolds = gauge('fence_holds', '0 when what exceeds a grant on the GPU is not refused, as was tried.', [
      'fence',
    ]);
    const containers = gauge(
      'containers',
      'Containers that hold memory of the GPU. Absent while the driver does not tell who uses it.',
    );
    const processes = gauge('processes', 'Processes that use the GPU.', ['type']);
    const mode = gauge('allocation_mode', 'How the GPU is given out.', ['mode']);
    const instance = set.gauge('cotenant_mig_info', 'An instance of a divided GPU, a GPU of its own here; always 1.', [
      ...DEVICE_LABELS,
      'parent_gpu',
      'parent_uuid',
      'gpu_instance_id',
      'compute_instance_id',
      'profile',
    ]);
    const energy = set.counter(
      'cotenant_device_energy_joules_total',
      'Energy used since the driver was loaded.',
      DEVICE_LABELS,
    );
    return {
      clear: set.clear,
      fill(snapshot) {
        for (const entry of snapshot.devices) {
          const { gpu } = entry;
          const labels = deviceLabels(gpu.index, gpu.uuid);
          const scaled = (value: number | undefined, factor: number) =>
            value === undefined ? undefined : value * factor;
          info(
            {
              ...labels,
              model: gpu.name,
              pci_bus_id: gpu.pciBusId,
              minor: gpu.minor === undefined ? '' : String(gpu.minor),
              driver_version: snapshot.driverVersion,
              cuda_version: `${Math.floor(snapshot.cudaVersion / 1000)}.${Math.floor((snapshot.cudaVersion % 1000) / 10)}`,
              mig_mode: migMode(gpu),
            },
            1,
          );
          const parent = snapshot.devices.find((other) => other.gpu.index === gpu.parent)?.gpu;
          if (parent) {
            instance(
              {
                ...labels,
                parent_gpu: String(parent.index),
                parent_uuid: parent.uuid,
                gpu_instance_id: String(gpu.gpuInstance ?? ''),
                compute_instance_id: String(gpu.computeInstance ?? ''),
                profile: gpu.name.split(' MIG ')[1] ?? '',
              },
              1,
            );
          }
          total(labels, gpu.totalBytes);
          used(labels, gpu.usedBytes);
          free(labels, gpu.freeBytes);
          reserved(labels, gpu.reservedBytes);
          allocated(labels, entry.grantedBytes);
          unattributed(labels, gpu.usedBytes === undefined ? undefined : entry.unattributedBytes);
          policy({ ...labels, ...entry.compute }, 1);
          smAllocated(labels, entry.grantedCoresPercent / 100);
          utilization(labels, scaled(gpu.utilizationPercent, 0.01));
          memoryBusy(labels, scaled(gpu.memoryBusyPercent, 0.01));
          encoder(labels, scaled(gpu.encoderPercent, 0.01));
          decoder(labels, scaled(gpu.decoderPercent, 0.01));
          temperature({ ...labels, sensor: 'gpu' }, gpu.temperatureC);
          temperature({ ...labels, sensor: 'memory' }, gpu.memoryTemperatureC);
          power(labels, scaled(gpu.powerMw, 0.001));
          powerLimit(labels, scaled(gpu.powerLimitMw, 0.001));
          clock({ ...labels, domain: 'sm' }, scaled(gpu.smMhz, MHZ));
          clock({ ...labels, domain: 'memory' }, scaled(gpu.memoryMhz, MHZ));
          maxClock({ ...labels, domain: 'sm' }, scaled(gpu.maxSmMhz, MHZ));
          maxClock({ ...labels, domain: 'memory' }, scaled(gpu.maxMemoryMhz, MHZ));
          // The Xid first: what the driver says of the GPU follows from it, and one reason is one alert.
          const reason = entry.fault ? `xid_${entry.fault.xid}` : gpu.healthy ? undefined : 'lost';
          healthy(labels, reason === undefined ? 1 : 0);
          if (reason !== undefined) unhealthy({ ...labels, reason }, 1);
          for (const fence of ['interposer', 'driver'] as const) {
            const verdict = entry.fences[fence];
            if (verdict && verdict.result !== 'untried')
              fenceHolds({ ...labels, fence }, verdict.result === 'holds' ? 1 : 0);
          }
          containers(labels, entry.containers);
          // Of what kind somebody is who is in a list that answered, one that failed might say, too.
          const lists = gpu.failedLists ? [] : gpu.lists;
          for (const type of ['compute', 'graphics', 'mps'] as const) {
            if (lists.includes(type)) processes({ ...labels, type }, entry.processes[type]);
          }
          if (lists.includes('compute') && lists.includes('graphics'))
            processes({ ...labels, type: 'compute+graphics' }, entry.processes.both);
          for (const name of ['exclusive', 'shared', 'mig', 'none'])
            mode({ ...labels, mode: name }, entry.mode === name ? 1 : 0);
          energy(labels, scaled(gpu.energyMj, 0.001));
        }
      },
    };
  },
};
