// A grant that is made smaller while it is in use. What its holder has already is not taken away and not held against it: it
// stays allowed, and counted on the GPU, until it is given back. Pure; who stores and writes it is the registry's.
import type { GpuGrant } from '../../api/gpu.ts';
import { gpuWithProcessData, type Sample, type SampledProcess } from '../sampling/sample.ts';

/** What it may hold without being over its grant. New requests are refused above `limitBytes` all the same. */
export const allowedBytes = (gpu: GpuGrant): number => Math.max(gpu.limitBytes, gpu.heldBytes ?? 0);

/** The grant with `bytes`; all that it could hold until now may be held still. */
export function resizeGpu(gpu: GpuGrant, bytes: number): GpuGrant {
  const { heldBytes: _, ...rest } = gpu;
  const before = allowedBytes(gpu);
  return { ...rest, memoryBytes: bytes, limitBytes: bytes, ...(before > bytes && { heldBytes: before }) };
}

/**
 * Bytes that its processes hold on a GPU by the driver's word; undefined where this sample does not tell. A list that was
 * not answered is no proof of anything given back: whoever holds it still would be stopped for it.
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

/** After a sample in which it held `bytes`: what is given back stays given back. The same object where nothing changed. */
export function shrinkToUsage(gpu: GpuGrant, bytes: number): GpuGrant {
  if (gpu.heldBytes === undefined || bytes >= gpu.heldBytes) return gpu;
  const { heldBytes: _, ...rest } = gpu;
  return bytes > gpu.limitBytes ? { ...rest, heldBytes: bytes } : rest;
}
