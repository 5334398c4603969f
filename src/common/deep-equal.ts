// Structural equality of JSON values. Stops at once where both are the same object, so that a pod compared with its own
// patched copy costs only what was changed.
import { isObject } from './json.ts';

/** Own keys only, order of keys does not count. Recursion follows `a`, so pass the value that we built ourselves first. */
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
