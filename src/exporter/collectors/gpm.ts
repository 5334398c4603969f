// Activity of the units of a GPU or MIG instance, from its hardware counters (NVML's GPM; Hopper and later). Not per
// process.
import { defineCollector, gpuLabels, reading, setReadings } from './collector.ts';

const ratio = (help: string, field: Parameters<typeof reading>[1]) =>
  reading(`${help}, between two samples.`, field, 1e6);

const METRICS = {
  cotenant_device_graphics_active_ratio: ratio(
    'Fraction of time in which the graphics or compute engine was active',
    'graphicsActivePpm',
  ),
  cotenant_device_sm_active_ratio: ratio(
    'Fraction of time in which an SM had a block assigned, averaged over all SMs',
    'smActivePpm',
  ),
  cotenant_device_sm_occupancy_ratio: ratio(
    'Resident warps relative to the maximum, averaged over all SMs',
    'smOccupancyPpm',
  ),
  cotenant_device_tensor_active_ratio: ratio(
    'Fraction of time in which the tensor cores were active',
    'tensorActivePpm',
  ),
  cotenant_device_dram_active_ratio: ratio('Fraction of time in which GPU memory was read or written', 'dramActivePpm'),
  cotenant_device_fp32_active_ratio: ratio('Fraction of time in which the FP32 units were active', 'fp32ActivePpm'),
};

export const gpm = defineCollector({
  name: 'gpm',
  metrics: METRICS,
  collect({ devices }, { set }) {
    for (const { gpu } of devices) setReadings(METRICS, gpu, gpuLabels(gpu), set);
  },
});
