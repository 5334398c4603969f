// Reads fields of JSON values that are not validated: own keys only, never a prototype's, and never throws. For values
// with a declared format use schema.ts.

export type JsonObject = { readonly [key: string]: unknown };

const EMPTY: JsonObject = Object.freeze({});

export function isObject(value: unknown): value is JsonObject {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** The object's own value, or undefined. `null` counts as absent: Go writes nil slices and maps that way. */
export function field(value: unknown, key: string): unknown {
  if (typeof value !== 'object' || value === null || !Object.hasOwn(value, key)) return undefined;
  return (value as JsonObject)[key] ?? undefined;
}

/** The own value if it is an object, else an empty one. For parts whose type another check refuses. */
export function objectAt(value: unknown, key: string): JsonObject {
  const found = field(value, key);
  return isObject(found) ? found : EMPTY;
}

/** The own value if it is a list, else an empty one. For parts whose type another check refuses. */
export function listAt(value: unknown, key: string): readonly unknown[] {
  const found = field(value, key);
  return Array.isArray(found) ? found : [];
}

/** A whole number that JavaScript holds exactly, within the bounds. */
export function isWithin(value: unknown, least: number, most: number): value is number {
  return Number.isSafeInteger(value) && (value as number) >= least && (value as number) <= most;
}

export function textAt(value: unknown, key: string): string | undefined {
  const found = field(value, key);
  return typeof found === 'string' ? found : undefined;
}
