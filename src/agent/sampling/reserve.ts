// What the driver keeps of a GPU for itself, where NVML does not report it: drivers before 510 count it as used. Pure.
import type { Sample } from './sample.ts';

/** `usableOf`: what CUDA reports as a GPU's total memory, once calibration has asked. */
export function withReserve(sample: Sample, usableOf: (gpuUuid: string) => number | undefined): Sample {
  const isSilent = (gpu: Sample['gpus'][number]) => gpu.reservedBytes === undefined && gpu.parent === undefined;
  if (!sample.gpus.some(isSilent)) return sample;
  return {
    ...sample,
    gpus: sample.gpus.map((gpu) => {
      const usable = isSilent(gpu) ? usableOf(gpu.uuid) : undefined;
      if (usable === undefined || gpu.totalBytes === undefined || usable > gpu.totalBytes) return gpu;
      const reservedBytes = gpu.totalBytes - usable;
      const used = gpu.usedBytes === undefined ? {} : { usedBytes: Math.max(0, gpu.usedBytes - reservedBytes) };
      return { ...gpu, ...used, reservedBytes };
    }),
  };
}
