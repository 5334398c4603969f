// How busy the parts of GPUs and instances are, by the GPUs' own counters (NVML's GPM; Hopper and later). Never of a
// process. Absent where the driver does not tell.
import { DEVICE_LABELS, deviceLabels, type Family, metricSet } from '../format/family.ts';

const PPM = 1e6;

export const activity: Family = {
  name: 'activity',
  create(registry, guard) {
    const set = metricSet(registry, guard);
    const gauge = (name: string, help: string) => {
      const show = set.gauge(`cotenant_device_${name}_ratio`, `${help}, between two samples.`, DEVICE_LABELS);
      return (labels: Readonly<Record<string, string>>, ppm: number | undefined) =>
        show(labels, ppm === undefined ? undefined : ppm / PPM);
    };
    const graphics = gauge('graphics_active', 'Share of time in which anything ran');
    const sm = gauge('sm_active', 'Share of SMs and time with a block at work');
    const occupancy = gauge('sm_occupancy', 'Share of the warps that the SMs have room for');
    const tensor = gauge('tensor_active', 'Share of time in which tensor cores worked');
    const dram = gauge('dram_active', 'Share of time in which memory was read or written');
    const fp32 = gauge('fp32_active', 'Share of time in which units for single precision worked');
    return {
      clear: set.clear,
      fill(snapshot) {
        for (const { gpu } of snapshot.devices) {
          const labels = deviceLabels(gpu.index, gpu.uuid);
          graphics(labels, gpu.graphicsActivePpm);
          sm(labels, gpu.smActivePpm);
          occupancy(labels, gpu.smOccupancyPpm);
          tensor(labels, gpu.tensorActivePpm);
          dram(labels, gpu.dramActivePpm);
          fp32(labels, gpu.fp32ActivePpm);
        }
      },
    };
  },
};
