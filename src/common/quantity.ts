// Kubernetes quantities ("12Gi", "500m", "1e3"), parsed and formatted exactly: BigInt fractions, no floating point.

/** An exact value; the denominator is positive. */
export type Quantity = { readonly numerator: bigint; readonly denominator: bigint };

export type ParsedQuantity =
  | { readonly ok: true; readonly quantity: Quantity }
  | { readonly ok: false; readonly why: string };

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
export function parseQuantity(value: unknown): ParsedQuantity {
  if (typeof value !== 'string' && typeof value !== 'number') return { ok: false, why: 'is not a quantity' };
  const text = String(value);
  if (text.length > LONGEST_TEXT) return { ok: false, why: 'is too long for a quantity' };
  const match = SYNTAX.exec(text);
  const [, sign, whole = '', fraction = '', suffix = '', exponentText] = match ?? [];
  if (!match || whole + fraction === '') {
    return { ok: false, why: 'is not a quantity (digits, then nothing or one of m, k, M, G, T, Ki, Mi, Gi, Ti)' };
  }
  const exponent = exponentText === undefined ? (DECIMAL.get(suffix) ?? 0) : Number(exponentText);
  if (Math.abs(exponent) > LARGEST_EXPONENT) return { ok: false, why: 'is out of range' };
  const binaryPower = BINARY.indexOf(suffix) + 1;
  const digits = BigInt(whole + fraction) * (sign === '-' ? -1n : 1n) * 1024n ** BigInt(binaryPower);
  const shift = exponent - fraction.length;
  const quantity =
    shift >= 0
      ? { numerator: digits * 10n ** BigInt(shift), denominator: 1n }
      : { numerator: digits, denominator: 10n ** BigInt(-shift) };
  return { ok: true, quantity };
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

export type WholeNumber =
  | { readonly ok: true; readonly value: number }
  | { readonly ok: false; readonly wrong: string; readonly right: string };

/** A whole number in `least..most` (both safe integers). The two texts of a failure go into a Problem. */
export function parseWhole(value: unknown, least: number, most: number): WholeNumber {
  const right = `write a whole number from ${least} to ${most}`;
  const parsed = parseQuantity(value);
  if (!parsed.ok) return { ok: false, wrong: parsed.why, right };
  const whole = wholeUnits(parsed.quantity, 1n);
  if (whole === undefined) return { ok: false, wrong: 'is not a whole number', right };
  if (whole < BigInt(least)) return { ok: false, wrong: `is less than ${least}`, right };
  if (whole > BigInt(most)) return { ok: false, wrong: `is more than ${most}`, right };
  return { ok: true, value: Number(whole) };
}

/** True where both are quantities of the same value. */
export function sameQuantity(one: unknown, other: unknown): boolean {
  const a = parseQuantity(one);
  const b = parseQuantity(other);
  if (!a.ok || !b.ok) return false;
  return a.quantity.numerator * b.quantity.denominator === b.quantity.numerator * a.quantity.denominator;
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
