// Amounts of memory and compute are given in total over a tenant's GPUs, and granted on each of them.
import { MIB } from '../../common/quantity.ts';
import { UsageError } from './command.ts';

/** Bytes on each of the GPUs; `given`: as it was written. */
export function memoryOfEach(given: string, totalBytes: number, gpus: number): number {
  const bytes = totalBytes / gpus;
  if (bytes > 0 && bytes % MIB === 0) return bytes;
  const nearest = Math.max(1, Math.round(bytes / MIB)) * gpus;
  throw new UsageError(
    `--gpu-memory ${given} on ${gpus} GPU(s): want a whole number of MiB on each; the nearest is ${nearest}Mi`,
  );
}

/** Percent of each of the GPUs. */
export function coresOfEach(total: number, gpus: number): number {
  if (total > 100 * gpus) throw new UsageError(`--gpu-cores ${total} on ${gpus} GPU(s): want at most ${100 * gpus}`);
  if (total % gpus === 0) return total / gpus;
  const least = Math.floor(total / gpus) * gpus;
  throw new UsageError(
    `--gpu-cores ${total} on ${gpus} GPU(s): want a whole percent of each, such as ${least} or ${least + gpus}`,
  );
}
