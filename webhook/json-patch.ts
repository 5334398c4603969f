// The JSON Patch (RFC 6902) from the received pod to the wanted pod, with add, replace and remove only, and the
// verification that it applies.
import { isDeepEqual } from '../src/common/deep-equal.ts';
import { isObject, type JsonObject, textAt } from '../src/common/json.ts';
import { err, ok, type Result } from '../src/common/result.ts';
import { applyPatch, type Operation } from './apply-patch.ts';
import { escapeStep } from './json-pointer.ts';

/** A list with more changes is sent whole: an API server copies it for each of them, which takes quadratic time. */
export const MOST_CHANGES_OF_A_LIST = 256;

/** Operations in the order in which they apply. Parts that are the same object in both are skipped. */
export function diff(original: JsonObject, wanted: JsonObject): Operation[] {
  const operations: Operation[] = [];
  diffObjects(original, wanted, '', operations);
  return operations;
}

/** Applies the patch as the API server would and compares. */
export function verifyPatch(original: JsonObject, operations: readonly Operation[], wanted: JsonObject): Result<true> {
  try {
    return isDeepEqual(wanted, applyPatch(original, operations))
      ? ok(true)
      : err('the patch does not lead to the wanted pod');
  } catch (error) {
    return err(`the patch does not apply: ${error instanceof Error ? error.message : String(error)}`);
  }
}

function diffValues(original: unknown, wanted: unknown, path: string, operations: Operation[]): void {
  if (original === wanted) return;
  if (isObject(original) && isObject(wanted)) diffObjects(original, wanted, path, operations);
  else if (Array.isArray(original) && Array.isArray(wanted)) diffLists(original, wanted, path, operations);
  else if (!isDeepEqual(wanted, original)) operations.push({ op: 'replace', path, value: wanted });
}

function diffObjects(original: JsonObject, wanted: JsonObject, path: string, operations: Operation[]): void {
  for (const key of Object.keys(original)) {
    if (!Object.hasOwn(wanted, key)) operations.push({ op: 'remove', path: `${path}/${escapeStep(key)}` });
  }
  for (const key of Object.keys(wanted)) {
    const isThere = Object.hasOwn(original, key);
    // Most are the same object, and need no path.
    if (isThere && original[key] === wanted[key]) continue;
    const at = `${path}/${escapeStep(key)}`;
    if (isThere) diffValues(original[key], wanted[key], at, operations);
    else operations.push({ op: 'add', path: at, value: wanted[key] });
  }
}

/**
 * Keeps or removes each entry in turn, and appends the rest: the result is right whatever entries count as the same,
 * and the patch is short where entries were changed in their place, removed or appended.
 */
function diffLists(
  original: readonly unknown[],
  wanted: readonly unknown[],
  path: string,
  operations: Operation[],
): void {
  const changes: Operation[] = [];
  let kept = 0;
  for (const entry of original) {
    const at = `${path}/${kept}`;
    if (kept < wanted.length && isSameEntry(entry, wanted[kept])) diffValues(entry, wanted[kept++], at, changes);
    else changes.push({ op: 'remove', path: at });
  }
  for (const value of wanted.slice(kept)) changes.push({ op: 'add', path: `${path}/-`, value });
  if (changes.length > MOST_CHANGES_OF_A_LIST) operations.push({ op: 'replace', path, value: wanted });
  else operations.push(...changes);
}

/** Containers, variables and volumes are the same by name, mounts by name and path. */
const isSameEntry = (one: unknown, other: unknown): boolean =>
  isObject(one) === isObject(other) &&
  textAt(one, 'name') === textAt(other, 'name') &&
  textAt(one, 'mountPath') === textAt(other, 'mountPath');
