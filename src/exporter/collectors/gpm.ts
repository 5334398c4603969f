// Activity of the units of a GPU or MIG instance, from its hardware counters (NVML's GPM; Hopper and later). Not per
// process.
import { defineCollector, GPU_LABELS, gauge, gpuLabels } from './collector.ts';

const ratio = (help: string) => gauge(`${help}, between two samples.`, GPU_LABELS);
const ratioOf = (ppm: number | undefined): number | undefined => (ppm === undefined ? undefined : ppm / 1e6);

export const gpm = defineCollector({
  name: 'gpm',
  metrics: {
    cotenant_device_graphics_active_ratio: ratio('Fraction of time in which the graphics or compute engine was active'),
    cotenant_device_sm_active_ratio: ratio(
      'Fraction of time in which an SM had a block assigned, averaged over all SMs',
    ),
    cotenant_device_sm_occupancy_ratio: ratio('Resident warps relative to the maximum, averaged over all SMs'),
    cotenant_device_tensor_active_ratio: ratio('Fraction of time in which the tensor cores were active'),
    cotenant_device_dram_active_ratio: ratio('Fraction of time in which GPU memory was read or written'),
    cotenant_device_fp32_active_ratio: ratio('Fraction of time in which the FP32 units were active'),
  },
  collect({ devices }, { set }) {
    for (const { gpu } of devices) {
      const labels = gpuLabels(gpu);
      set('cotenant_device_graphics_active_ratio', labels, ratioOf(gpu.graphicsActivePpm));
      set('cotenant_device_sm_active_ratio', labels, ratioOf(gpu.smActivePpm));
      set('cotenant_device_sm_occupancy_ratio', labels, ratioOf(gpu.smOccupancyPpm));
      set('cotenant_device_tensor_active_ratio', labels, ratioOf(gpu.tensorActivePpm));
      set('cotenant_device_dram_active_ratio', labels, ratioOf(gpu.dramActivePpm));
      set('cotenant_device_fp32_active_ratio', labels, ratioOf(gpu.fp32ActivePpm));
    }
  },
});
