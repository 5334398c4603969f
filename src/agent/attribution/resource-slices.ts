// Finds the GPU of a DRA driver's device in the ResourceSlices (resource.k8s.io) that the driver publishes. Pure. The
// kubelet names a claim's device only by driver, pool and name; the slice has its UUID.
import { field, isObject } from '../../common/json.ts';

/** By `deviceKey`: the UUID of a GPU or of an instance. */
export type DeviceUuids = ReadonlyMap<string, string>;
export const NO_SLICES: DeviceUuids = new Map();

export const deviceKey = (driver: string, pool: string, device: string): string =>
  JSON.stringify([driver, pool, device]);

/** Limit of devices, more than one node has; further ones are ignored. */
const MOST_SLICES = 512;
const MOST_DEVICES = 8192;
const UUID = /^(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

/**
 * The devices of one node, from the newest generation of each pool. A device with different UUIDs in two slices is
 * ignored. Names of attributes may have the driver's domain as a prefix.
 */
export function uuidsOfSlices(slices: readonly unknown[], nodeName: string): DeviceUuids {
  const own = slices
    .slice(0, MOST_SLICES)
    .map((slice) => field(slice, 'spec'))
    .filter((spec) => field(spec, 'nodeName') === nodeName);
  const newest = new Map<string, number>();
  const read = own.flatMap((spec) => {
    const [driver, pool, devices] = [field(spec, 'driver'), field(spec, 'pool'), field(spec, 'devices')];
    const [name, generation] = [field(pool, 'name'), Number(field(pool, 'generation') ?? 0)];
    if (typeof driver !== 'string' || typeof name !== 'string' || !Array.isArray(devices)) return [];
    if (!Number.isFinite(generation)) return [];
    const key = deviceKey(driver, name, '');
    newest.set(key, Math.max(newest.get(key) ?? generation, generation));
    return [{ driver, name, generation, key, devices: devices as readonly unknown[] }];
  });
  const uuids = new Map<string, string>();
  const differing = new Set<string>();
  const current = read.filter(({ key, generation }) => generation === newest.get(key));
  const devices = current.flatMap(({ driver, name, devices: all }) => all.map((device) => ({ driver, name, device })));
  for (const { driver, name, device } of devices.slice(0, MOST_DEVICES)) {
    const [called, uuid] = [field(device, 'name'), uuidOf(field(device, 'attributes'), driver)];
    if (typeof called !== 'string' || uuid === undefined) continue;
    const key = deviceKey(driver, name, called);
    if ((uuids.get(key) ?? uuid) !== uuid) differing.add(key);
    uuids.set(key, uuid);
  }
  for (const key of differing) uuids.delete(key);
  return uuids;
}

function uuidOf(attributes: unknown, driver: string): string | undefined {
  if (!isObject(attributes)) return undefined;
  const text = field(field(attributes, 'uuid') ?? field(attributes, `${driver}/uuid`), 'string');
  return typeof text === 'string' && UUID.test(text) ? text : undefined;
}
