// Amounts of memory and compute are given in total over a tenant's GPUs, and granted on each of them.
import { MOST_MEMORY_BYTES } from '../../api/request.ts';
import { binaryText, formatBytes, MIB, meantBytes, parseQuantity } from '../../common/quantity.ts';
import { UsageError } from './command.ts';

/** Bytes on each of the GPUs; `given`: as it was written. */
export function memoryOfEach(given: string, totalBytes: number, gpus: number): number {
  const bytes = totalBytes / gpus;
  if (bytes > 0 && bytes % MIB === 0) return bytes;
  const meant = meantMemory(given, gpus);
  if (meant !== undefined) throw new UsageError(`--gpu-memory ${given} counts bytes; write ${meant}`);
  const nearest = Math.max(1, Math.round(bytes / MIB)) * gpus;
  throw new UsageError(
    `--gpu-memory ${given} on ${gpus} GPU(s): want a whole number of MiB on each; the nearest is ${nearest}Mi`,
  );
}

/** What was meant by a number without a unit, or by a unit in other letters; undefined where neither was written. */
export function meantMemory(given: string, gpus = 1): string | undefined {
  const parsed = parseQuantity(given);
  if (!parsed.ok) {
    const binary = binaryText(given.replace(',', '.'));
    return parseQuantity(binary).ok ? binary : undefined;
  }
  const { numerator, denominator } = parsed.value;
  if (numerator <= 0n || numerator >= BigInt(MIB) * denominator) return undefined;
  if (/^\d*\.\d+$/.test(given)) return `${given}Gi`;
  return /^\d+([km]|[eE]\d+)?$/.test(given) ? meantBytes(parsed.value, gpus).replaceAll('"', '') : undefined;
}

/** What is wrong with an amount of memory that cannot be read, and what would be right. */
export function memoryProblem(given: string, wrong: string, gpus = 1): string {
  const meant = meantMemory(given, gpus);
  const right = meant ?? `1Mi to ${formatBytes(MOST_MEMORY_BYTES)}, such as 2Gi`;
  return `--gpu-memory ${given} ${wrong}; write ${right}`;
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
