// Amounts of memory and compute are given in total over a tenant's GPUs, and granted on each of them.
import { MOST_MEMORY_BYTES } from '../../api/request.ts';
import {
  binaryText,
  floorUnits,
  formatBytes,
  MIB,
  meantBytes,
  parseQuantity,
  wholeUnits,
} from '../../common/quantity.ts';
import { given, UsageError } from './command.ts';

/** Bytes on each of the GPUs; `text`: as it was written. */
export function memoryOfEach(text: string, totalBytes: number, gpus: number): number {
  const bytes = totalBytes / gpus;
  if (bytes > 0 && bytes % MIB === 0) return bytes;
  const meant = meantMemory(text, gpus);
  if (meant !== undefined) throw new UsageError(`${given('gpu-memory', text)} counts bytes; write ${meant}`);
  const nearest = Math.max(1, Math.round(bytes / MIB)) * gpus;
  throw new UsageError(
    `${given('gpu-memory', text)} on ${gpus} GPU(s): want a whole number of MiB on each; the nearest is ${nearest}Mi`,
  );
}

/** What was meant by a number without a unit, or by a unit in other letters; undefined where neither was written. */
export function meantMemory(text: string, gpus = 1): string | undefined {
  const bare = parseQuantity(text).ok ? text.replace(/^\+/, '') : binaryText(text);
  const parsed = parseQuantity(bare);
  if (!parsed.ok) return undefined;
  const { numerator, denominator } = parsed.value;
  if (numerator <= 0n) return undefined;
  if (numerator >= BigInt(MIB) * denominator) return bare === text ? undefined : splittable(bare, gpus);
  if (/^\d*\.\d+$/.test(bare)) return splittable(`${bare}Gi`, gpus);
  return /^\d+([km]|[eE]\d+)?$/.test(bare) ? meantBytes(parsed.value, gpus).replaceAll('"', '') : undefined;
}

/** The amount, or in its place the next one that is whole MiB on each of the GPUs. */
function splittable(amount: string, gpus: number): string {
  const parsed = parseQuantity(amount);
  const step = BigInt(gpus * MIB);
  if (!parsed.ok || wholeUnits(parsed.value, step) !== undefined) return amount;
  return `${(floorUnits(parsed.value, step) + 1n) * BigInt(gpus)}Mi`;
}

/** What is wrong with an amount of memory that cannot be read, and what would be right. */
export function memoryProblem(text: string, wrong: string, gpus = 1): string {
  const meant = meantMemory(text, gpus);
  const right = meant ?? `1Mi to ${formatBytes(MOST_MEMORY_BYTES)}, such as 2Gi`;
  return `${given('gpu-memory', text)} ${wrong}; write ${right}`;
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
