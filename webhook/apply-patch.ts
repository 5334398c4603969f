// Applies a JSON Patch (RFC 6902) of the operations add, replace and remove, as the API server does.
import { isObject, type JsonObject } from '../src/common/json.ts';
import { pointerSteps, unescapeStep } from './json-pointer.ts';

export type Operation =
  | { readonly op: 'add' | 'replace'; readonly path: string; readonly value: unknown }
  | { readonly op: 'remove'; readonly path: string };

type Container = Record<string, unknown> | unknown[];

/** What the operations make of an object, which stays as it is: parts that no operation is in are shared, and the others
 * are copied once. Throws where an operation does not apply. */
export function applyPatch(original: JsonObject, operations: readonly Operation[]): unknown {
  const copies = new Set<unknown>();
  const copyOf = (value: unknown, path: string): Container => {
    if (copies.has(value)) return value as Container;
    const copy = Array.isArray(value) ? [...value] : isObject(value) ? { ...value } : undefined;
    if (copy === undefined) throw new Error(`${path}: nothing is in ${value === null ? 'null' : `a ${typeof value}`}`);
    copies.add(copy);
    return copy;
  };
  const root = copyOf(original, '');
  const parentOf = (path: string, cut: number): Container => {
    let parent = root;
    for (const step of pointerSteps(path.slice(0, cut))) {
      if (!isIn(parent, step)) throw new Error(`${path}: there is no ${step}`);
      const child = copyOf((parent as Record<string, unknown>)[step], path);
      put(parent, step, child);
      parent = child;
    }
    return parent;
  };
  /** Most operations are in the same place as the one before, which has not moved it. */
  let before: { readonly place: string; readonly parent: Container } | undefined;
  for (const operation of operations) {
    const { path } = operation;
    const cut = path.lastIndexOf('/');
    if (cut < 0) throw new Error('the whole object is no place');
    const place = path.slice(0, cut);
    if (before?.place !== place) before = { place, parent: parentOf(path, cut) };
    change(before.parent, unescapeStep(path.slice(cut + 1)), operation);
  }
  return root;
}

function change(parent: Container, key: string, operation: Operation): void {
  const { op, path } = operation;
  if (op === 'add') {
    if (!Array.isArray(parent)) put(parent, key, operation.value);
    else if (key === '-') parent.push(operation.value);
    else if (isIn(parent, key) || key === String(parent.length)) parent.splice(Number(key), 0, operation.value);
    else throw new Error(`${path}: the list has ${parent.length} entries`);
    return;
  }
  if (!isIn(parent, key)) throw new Error(`${path}: there is no ${key}`);
  if (op === 'replace') put(parent, key, operation.value);
  else if (Array.isArray(parent)) parent.splice(Number(key), 1);
  else delete parent[key];
}

const isIn = (parent: Container, key: string): boolean =>
  Array.isArray(parent) ? /^(0|[1-9]\d*)$/.test(key) && Number(key) < parent.length : Object.hasOwn(parent, key);

function put(parent: Container, key: string, value: unknown): void {
  // An assignment would set the prototype.
  if (key === '__proto__')
    Object.defineProperty(parent, key, { value, writable: true, enumerable: true, configurable: true });
  else (parent as Record<string, unknown>)[key] = value;
}
