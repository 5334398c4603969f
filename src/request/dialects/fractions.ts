// Amounts that several dialects write alike: a decimal fraction of a GPU, and an amount in bytes.
import { type MemoryAmount, MOST_MEMORY_BYTES } from '../../api/request.ts';
import { invalid, type Problem } from '../../common/problem.ts';
import { floorUnits, MIB, parseQuantity, type Quantity } from '../../common/quantity.ts';

/** Rounded up to whole MiB; undefined: not from 1 byte to the largest amount. */
export function ceilMib({ numerator, denominator }: Quantity): number | undefined {
  const mebibytes = -floorUnits({ numerator: -numerator, denominator }, BigInt(MIB));
  return mebibytes > 0n && mebibytes <= BigInt(MOST_MEMORY_BYTES / MIB) ? Number(mebibytes) * MIB : undefined;
}

/** Hundredths of a percent of `0.5`, rounded down, so that n parts of 1/n fit on a GPU; undefined: not 0.0001 to 1. */
export function hundredthsOf(text: string): number | undefined {
  const parsed = parseQuantity(text);
  if (!parsed.ok) return undefined;
  const { numerator, denominator } = parsed.value;
  const hundredths = floorUnits({ numerator: numerator * 10_000n, denominator }, 1n);
  return hundredths > 0n && numerator <= denominator ? Number(hundredths) : undefined;
}

/** A fraction of a GPU's memory, or undefined with a problem added. */
export function percentAmount(text: string, path: string, problems: Problem[]): MemoryAmount | undefined {
  const hundredths = hundredthsOf(text);
  if (hundredths === undefined) {
    const right = 'write a fraction of a GPU such as "0.5", up to 1';
    problems.push(invalid(path, text, 'is no fraction of a GPU', right));
    return undefined;
  }
  return hundredths === 10_000 ? { kind: 'whole' } : { kind: 'percent', percent: hundredths / 100 };
}
