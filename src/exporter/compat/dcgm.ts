// The metrics of dcgm-exporter for GPUs. One series per GPU in each metric, so that sums are right: the labels of a pod
// are set where one container has the GPU alone, and empty on a shared GPU, whose containers are in our own metrics. A
// MIG instance has its GPU's index and UUID, and its own profile and instance number. `vgpu`, the number of a replica,
// is always empty.
import { MIB } from '../../common/quantity.ts';
import { counter, defineCollector, gauge, setReadings } from '../collectors/collector.ts';
import { type CompatContext, createRates, holdersOf, parentOf, profileOf } from './shared.ts';

const labelsWith = (hostname: string) => [
  ...['gpu', 'UUID', 'pci_bus_id', 'device', 'modelName', hostname, 'GPU_I_PROFILE', 'GPU_I_ID'],
  ...['container', 'namespace', 'pod', 'vgpu'],
];

const metricsWith = (labels: readonly string[]) => ({
  DCGM_FI_DEV_GPU_UTIL: gauge('GPU utilization (in %).', labels, 'utilizationPercent'),
  DCGM_FI_DEV_MEM_COPY_UTIL: gauge('Memory utilization (in %).', labels, 'memoryBusyPercent'),
  DCGM_FI_DEV_ENC_UTIL: gauge('Encoder utilization (in %).', labels, 'encoderPercent'),
  DCGM_FI_DEV_DEC_UTIL: gauge('Decoder utilization (in %).', labels, 'decoderPercent'),
  DCGM_FI_DEV_FB_USED: gauge('Memory used (in MiB).', labels, 'usedBytes', MIB),
  DCGM_FI_DEV_FB_FREE: gauge('Memory free (in MiB).', labels, 'freeBytes', MIB),
  DCGM_FI_DEV_FB_RESERVED: gauge('Memory that the driver reserves (in MiB).', labels, 'reservedBytes', MIB),
  DCGM_FI_DEV_FB_TOTAL: gauge('Total memory (in MiB).', labels, 'totalBytes', MIB),
  DCGM_FI_DEV_SM_CLOCK: gauge('SM clock (in MHz).', labels, 'smMhz'),
  DCGM_FI_DEV_MEM_CLOCK: gauge('Memory clock (in MHz).', labels, 'memoryMhz'),
  DCGM_FI_DEV_GPU_TEMP: gauge('GPU temperature (in C).', labels, 'temperatureC'),
  DCGM_FI_DEV_MEMORY_TEMP: gauge('Memory temperature (in C).', labels, 'memoryTemperatureC'),
  DCGM_FI_DEV_POWER_USAGE: gauge('Power draw (in W).', labels, 'powerMilliwatts', 1000),
  DCGM_FI_DEV_XID_ERRORS: gauge('Code of the last Xid; 0 without any.', labels),
  DCGM_FI_PROF_GR_ENGINE_ACTIVE: gauge(
    'Ratio of time the graphics engine is active.',
    labels,
    'graphicsActivePpm',
    1e6,
  ),
  DCGM_FI_PROF_SM_ACTIVE: gauge(
    'Ratio of time an SM has at least one warp, averaged over all SMs.',
    labels,
    'smActivePpm',
    1e6,
  ),
  DCGM_FI_PROF_SM_OCCUPANCY: gauge('Ratio of warps on an SM to the maximum.', labels, 'smOccupancyPpm', 1e6),
  DCGM_FI_PROF_PIPE_TENSOR_ACTIVE: gauge('Ratio of time the tensor pipe is active.', labels, 'tensorActivePpm', 1e6),
  DCGM_FI_PROF_DRAM_ACTIVE: gauge('Ratio of time the device memory interface is active.', labels, 'dramActivePpm', 1e6),
  DCGM_FI_PROF_PIPE_FP32_ACTIVE: gauge('Ratio of time the FP32 pipe is active.', labels, 'fp32ActivePpm', 1e6),
  DCGM_FI_PROF_PCIE_TX_BYTES: gauge('Bytes per second sent over PCIe, over ten seconds or more.', labels),
  DCGM_FI_PROF_PCIE_RX_BYTES: gauge('Bytes per second received over PCIe, over ten seconds or more.', labels),
  DCGM_FI_PROF_NVLINK_TX_BYTES: gauge('Bytes per second sent over all NVLinks, over ten seconds or more.', labels),
  DCGM_FI_PROF_NVLINK_RX_BYTES: gauge('Bytes per second received over all NVLinks, over ten seconds or more.', labels),
  DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION: counter(
    'Energy since the driver was loaded (in mJ).',
    labels,
    'energyMillijoules',
  ),
});

/** `hostname`: the label for the node. */
export const dcgm = ({ nodeName }: CompatContext, hostname: 'Hostname' | 'hostname' = 'Hostname') => {
  const ratesAt = createRates();
  const metrics = metricsWith(labelsWith(hostname));
  return defineCollector({
    name: 'compat-dcgm',
    metrics,
    collect(snapshot, { set }) {
      const holders = Map.groupBy(holdersOf(snapshot), ({ gpuUuid }) => gpuUuid);
      const rate = ratesAt(snapshot.atMs);
      for (const { gpu, mode } of snapshot.devices) {
        const whole = parentOf(snapshot, gpu) ?? gpu;
        const [first, ...more] = holders.get(gpu.uuid) ?? [];
        const alone = mode !== 'shared' && more.length === 0 ? first : undefined;
        const labels = {
          gpu: String(whole.index),
          UUID: whole.uuid,
          pci_bus_id: whole.pciBusId,
          device: `nvidia${whole.minor ?? whole.index}`,
          modelName: whole.name,
          [hostname]: nodeName,
          GPU_I_PROFILE: profileOf(gpu),
          GPU_I_ID: gpu.gpuInstance === undefined ? '' : String(gpu.gpuInstance),
          container: alone?.container ?? '',
          namespace: alone?.namespace ?? '',
          pod: alone?.pod ?? '',
          vgpu: '',
        };
        setReadings(metrics, gpu, labels, set);
        const raised = snapshot.xids.filter((total) => total.gpuUuid === gpu.uuid && total.lastMs !== undefined);
        const last = raised.toSorted((a, b) => (b.lastMs ?? 0) - (a.lastMs ?? 0))[0];
        set('DCGM_FI_DEV_XID_ERRORS', labels, last ? Number(last.xid) : gpu.reportsXids ? 0 : undefined);
        set('DCGM_FI_PROF_PCIE_TX_BYTES', labels, rate(`${gpu.uuid} pcie sent`, gpu.pcieSentBytes));
        set('DCGM_FI_PROF_PCIE_RX_BYTES', labels, rate(`${gpu.uuid} pcie received`, gpu.pcieReceivedBytes));
        set('DCGM_FI_PROF_NVLINK_TX_BYTES', labels, rate(`${gpu.uuid} nvlink sent`, gpu.nvlinkSentBytes));
        set('DCGM_FI_PROF_NVLINK_RX_BYTES', labels, rate(`${gpu.uuid} nvlink received`, gpu.nvlinkReceivedBytes));
      }
    },
  });
};
