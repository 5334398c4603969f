// Checks the shape of what the node half sent, so that invalid data never becomes a metric.
import { isObject } from '../../../common/json.ts';
import type { Reviewed } from '../../../kube/token-review.ts';
import type { Encoded, Material, SnapshotHealth } from '../source.ts';

export const textOf = (bytes: Uint8Array): string =>
  Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString();

const LISTS = [
  'devices',
  'containers',
  'assigned',
  'foreign',
  'containerTotals',
  'assignedTotals',
  'foreignTotals',
  'xids',
  'kills',
  'errors',
  'recent',
] as const;

/** The first invalid field of a snapshot; undefined: none. Does not check the content of list entries. */
export function wrongWithSnapshot(snapshot: unknown): string | undefined {
  if (!isObject(snapshot)) return 'snapshot: expected an object';
  for (const name of ['atMs', 'cudaVersion', 'unknownDevices'])
    if (typeof snapshot[name] !== 'number') return `snapshot.${name}: expected a number`;
  if (typeof snapshot.driverVersion !== 'string') return 'snapshot.driverVersion: expected a string';
  for (const name of LISTS) {
    const list = snapshot[name];
    if (!Array.isArray(list)) return `snapshot.${name}: expected a list`;
    const stray = list.findIndex((entry) => !isObject(entry));
    if (stray >= 0) return `snapshot.${name}[${stray}]: expected an object`;
  }
  if (!isObject(snapshot.self) || typeof snapshot.self.up !== 'boolean')
    return 'snapshot.self.up: expected true or false';
  return undefined;
}

/** Throws an error that names the invalid field. */
export function materialFrom(bytes: Encoded): Material {
  const value: unknown = JSON.parse(textOf(bytes));
  const wrong = !isObject(value)
    ? 'expected an object with snapshot and own'
    : typeof value.own !== 'string'
      ? 'own: expected a string'
      : value.snapshot !== undefined && wrongWithSnapshot(value.snapshot);
  if (typeof wrong === 'string') throw new Error(`the node half sent an invalid snapshot: ${wrong}`);
  return value as unknown as Material;
}

export function healthFrom(bytes: Encoded): SnapshotHealth {
  const value: unknown = JSON.parse(textOf(bytes));
  if (!isObject(value) || typeof value.up !== 'boolean' || typeof value.number !== 'number')
    throw new Error('the node half sent an invalid snapshot health: expected up and number');
  const { up, number, problem } = value;
  return { up, number, problem: typeof problem === 'string' ? problem : undefined };
}

const REVIEWED: readonly string[] = ['allowed', 'unauthenticated', 'forbidden'] satisfies readonly Reviewed[];

export function reviewedFrom(bytes: Encoded): Reviewed {
  const result = textOf(bytes);
  if (!REVIEWED.includes(result))
    throw new Error(`the node half sent an unknown result of a token review: ${JSON.stringify(result.slice(0, 40))}`);
  return result as Reviewed;
}
