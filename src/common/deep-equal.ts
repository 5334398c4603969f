// Structural equality of JSON values. Equal objects by identity are not descended into, so comparing a pod with its
// patched copy costs only the changed parts.
import { isObject } from './json.ts';

/** Own keys only, in any order. Recursion follows `a`: pass the trusted value first. */
export function isDeepEqual(a: unknown, b: unknown): boolean {
  if (a === b) return true;
  if (Array.isArray(a)) {
    return Array.isArray(b) && a.length === b.length && a.every((entry, index) => isDeepEqual(entry, b[index]));
  }
  if (!isObject(a) || !isObject(b)) return false;
  const keys = Object.keys(a);
  if (keys.length !== Object.keys(b).length) return false;
  return keys.every((key) => Object.hasOwn(b, key) && isDeepEqual(a[key], b[key]));
}
