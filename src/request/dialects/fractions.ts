// Amounts that several dialects write alike: a decimal fraction of a GPU, and an amount in bytes.
import { type MemoryAmount, MOST_MEMORY_BYTES } from '../../api/request.ts';
import { invalid, type Problem } from '../../common/problem.ts';
import { binaryText, floorUnits, MIB, meantBytes, parseQuantity, type Quantity } from '../../common/quantity.ts';

/** Rounded up to whole MiB; undefined: not from 1 byte to the largest amount. */
function ceilMib({ numerator, denominator }: Quantity): number | undefined {
  const mebibytes = -floorUnits({ numerator: -numerator, denominator }, BigInt(MIB));
  return mebibytes > 0n && mebibytes <= BigInt(MOST_MEMORY_BYTES / MIB) ? Number(mebibytes) * MIB : undefined;
}

const isBelowMib = (quantity: Quantity) => quantity.numerator > 0n && floorUnits(quantity, BigInt(MIB)) === 0n;

/** What is right in the place of an amount of bytes that cannot be read, or is below 1 MiB. */
export function rightBytes(text: string): string {
  const parsed = parseQuantity(text);
  if (parsed.ok && isBelowMib(parsed.value))
    return text.endsWith('i') ? 'write at least "1Mi"' : `write ${meantBytes(parsed.value)}`;
  const meant = binaryText(text);
  return meant === text ? 'write an amount such as "8Gi"' : `write "${meant}"`;
}

/** An amount in bytes, or undefined with a problem added. */
export function bytesAmount(text: string, path: string, problems: Problem[]) {
  const parsed = parseQuantity(text);
  const bytes = parsed.ok ? ceilMib(parsed.value) : undefined;
  const isBelow = parsed.ok && isBelowMib(parsed.value);
  if (bytes !== undefined && !isBelow) return { kind: 'bytes', bytes } as const;
  const wrong = isBelow ? 'counts bytes' : 'is no amount that a GPU has';
  problems.push(invalid(path, text, parsed.ok ? wrong : parsed.error, rightBytes(text)));
  return undefined;
}

/** Hundredths of a percent of `0.5`, rounded down, so that n parts of 1/n fit on a GPU; undefined: not 0.0001 to 1. */
export function hundredthsOf(text: string): number | undefined {
  const parsed = parseQuantity(text);
  if (!parsed.ok) return undefined;
  const { numerator, denominator } = parsed.value;
  const hundredths = floorUnits({ numerator: numerator * 10_000n, denominator }, 1n);
  return hundredths > 0n && numerator <= denominator ? Number(hundredths) : undefined;
}

/** What is right in the place of "50%", "50" or "0,5". */
export function rightFraction(text: string): string {
  const [, number = '', sign] = /^\s*([\d.,]+)\s*(%?)\s*$/.exec(text) ?? [];
  const value = Number(number.replace(',', '.'));
  const meant = sign || /^\d\d$/.test(number) ? value / 100 : value;
  return meant >= 0.0001 && meant <= 1 ? `write "${meant}"` : 'write a fraction of a GPU such as "0.5", up to 1';
}

/** A fraction of a GPU's memory, or undefined with a problem added. */
export function percentAmount(text: string, path: string, problems: Problem[]): MemoryAmount | undefined {
  const hundredths = hundredthsOf(text);
  if (hundredths === undefined) {
    problems.push(invalid(path, text, 'is no fraction of a GPU', rightFraction(text)));
    return undefined;
  }
  return hundredths === 10_000 ? { kind: 'whole' } : { kind: 'percent', percent: hundredths / 100 };
}
