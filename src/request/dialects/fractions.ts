// Amounts that several dialects write alike: a decimal fraction of a GPU, an amount in bytes, and a total over GPUs.
import { type MemoryAmount, MOST_MEMORY_BYTES } from '../../api/request.ts';
import { invalid, type Problem } from '../../common/problem.ts';
import {
  binaryText,
  floorUnits,
  formatBytes,
  MIB,
  meantBytes,
  meantPercent,
  parseQuantity,
  type Quantity,
  withoutMarks,
} from '../../common/quantity.ts';
import { err, type Result } from '../../common/result.ts';

/** Rounded up to whole MiB; undefined: not from 1 byte to the largest amount. */
function ceilMib({ numerator, denominator }: Quantity): number | undefined {
  const mebibytes = -floorUnits({ numerator: -numerator, denominator }, BigInt(MIB));
  return mebibytes > 0n && mebibytes <= BigInt(MOST_MEMORY_BYTES / MIB) ? Number(mebibytes) * MIB : undefined;
}

const isBelowMib = (quantity: Quantity) => quantity.numerator > 0n && floorUnits(quantity, BigInt(MIB)) === 0n;

/** What is right in the place of an amount of bytes that cannot be read, or is below 1 MiB: not less than `leastBytes`. */
export function rightBytes(text: string, leastBytes = 0): string {
  const right = meantAmounts(text);
  const enough = right.filter((amount) => {
    const parsed = parseQuantity(amount);
    return parsed.ok && floorUnits(parsed.value, 1n) >= BigInt(leastBytes);
  });
  if (enough.length > 0) return `write ${enough.map((amount) => `"${amount}"`).join(' or ')}`;
  if (leastBytes > 0) return `write "${formatBytes(leastBytes)}" or more`;
  const parsed = parseQuantity(text);
  return parsed.ok && isBelowMib(parsed.value) ? 'write at least "1Mi"' : 'write an amount such as "8Gi"';
}

/** Empty where nothing above 0 can have been meant, or it is too unclear what. */
function meantAmounts(text: string): readonly string[] {
  const meant = parseQuantity(text).ok ? text : binaryText(text);
  const parsed = parseQuantity(meant);
  if (!parsed.ok || parsed.value.numerator <= 0n) return [];
  if (!isBelowMib(parsed.value)) return meant === text ? [] : [meant];
  return meant.endsWith('i') ? [] : meantBytes(parsed.value).replaceAll('"', '').split(' or ');
}

/** An amount in bytes, or undefined with a problem added, which proposes `leastBytes` or more. */
export function bytesAmount(text: string, path: string, problems: Problem[], leastBytes?: number) {
  const parsed = parseQuantity(text);
  const bytes = parsed.ok ? ceilMib(parsed.value) : undefined;
  const isBelow = parsed.ok && isBelowMib(parsed.value);
  if (bytes !== undefined && !isBelow) return { kind: 'bytes', bytes } as const;
  const wrong = isBelow ? 'counts bytes' : 'is no amount that a GPU has';
  problems.push(invalid(path, text, parsed.ok ? wrong : parsed.error, rightBytes(text, leastBytes)));
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

/** What is right in the place of "50%", "50" or "0,5": not less than `least`. */
export function rightFraction(text: string, least = 0): string {
  const [, number = '', sign] = /^([\d.,]+)\s*(%?)$/.exec(withoutMarks(text)) ?? [];
  const value = Number(number.replace(',', '.'));
  const meant = sign || /^\d\d$/.test(number) ? value / 100 : value;
  if (meant >= Math.max(0.0001, least) && meant <= 1) return `write "${meant}"`;
  return least > 0 ? rightAbove(least) : 'write a fraction of a GPU such as "0.5", up to 1';
}

/** What is right in the place of a limit below the fraction of a GPU that is reserved. */
export const rightAbove = (least: number): string => (least < 1 ? `write "${least}" or more, up to 1` : 'write "1"');

/** A fraction of a GPU's memory, or undefined with a problem added, which proposes `least` or more. */
export function percentAmount(text: string, path: string, problems: Problem[], least = 0): MemoryAmount | undefined {
  const hundredths = hundredthsOf(text);
  if (hundredths === undefined) {
    problems.push(invalid(path, text, 'is no fraction of a GPU', rightFraction(text, least)));
    return undefined;
  }
  return hundredths === 10_000 ? { kind: 'whole' } : { kind: 'percent', percent: hundredths / 100 };
}

/** What is right in the place of "50%" where percent are a total over `count` GPUs. `right`: in the place of others. */
export function rightTotal(text: string, count: number, right: string): string {
  const each = count > 1 ? meantPercent(text) : undefined;
  return each === undefined || each < 1 || each > 100 ? right : `write ${each * count} for ${each} of each GPU`;
}

/** What each of `count` GPUs has of a total; an error where it is no whole number, or more than `most` of each. */
export function splitOver(
  total: number,
  count: number,
  most = Number.MAX_SAFE_INTEGER,
): Result<number, { readonly wrong: string; readonly right: string }> {
  const each = Math.floor(total / count);
  if (total > most * count)
    return err({ wrong: `is more than all of the GPUs (${count})`, right: `write ${most * count}` });
  if (each * count === total) return { ok: true, value: each };
  const near = [each, each + 1].filter((one) => one > 0).map((one) => one * count);
  return err({ wrong: `cannot be split equally over ${count} GPUs`, right: `write ${near.join(' or ')}` });
}
