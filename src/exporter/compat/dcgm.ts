// dcgm-exporter's names for GPUs. One series for each GPU in each family, so that sums over a family are right: pod labels
// are filled where one container alone has the GPU, and empty on a shared one, whose containers are in our own families. An
// instance of a divided GPU goes by its GPU's index and UUID, and by its own profile and number. The number of a replica (`vgpu`)
// is always empty: who has one has no GPU alone.
import { type Family, metricSet } from '../format/family.ts';
import { type CompatContext, createRates, holdersOf, parentOf, profileOf, toMib } from './shared.ts';

const labelsWith = (hostname: string) => [
  ...['gpu', 'UUID', 'pci_bus_id', 'device', 'modelName', hostname, 'GPU_I_PROFILE', 'GPU_I_ID'],
  ...['container', 'namespace', 'pod', 'vgpu'],
];
/** By the label for the node. */
const LABELS = { Hostname: labelsWith('Hostname'), hostname: labelsWith('hostname') };

const toRatio = (ppm: number | undefined): number | undefined => (ppm === undefined ? undefined : ppm / 1e6);

export const dcgm = ({ nodeName }: CompatContext, hostname: keyof typeof LABELS = 'Hostname'): Family => ({
  name: 'compat-dcgm',
  create(registry, guard) {
    const set = metricSet(registry, guard);
    const names = LABELS[hostname];
    const gauge = (name: string, help: string) => set.gauge(`DCGM_FI_DEV_${name}`, help, names);
    const gauges = {
      utilization: gauge('GPU_UTIL', 'GPU utilization (in %).'),
      memoryBusy: gauge('MEM_COPY_UTIL', 'Memory utilization (in %).'),
      encoder: gauge('ENC_UTIL', 'Encoder utilization (in %).'),
      decoder: gauge('DEC_UTIL', 'Decoder utilization (in %).'),
      used: gauge('FB_USED', 'Memory used (in MiB).'),
      free: gauge('FB_FREE', 'Memory free (in MiB).'),
      reserved: gauge('FB_RESERVED', 'Memory that the driver keeps (in MiB).'),
      total: gauge('FB_TOTAL', 'Memory in all (in MiB).'),
      smClock: gauge('SM_CLOCK', 'SM clock (in MHz).'),
      memoryClock: gauge('MEM_CLOCK', 'Memory clock (in MHz).'),
      temperature: gauge('GPU_TEMP', 'GPU temperature (in C).'),
      memoryTemperature: gauge('MEMORY_TEMP', 'Memory temperature (in C).'),
      power: gauge('POWER_USAGE', 'Power draw (in W).'),
      xid: gauge('XID_ERRORS', 'Value of the last Xid; 0: none.'),
    };
    const profiled = (name: string, what: string) => set.gauge(`DCGM_FI_PROF_${name}`, `Ratio of ${what}.`, names);
    const profile = {
      graphics: profiled('GR_ENGINE_ACTIVE', 'time the graphics engine is active'),
      sm: profiled('SM_ACTIVE', 'time an SM has at least one warp, averaged over all SMs'),
      occupancy: profiled('SM_OCCUPANCY', 'warps on an SM to those that it has room for'),
      tensor: profiled('PIPE_TENSOR_ACTIVE', 'time the tensor pipe is active'),
      dram: profiled('DRAM_ACTIVE', 'time the device memory interface is active'),
      fp32: profiled('PIPE_FP32_ACTIVE', 'time the FP32 pipe is active'),
    };
    const sent = (name: string, what: string) =>
      set.gauge(`DCGM_FI_PROF_${name}_BYTES`, `Bytes per second ${what}, over the last ten seconds or more.`, names);
    const links = {
      pcieSent: sent('PCIE_TX', 'sent over PCIe'),
      pcieReceived: sent('PCIE_RX', 'received over PCIe'),
      nvlinkSent: sent('NVLINK_TX', 'sent over all NVLinks'),
      nvlinkReceived: sent('NVLINK_RX', 'received over all NVLinks'),
    };
    const ratesAt = createRates();
    const energy = set.counter(
      'DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION',
      'Energy since the driver was loaded (in mJ).',
      names,
    );
    return {
      clear: set.clear,
      fill(snapshot) {
        const holders = Map.groupBy(holdersOf(snapshot), ({ gpuUuid }) => gpuUuid);
        const rate = ratesAt(snapshot.atMs);
        for (const { gpu, mode } of snapshot.devices) {
          const whole = parentOf(snapshot, gpu) ?? gpu;
          const [alone, ...more] = holders.get(gpu.uuid) ?? [];
          const who = mode !== 'shared' && more.length === 0 ? alone : undefined;
          const labels = {
            gpu: String(whole.index),
            UUID: whole.uuid,
            pci_bus_id: whole.pciBusId,
            device: `nvidia${whole.minor ?? whole.index}`,
            modelName: whole.name,
            [hostname]: nodeName,
            GPU_I_PROFILE: profileOf(gpu),
            GPU_I_ID: gpu.gpuInstance === undefined ? '' : String(gpu.gpuInstance),
            container: who?.container ?? '',
            namespace: who?.namespace ?? '',
            pod: who?.pod ?? '',
            vgpu: '',
          };
          gauges.utilization(labels, gpu.utilizationPercent);
          gauges.memoryBusy(labels, gpu.memoryBusyPercent);
          gauges.encoder(labels, gpu.encoderPercent);
          gauges.decoder(labels, gpu.decoderPercent);
          gauges.used(labels, toMib(gpu.usedBytes));
          gauges.free(labels, toMib(gpu.freeBytes));
          gauges.reserved(labels, toMib(gpu.reservedBytes));
          gauges.total(labels, toMib(gpu.totalBytes));
          gauges.smClock(labels, gpu.smMhz);
          gauges.memoryClock(labels, gpu.memoryMhz);
          gauges.temperature(labels, gpu.temperatureC);
          gauges.memoryTemperature(labels, gpu.memoryTemperatureC);
          gauges.power(labels, gpu.powerMw === undefined ? undefined : gpu.powerMw / 1000);
          const raised = snapshot.xids.filter((total) => total.gpuUuid === gpu.uuid && total.lastMs !== undefined);
          const last = raised.toSorted((a, b) => (b.lastMs ?? 0) - (a.lastMs ?? 0))[0];
          gauges.xid(labels, last ? Number(last.xid) : gpu.tellsEvents ? 0 : undefined);
          profile.graphics(labels, toRatio(gpu.graphicsActivePpm));
          profile.sm(labels, toRatio(gpu.smActivePpm));
          profile.occupancy(labels, toRatio(gpu.smOccupancyPpm));
          profile.tensor(labels, toRatio(gpu.tensorActivePpm));
          profile.dram(labels, toRatio(gpu.dramActivePpm));
          profile.fp32(labels, toRatio(gpu.fp32ActivePpm));
          energy(labels, gpu.energyMj);
          links.pcieSent(labels, rate(`${gpu.uuid} pcie sent`, gpu.pcieSentBytes));
          links.pcieReceived(labels, rate(`${gpu.uuid} pcie received`, gpu.pcieReceivedBytes));
          links.nvlinkSent(labels, rate(`${gpu.uuid} nvlink sent`, gpu.nvlinkSentBytes));
          links.nvlinkReceived(labels, rate(`${gpu.uuid} nvlink received`, gpu.nvlinkReceivedBytes));
        }
      },
    };
  },
});
