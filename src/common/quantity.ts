// Kubernetes quantities ("12Gi", "500m", "1e3"), parsed and formatted exactly: BigInt fractions, no floating point.
import { err, ok, type Result } from './result.ts';

/** An exact value; the denominator is positive. */
export type Quantity = { readonly numerator: bigint; readonly denominator: bigint };

export const MIB = 1024 ** 2;
export const GIB = 1024 ** 3;

// No real amount needs more; the limits keep `1e999999999` from becoming a number with a billion digits.
const LONGEST_TEXT = 64;
const LARGEST_EXPONENT = 64;
const SYNTAX = /^([+-]?)(\d*)(?:\.(\d*))?(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?\d+))?$/;
const DECIMAL: ReadonlyMap<string, number> = new Map([
  ['n', -9],
  ['u', -6],
  ['m', -3],
  ['k', 3],
  ['M', 6],
  ['G', 9],
  ['T', 12],
  ['P', 15],
  ['E', 18],
]);
const BINARY: readonly string[] = ['Ki', 'Mi', 'Gi', 'Ti', 'Pi', 'Ei'];

/** Parses as `resource.ParseQuantity` of Kubernetes does; also accepts numbers, for manifests read from YAML. */
export function parseQuantity(value: unknown): Result<Quantity> {
  if (typeof value !== 'string' && typeof value !== 'number') return err('is not a quantity');
  const text = String(value);
  if (text.length > LONGEST_TEXT) return err('is too long for a quantity');
  if (text.trim() === '') return err('is empty');
  const match = SYNTAX.exec(text);
  const [, sign, whole = '', fraction = '', suffix = '', exponentText] = match ?? [];
  if (!match || whole + fraction === '') {
    return err('is not a quantity (digits, then nothing or one of m, k, M, G, T, Ki, Mi, Gi, Ti)');
  }
  const exponent = exponentText === undefined ? (DECIMAL.get(suffix) ?? 0) : Number(exponentText);
  if (Math.abs(exponent) > LARGEST_EXPONENT) return err('is out of range');
  const binaryPower = BINARY.indexOf(suffix) + 1;
  const size = BigInt(whole + fraction) << (10n * BigInt(binaryPower));
  const digits = sign === '-' ? -size : size;
  const shift = exponent - fraction.length;
  if (shift === 0) return ok({ numerator: digits, denominator: 1n });
  const power = 10n ** BigInt(Math.abs(shift));
  return ok(shift > 0 ? { numerator: digits * power, denominator: 1n } : { numerator: digits, denominator: power });
}

/** The quantity in `unit`, or undefined where that is not a whole number. */
export function wholeUnits(quantity: Quantity, unit: bigint): bigint | undefined {
  const size = quantity.denominator * unit;
  return quantity.numerator % size === 0n ? quantity.numerator / size : undefined;
}

/** The quantity in `unit`, rounded down. For suggestions in messages, never for a limit. */
export function floorUnits(quantity: Quantity, unit: bigint): bigint {
  const size = quantity.denominator * unit;
  const quotient = quantity.numerator / size;
  return quantity.numerator < 0n && quantity.numerator % size !== 0n ? quotient - 1n : quotient;
}

/** The two texts go into a Problem. `meant`: a number that is right, where it is clear which was meant. */
export type WrongNumber = { readonly wrong: string; readonly right: string; readonly meant?: number };

/** A whole number in `least..most` (both safe integers). */
export function parseWhole(value: unknown, least: number, most: number): Result<number, WrongNumber> {
  const right = `write a whole number from ${least} to ${most}`;
  const parsed = parseQuantity(value);
  if (!parsed.ok) {
    const bare = withoutMarks(String(value));
    const meant = bare === String(value) ? undefined : parseWhole(bare, least, most);
    return err({ wrong: parsed.error, right, ...(meant?.ok && proposal(meant.value)) });
  }
  const whole = wholeUnits(parsed.value, 1n);
  if (whole === undefined) return err({ wrong: 'is not a whole number', right });
  if (whole < BigInt(least)) return err({ wrong: `is less than ${least}`, right });
  if (whole > BigInt(most)) return err({ wrong: `is more than ${most}`, right });
  return ok(Number(whole));
}

/** Whole percent in `least..most`. What a writer of "50%", "0.5" or "0,5" meant is proposed: 50. */
export function parsePercent(value: unknown, least: number, most: number): Result<number, WrongNumber> {
  const whole = parseWhole(value, least, most);
  if (whole.ok) return whole;
  const meant = meantPercent(value);
  if (meant === undefined || meant < Math.max(1, least) || meant > most) return whole;
  return err({ wrong: whole.error.wrong, ...proposal(meant) });
}

const proposal = (meant: number) => ({ right: `write ${meant}`, meant });

/** Without the quotes, blanks and commas around it that were written by mistake. Long texts stay. */
export function withoutMarks(text: string): string {
  return text.length > LONGEST_TEXT ? text : text.replace(/^[\s"'`]+/, '').replace(/[\s"'`,;]+$/, '');
}

/** What a writer of "50%", "0.5" or "0,5" meant: 50. Undefined for other texts, whole numbers among them. */
export function meantPercent(value: unknown): number | undefined {
  const text = withoutMarks(String(value)).replace(',', '.');
  const parsed = parseQuantity(/^([\d.]+)\s*%?$/.exec(text)?.[1] ?? text);
  if (!parsed.ok) return undefined;
  const { numerator, denominator } = parsed.value;
  const percent = text.includes('%') ? wholeUnits(parsed.value, 1n) : undefined;
  const fraction = numerator < denominator ? wholeUnits({ numerator: numerator * 100n, denominator }, 1n) : undefined;
  const meant = percent ?? fraction;
  return meant === undefined ? undefined : Number(meant);
}

/**
 * A number of units of whole MiB in `least..most`. An amount of bytes, such as "10G", is none: the API server would take
 * it as a number of units. Most writers of "10G" mean "10Gi".
 */
export function parseUnits(
  value: unknown,
  least: number,
  most: number,
  unitBytes: number,
): Result<number, WrongNumber> {
  const text = withoutMarks(String(value));
  const isBytes = /^\d+([.,]\d+)?\s*[mgt]i?b?$/i.test(text) && !/\dm$/.test(text);
  if (!isBytes) return parseUnitCount(value, least, most, unitBytes);
  const parsed = parseQuantity(binaryText(text));
  const units = parsed.ok ? floorUnits(parsed.value, BigInt(unitBytes)) : 0n;
  const isWithin = units >= BigInt(least) && units <= BigInt(most);
  const right = isWithin ? proposal(Number(units)) : { right: `write ${least} to ${most}` };
  return err({ wrong: `is an amount of bytes, and units of ${formatBytes(unitBytes)} are counted here`, ...right });
}

/** A number without a unit of bytes. Milli is proposed as what it was meant to be: "4096m" as 4096 MiB. */
function parseUnitCount(value: unknown, least: number, most: number, unitBytes: number): Result<number, WrongNumber> {
  const whole = parseWhole(value, least, most);
  const parsed = parseQuantity(value);
  if (whole.ok || !parsed.ok || wholeUnits(parsed.value, 1n) !== undefined || parsed.value.numerator < 0n) return whole;
  const below = floorUnits(parsed.value, 1n);
  const near = [below, below + 1n].filter((count) => count > 0n).join(' or ');
  const [, mebibytes = near] = unitBytes === MIB ? (/^(\d+)m$/.exec(String(value)) ?? []) : [];
  return err({ wrong: whole.error.wrong, right: `write ${mebibytes}` });
}

/** What a writer of a number of bytes below 1 MiB meant: "4096Mi" for 4096, and for 4096m, milli. */
export function meantBytes(quantity: Quantity, gpus = 1): string {
  const bytes = wholeUnits(quantity, 1n);
  const thousandths = floorUnits({ ...quantity, numerator: quantity.numerator * 1000n }, 1n);
  const meant = Math.max(1, Math.ceil(Number(bytes ?? thousandths) / gpus)) * gpus;
  return `"${meant}Mi"${meant < 1024 && bytes !== undefined ? ` or "${meant}Gi"` : ''}`;
}

/** "4gi", "4GB" and "4 g" as Kubernetes writes what is meant by them: "4Gi"; and "1,5" as "1.5", without marks around it.
 * "1,500" has two meanings and stays. */
export function binaryText(text: string): string {
  const bare = withoutMarks(text).replace(/^(\d+),(\d{1,2})(?!\d)/, '$1.$2');
  const [, number, unit = ''] = /^(\d+(?:\.\d+)?)\s*([kmgt])i?b?$/i.exec(bare) ?? [];
  return number === undefined ? bare : `${number}${unit.toUpperCase()}i`;
}

/** True where both are quantities of the same value. */
export function sameQuantity(one: unknown, other: unknown): boolean {
  const a = parseQuantity(one);
  if (!a.ok || one === other) return a.ok;
  const b = parseQuantity(other);
  if (!b.ok) return false;
  return a.value.numerator * b.value.denominator === b.value.numerator * a.value.denominator;
}

/** Bytes in Kubernetes' canonical text: the largest binary suffix that leaves a whole number. */
export function formatBytes(bytes: number): string {
  let count = BigInt(bytes);
  let power = 0;
  while (power < BINARY.length && count !== 0n && count % 1024n === 0n) {
    count /= 1024n;
    power += 1;
  }
  return `${count}${power === 0 ? '' : BINARY[power - 1]}`;
}

/** A count in Kubernetes' canonical text: the API server writes 1000 as "1k". */
export function formatCount(count: number): string {
  let rest = BigInt(count);
  let power = 0;
  while (power < 6 && rest !== 0n && rest % 1000n === 0n) {
    rest /= 1000n;
    power += 1;
  }
  return `${rest}${['', 'k', 'M', 'G', 'T', 'P', 'E'][power]}`;
}
