// How busy the parts of cards and instances are, by the cards' own counters (NVML's GPM; Hopper and later). Never of a
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
      fill(view) {
        for (const { card } of view.devices) {
          const labels = deviceLabels(card.index, card.uuid);
          graphics(labels, card.graphicsActivePpm);
          sm(labels, card.smActivePpm);
          occupancy(labels, card.smOccupancyPpm);
          tensor(labels, card.tensorActivePpm);
          dram(labels, card.dramActivePpm);
          fp32(labels, card.fp32ActivePpm);
        }
      },
    };
  },
};
