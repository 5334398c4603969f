// Makes a grant smaller while it is in use: memory that its processes hold stays allowed, and counted on the GPU, until
// they release it. Pure.
import type { GpuGrant } from '../../api/gpu.ts';
import { gpuWithProcessData, type Sample, type SampledProcess } from '../sampling/sample.ts';

/** How much it may hold without exceeding its grant. New requests are refused above `limitBytes`. */
export const allowedBytes = (gpu: GpuGrant): number => Math.max(gpu.limitBytes, gpu.heldBytes ?? 0);

/** The grant with `bytes`; what it was allowed to hold until now stays allowed. */
export function resizeGpu(gpu: GpuGrant, bytes: number): GpuGrant {
  const { heldBytes: _, ...rest } = gpu;
  const before = allowedBytes(gpu);
  return { ...rest, memoryBytes: bytes, limitBytes: bytes, ...(before > bytes && { heldBytes: before }) };
}

/**
 * Bytes that its processes hold on a GPU by the driver's figures; undefined where this sample is incomplete. A missing
 * process list does not prove a release: the container would be stopped for memory that it still holds.
 */
export function reportedUsage(gpuUuid: string, sample: Sample, own: readonly SampledProcess[]): number | undefined {
  const gpu = gpuWithProcessData(sample, gpuUuid);
  if (!gpu) return undefined;
  const uses = own.flatMap((process) => process.gpus.filter((use) => use.gpu === gpu.index && use.listed));
  return uses.reduce<number | undefined>(
    (sum, { bytes }) => (sum === undefined || bytes === undefined ? undefined : sum + bytes),
    0,
  );
}

/** After a sample in which it held `bytes`: released memory is not allowed again. The same object where nothing
 * changed. */
export function shrinkToUsage(gpu: GpuGrant, bytes: number): GpuGrant {
  if (gpu.heldBytes === undefined || bytes >= gpu.heldBytes) return gpu;
  const { heldBytes: _, ...rest } = gpu;
  return bytes > gpu.limitBytes ? { ...rest, heldBytes: bytes } : rest;
}
