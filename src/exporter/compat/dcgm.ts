// dcgm-exporter's names for cards. One series for each card in each family, so that sums over a family are right: pod labels
// are filled where one container alone has the card, and empty on a shared one, whose containers are in our own families. An
// instance of a divided card goes by its card's index and UUID, and by its own profile and number. The number of a replica (`vgpu`)
// is always empty: who has one has no card alone.
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
      fill(view) {
        const holders = Map.groupBy(holdersOf(view), ({ gpuUuid }) => gpuUuid);
        const rate = ratesAt(view.atMs);
        for (const { card, mode } of view.devices) {
          const whole = parentOf(view, card) ?? card;
          const [alone, ...more] = holders.get(card.uuid) ?? [];
          const who = mode !== 'shared' && more.length === 0 ? alone : undefined;
          const labels = {
            gpu: String(whole.index),
            UUID: whole.uuid,
            pci_bus_id: whole.pciBusId,
            device: `nvidia${whole.minor ?? whole.index}`,
            modelName: whole.name,
            [hostname]: nodeName,
            GPU_I_PROFILE: profileOf(card),
            GPU_I_ID: card.gpuInstance === undefined ? '' : String(card.gpuInstance),
            container: who?.container ?? '',
            namespace: who?.namespace ?? '',
            pod: who?.pod ?? '',
            vgpu: '',
          };
          gauges.utilization(labels, card.utilizationPercent);
          gauges.memoryBusy(labels, card.memoryBusyPercent);
          gauges.encoder(labels, card.encoderPercent);
          gauges.decoder(labels, card.decoderPercent);
          gauges.used(labels, toMib(card.usedBytes));
          gauges.free(labels, toMib(card.freeBytes));
          gauges.reserved(labels, toMib(card.reservedBytes));
          gauges.total(labels, toMib(card.totalBytes));
          gauges.smClock(labels, card.smMhz);
          gauges.memoryClock(labels, card.memoryMhz);
          gauges.temperature(labels, card.temperatureC);
          gauges.memoryTemperature(labels, card.memoryTemperatureC);
          gauges.power(labels, card.powerMw === undefined ? undefined : card.powerMw / 1000);
          const raised = view.xids.filter((total) => total.gpuUuid === card.uuid && total.lastMs !== undefined);
          const last = raised.toSorted((a, b) => (b.lastMs ?? 0) - (a.lastMs ?? 0))[0];
          gauges.xid(labels, last ? Number(last.xid) : card.tellsEvents ? 0 : undefined);
          profile.graphics(labels, toRatio(card.graphicsActivePpm));
          profile.sm(labels, toRatio(card.smActivePpm));
          profile.occupancy(labels, toRatio(card.smOccupancyPpm));
          profile.tensor(labels, toRatio(card.tensorActivePpm));
          profile.dram(labels, toRatio(card.dramActivePpm));
          profile.fp32(labels, toRatio(card.fp32ActivePpm));
          energy(labels, card.energyMj);
          links.pcieSent(labels, rate(`${card.uuid} pcie sent`, card.pcieSentBytes));
          links.pcieReceived(labels, rate(`${card.uuid} pcie received`, card.pcieReceivedBytes));
          links.nvlinkSent(labels, rate(`${card.uuid} nvlink sent`, card.nvlinkSentBytes));
          links.nvlinkReceived(labels, rate(`${card.uuid} nvlink received`, card.nvlinkReceivedBytes));
        }
      },
    };
  },
});
