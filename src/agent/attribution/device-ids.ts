// Maps device ids of other device plugins and DRA drivers to GPUs of this node, and says whether the device is the
// whole GPU: by the device's name, for each form that plugins use, or by the attributes that a DRA driver publishes.
// Pure.
import { type DeviceUuids, deviceKey, NO_SLICES } from './resource-slices.ts';

/** How a container has a GPU: the whole of it, together with others, or a MIG instance of it. */
export type ShareMode = 'exclusive' | 'shared' | 'mig';

/** `gpuUuid` is undefined where the name does not say which GPU it is. */
export type NamedDevice = { readonly mode: ShareMode; readonly gpuUuid: string | undefined };

/** As the driver reports it; an instance has its GPU's `index` as `parent`, and its numbers there. */
export type NodeGpu = {
  readonly uuid: string;
  readonly index: number;
  readonly minor?: number | undefined;
  readonly migEnabled?: boolean | undefined;
  readonly parent?: number | undefined;
  readonly gpuInstance?: number | undefined;
  readonly computeInstance?: number | undefined;
};

const GPU = '(GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})';
const MIG_UUID = 'MIG-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}';

/**
 * In each, the first group is the GPU or instance: a UUID, or the minor number of its device node; the next two are an
 * instance's numbers on it.
 */
const SHAPES: readonly (readonly [RegExp, ShareMode])[] = [
  [new RegExp(`^${GPU}$`), 'exclusive'],
  // NVIDIA's replicas (time-slicing, MPS), HAMi, MetaGPU
  [new RegExp(`^${GPU}::\\d+$`), 'shared'],
  [new RegExp(`^${GPU}-\\d+$`), 'shared'],
  [new RegExp(`^cnvrg-meta-\\d+-\\d+-${GPU}$`), 'shared'],
  // the MIG name of old drivers contains the GPU; newer drivers give an instance a UUID of its own
  [new RegExp(`^MIG-${GPU}/(\\d+)/(\\d+)(?:::\\d+)?$`), 'mig'],
  [new RegExp(`^(${MIG_UUID})(?:::\\d+)?$`), 'mig'],
  // GKE
  [/^nvidia(\d+)$/, 'exclusive'],
  [/^nvidia(\d+)\/vgpu\d+$/, 'shared'],
  [/^nvidia(\d+)\/gi(\d+)(?:\/vgpu\d+)?$/, 'mig'],
];
/** The name of a device of a GPU, though not of which. gpushare's ids are counted off; the GPU is chosen elsewhere. */
const NAMELESS: readonly (readonly [RegExp, ShareMode])[] = [[new RegExp(`^${GPU}-_-\\d+$`), 'shared']];
/** Devices of NVIDIA's DRA driver are numbered as their device nodes are. */
const DRA_SHAPES: readonly (readonly [RegExp, ShareMode])[] = [
  [/^gpu-(\d+)$/, 'exclusive'],
  [/^gpu-(\d+)-mig-.+$/, 'mig'],
];
const DRA_DRIVER = 'gpu.nvidia.com';

/** With MIG enabled, a container cannot have the GPU itself; its use shows which instance it has. */
function gpuOf([named = '', ...instance]: readonly string[], gpus: readonly NodeGpu[]): string | undefined {
  const gpu = /^(GPU|MIG)-/.test(named)
    ? gpus.find(({ uuid }) => uuid === named)
    : gpus.find(({ minor }) => minor === Number(named));
  if (!gpu?.migEnabled) return gpu?.uuid;
  const [gpuInstance, computeInstance] = instance.map(Number);
  const found = gpus.find(
    (one) =>
      one.parent === gpu.index &&
      one.gpuInstance === gpuInstance &&
      (computeInstance === undefined || one.computeInstance === computeInstance),
  );
  return found?.uuid;
}

function read(id: string, shapes: typeof SHAPES, gpus: readonly NodeGpu[]): NamedDevice | undefined {
  for (const [shape, mode] of shapes) {
    const named = shape.exec(id)?.slice(1);
    if (named) return { mode, gpuUuid: gpuOf(named, gpus) };
  }
  return undefined;
}

/** Undefined: no device of a GPU. */
export function pluginDevice(id: string, gpus: readonly NodeGpu[]): NamedDevice | undefined {
  const found = read(id, SHAPES, gpus);
  if (found) return found;
  const nameless = NAMELESS.find(([shape]) => shape.test(id));
  return nameless && { mode: nameless[1], gpuUuid: undefined };
}

type ClaimedDevice = {
  readonly driver: string;
  readonly pool: string;
  readonly device: string;
  /** Of a device that several claims share; else empty. */
  readonly share: string;
};

/** A device of a claim: by the UUID that its driver publishes, else by its name. */
export function claimedDevice(
  { driver, pool, device, share }: ClaimedDevice,
  gpus: readonly NodeGpu[],
  uuids: DeviceUuids = NO_SLICES,
): NamedDevice | undefined {
  const published = uuids.get(deviceKey(driver, pool, device));
  const gpu = gpus.find(({ uuid, migEnabled }) => uuid === published && !migEnabled);
  if (gpu) {
    if (gpu.parent !== undefined) return { mode: 'mig', gpuUuid: gpu.uuid };
    // What devices of others are we do not know: parts of a GPU, as far as that goes.
    return { mode: share === '' && driver === DRA_DRIVER ? 'exclusive' : 'shared', gpuUuid: gpu.uuid };
  }
  if (driver !== DRA_DRIVER) return published === undefined ? undefined : { mode: 'shared', gpuUuid: undefined };
  // Its name would give another GPU than the one that it is.
  if (published !== undefined) return { mode: published.startsWith('MIG-') ? 'mig' : 'shared', gpuUuid: undefined };
  const found = read(device, DRA_SHAPES, gpus);
  if (!found) return { mode: 'shared', gpuUuid: undefined };
  return share === '' ? found : { ...found, mode: found.mode === 'exclusive' ? 'shared' : found.mode };
}
