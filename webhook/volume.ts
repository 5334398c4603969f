// The inline CSI volume through which the node's agent gives a pod its interposer, limits pages and ledgers: adds it
// and its mounts, and refuses a pod's own volumes and mounts that would replace or cover them.
import { posix } from 'node:path';
import { CSI_DRIVER, HOME, mountsOf, PRELOAD, VOLUME, VOLUME_NAME } from '../src/api/csi-volume.ts';
import { isDeepEqual } from '../src/common/deep-equal.ts';
import { field, isObject, type JsonObject, listAt, textAt } from '../src/common/json.ts';
import { forbidden, invalid, type Problem } from '../src/common/problem.ts';
import type { PodContainer } from '../src/request/containers.ts';

// NVIDIA's toolkit can be set to read the list of devices from what is mounted below this path.
const DEVICE_LIST = '/run/nvidia-container-devices';

/** In each list of volumes, mounts and variables of a pod with a share. */
const MOST_ENTRIES = 1000;

/** Kinds of volumes that the kubelet mounts read-only, whatever the mount says (kubernetes.io, "Volumes"), as those of any
 * other kind whose own `readOnly` is set (kubelet_pods.go, makeMounts). */
const ALWAYS_READ_ONLY = ['configMap', 'secret', 'downwardAPI', 'projected', 'image'] as const;

const ONLY_OURS = `the only one allowed is ${JSON.stringify(VOLUME)}, which the webhook adds itself`;

/** The pod's volumes with ours, which after `checkVolumes` is absent or equal. */
export function withVolume(volumes: readonly unknown[]): readonly unknown[] {
  return volumes.some((volume) => isDeepEqual(VOLUME, volume)) ? volumes : [...volumes, VOLUME];
}

/**
 * The container's mounts with ours at the end of them. Runtimes mount parents before children, but `/var/run` is a link
 * to `/run` in most images and would cover ours if it came later, so ours move behind such a mount.
 */
export function withMounts(mounts: readonly unknown[], container: string): readonly unknown[] {
  const ours = mountsOf(container);
  const isOurs = (mount: unknown) => ours.some((own) => isDeepEqual(own, mount));
  const lastCover = mounts.findLastIndex((mount) => !isOurs(mount) && absolute(textAt(mount, 'mountPath')) === '/run');
  const firstOurs = mounts.findIndex(isOurs);
  const present = ours.filter((own) => mounts.some((mount) => isDeepEqual(own, mount)));
  if (present.length === ours.length && (lastCover < 0 || firstOurs > lastCover)) return mounts;
  return [...mounts.filter((mount) => !isOurs(mount)), ...ours];
}

/** Refuses our volume in another form, and our driver under another name. */
export function checkVolumes(pod: unknown, hasShare: boolean): Problem[] {
  const problems: Problem[] = [];
  let ours = 0;
  for (const [index, volume] of listAt(field(pod, 'spec'), 'volumes').entries()) {
    const driver = field(field(volume, 'csi'), 'driver');
    if (field(volume, 'name') !== VOLUME_NAME && driver !== CSI_DRIVER) continue;
    const path = `spec.volumes[${index}]`;
    ours += 1;
    if (!isDeepEqual(VOLUME, volume)) {
      const value = driver === CSI_DRIVER ? `csi.driver ${CSI_DRIVER}` : textAt(volume, 'name');
      problems.push(forbidden(path, value, 'uses a name of Cotenant for another volume', ONLY_OURS));
    } else if (!hasShare) {
      const right = 'leave the volume out, or ask for a share with cotenant.io/gpu-memory';
      problems.push(
        forbidden(path, VOLUME_NAME, 'is the volume of Cotenant in a pod that asks for no share of a GPU', right),
      );
    } else if (ours > 1) {
      problems.push(forbidden(path, VOLUME_NAME, 'is there twice', ONLY_OURS));
    }
  }
  return problems;
}

/** Refuses mounts of our volume that the webhook does not write. `shareOf`: the container's name if it has a share. */
export function checkVolumeMounts(container: JsonObject, path: string, shareOf: string | undefined): Problem[] {
  const problems: Problem[] = [];
  const ours = shareOf === undefined ? [] : mountsOf(shareOf);
  for (const [index, mount] of listAt(container, 'volumeMounts').entries()) {
    if (textAt(mount, 'name') !== VOLUME_NAME || ours.some((own) => isDeepEqual(own, mount))) continue;
    const wrong = `mounts the volume "${VOLUME_NAME}", which only the webhook mounts`;
    const right = 'leave it out: the webhook adds the mounts that are needed';
    problems.push(forbidden(`${path}.volumeMounts[${index}]`, textAt(mount, 'mountPath'), wrong, right));
  }
  return problems;
}

/** Refuses mounts that NVIDIA's toolkit reads as a list of devices, in any container of a pod with a share. */
export function checkDeviceLists(container: JsonObject, path: string): Problem[] {
  return listAt(container, 'volumeMounts').flatMap((mount, index) => {
    const mountPath = textAt(mount, 'mountPath');
    if (!isWithin(absolute(mountPath), DEVICE_LIST)) return [];
    const wrong = 'is read as a list of devices by the NVIDIA runtime, past what was granted';
    return [forbidden(`${path}.volumeMounts[${index}].mountPath`, mountPath, wrong, 'write another path')];
  });
}

/** Refuses mounts over the paths through which a container with a share gets its limits. */
export function checkReservedPaths(container: JsonObject, path: string): Problem[] {
  const problems: Problem[] = [];
  for (const [index, mount] of listAt(container, 'volumeMounts').entries()) {
    const mountPath = textAt(mount, 'mountPath');
    if (textAt(mount, 'name') !== VOLUME_NAME && isReserved(mountPath)) {
      problems.push(covers(`${path}.volumeMounts[${index}].mountPath`, mountPath));
    }
  }
  for (const [index, device] of listAt(container, 'volumeDevices').entries()) {
    const devicePath = textAt(device, 'devicePath');
    if (isReserved(devicePath)) problems.push(covers(`${path}.volumeDevices[${index}].devicePath`, devicePath));
  }
  // The kubelet mounts a file of its own there.
  const messagePath = textAt(container, 'terminationMessagePath');
  if (isReserved(messagePath)) problems.push(covers(`${path}.terminationMessagePath`, messagePath));
  return problems;
}

/**
 * Refuses what the container could not start with: the runtime makes the places of our mounts in the folders around them,
 * and cannot in one that the pod mounts read-only. A folder of the node has them already, or not: unknown here.
 * `volumes`: the pod's, by name.
 */
export function checkReadOnlyParents(
  container: JsonObject,
  path: string,
  volumes: ReadonlyMap<string | undefined, unknown>,
): Problem[] {
  return listAt(container, 'volumeMounts').flatMap((mount, index) => {
    const mountPath = textAt(mount, 'mountPath');
    const at = absolute(mountPath);
    if (mountPath === undefined || ![PRELOAD, HOME].some((own) => posix.dirname(own) === at)) return [];
    const volume = volumes.get(textAt(mount, 'name'));
    if (field(volume, 'hostPath') !== undefined) return [];
    const source =
      ALWAYS_READ_ONLY.find((one) => field(volume, one) !== undefined) ??
      Object.keys(isObject(volume) ? volume : {}).find((one) => field(field(volume, one), 'readOnly') === true);
    if (source === undefined && field(mount, 'readOnly') !== true) return [];
    const wrong = `is read-only${source === undefined ? '' : ` (${source})`}, so that the container's limits cannot be mounted in it`;
    const right = `mount single files with subPath, or a folder below ${at}`;
    return [invalid(`${path}.volumeMounts[${index}].mountPath`, mountPath, wrong, right)];
  });
}

/** True where the pod has our volume, as only a patched pod has: this is how a pod with a share is recognized. */
export function hasVolume(pod: unknown): boolean {
  return listAt(field(pod, 'spec'), 'volumes').some((volume) => isDeepEqual(VOLUME, volume));
}

/** Parts that must be lists of objects before they may be copied into a patch. */
export function checkLists({ spec, path }: PodContainer): Problem[] {
  return ['env', 'volumeMounts', 'volumeDevices'].flatMap((key) => {
    return checkList(field(spec, key), `${path}.${key}`);
  });
}

/** One such part. Its length is bounded, because the webhook and the API server's policies examine each entry. */
export function checkList(given: unknown, path: string): Problem[] {
  if (given === undefined) return [];
  if (!Array.isArray(given) || !given.every(isObject)) {
    return [invalid(path, given, 'is not a list of objects', 'write it as the API describes')];
  }
  if (given.length <= MOST_ENTRIES) return [];
  const right = `write at most ${MOST_ENTRIES} entries in a pod with a share of a GPU`;
  return [forbidden(path, given, 'is too long', right)];
}

function covers(path: string, value: string | undefined): Problem {
  const wrong = `would cover ${PRELOAD} or ${HOME}, through which the container's limits reach it`;
  return forbidden(path, value, wrong, 'write another path');
}

/** `..` is always refused: runtimes resolve it after links, so `/var/run/../etc` is `/etc` and not `/var/etc`. */
function isReserved(path: string | undefined): boolean {
  if (path?.includes('..') && path.split('/').includes('..')) return true;
  const at = absolute(path);
  return isWithin(at, PRELOAD) || isWithin(at, HOME);
}

function isWithin(path: string, folder: string): boolean {
  return path === folder || path.startsWith(`${folder}/`);
}

/** The path as the runtime will resolve it: from the root even where it is written relative, `/var/run` being
 * `/run`. */
function absolute(path: string | undefined): string {
  if (path === undefined) return '/';
  const normal = posix.normalize(`/${path}`).replace(/(?<=.)\/$/, '');
  return normal.replace(/^\/var\/run(?=\/|$)/, '/run');
}
