// The CDI devices of containers without a pod: NVIDIA's edits for the GPUs of a grant, with the interposer mounted over
// the driver's libraries, the real ones beside it, and the grant's folder. Pure. Fields as in CDI's SPEC.md.
import { capabilitiesOfHook, finderOf32BitLibraries } from '../kubelet/cdi/driver-files.ts';
import type { CdiDevice, CdiSpec, Edits } from '../kubelet/cdi/spec.ts';

export const SLICE_KIND = 'cotenant.io/slice';
/** Folders in the container: the driver's own libraries, and limits page, usage ledger and engines. */
const REAL_LIBRARIES = '/usr/lib/cotenant/driver';
export const GRANT_FOLDER = '/usr/lib/cotenant/grant';
/** The object of the interposer by the driver's library that it is mounted over. */
const OBJECTS = { 'libcuda.so': 'libcotenant.so', 'libnvidia-ml.so': 'libcotenant-nvml.so' } as const;
/** A hook that puts a CUDA driver of the image before the host's, and so before the interposer. */
const COMPAT_HOOK = 'enable-cuda-compat';

/** A library of the driver, and what is mounted instead of it. */
type DriverLibrary = {
  readonly hostPath: string;
  readonly containerPath: string;
  /** Of the interposer, in the build. */
  readonly object: string;
  /** Where the container has the real one. */
  readonly real: string;
  /** Name of the made object in the grant's folder. */
  readonly made: string;
};

type SliceDevice = { readonly name: string; readonly gpuUuids: readonly string[]; readonly folder: string };

type Mount = NonNullable<Edits['mounts']>[number];
const READ_ONLY = ['ro', 'nosuid', 'nodev', 'rbind', 'rprivate'];
const mount = (hostPath: string, containerPath: string, options: readonly string[] = READ_ONLY): Mount => ({
  hostPath,
  containerPath,
  options,
});

const baseOf = (path: string): string => path.slice(path.lastIndexOf('/') + 1);
const isDriverLibrary = (path: string): boolean => /^(libcuda|libnvidia-ml)\.so(\.[\d.]+)?$/.test(baseOf(path));

/** The 64-bit libraries of CUDA and NVML among the mounts of a specification. */
export function driverLibraries(spec: CdiSpec): readonly DriverLibrary[] {
  const mounts = [spec, ...spec.devices].flatMap(({ containerEdits }) => containerEdits.mounts ?? []);
  const is32Bit = finderOf32BitLibraries(mounts.map(({ containerPath }) => containerPath));
  const found = new Map<string, DriverLibrary>();
  for (const { hostPath, containerPath } of mounts) {
    if (!isDriverLibrary(containerPath) || is32Bit(containerPath)) continue;
    const name = baseOf(containerPath);
    const object = name.startsWith('libcuda') ? OBJECTS['libcuda.so'] : OBJECTS['libnvidia-ml.so'];
    found.set(containerPath, { hostPath, containerPath, object, real: `${REAL_LIBRARIES}/${name}`, made: name });
  }
  return [...found.values()];
}

/** Without the driver's CUDA and NVML, which each device brings, and without hooks that lead around its limits. */
function withoutLibraries({ mounts, hooks, ...rest }: Edits): Edits {
  const isGiven = ({ args = [] }: { readonly args?: readonly string[] }) =>
    capabilitiesOfHook(args) !== undefined && !args.includes(COMPAT_HOOK);
  return {
    ...rest,
    ...(mounts && { mounts: mounts.filter(({ containerPath }) => !isDriverLibrary(containerPath)) }),
    ...(hooks && { hooks: hooks.filter(isGiven) }),
  };
}

/** What a container with the grant in that folder is given besides NVIDIA's edits. */
const ownMounts = (libraries: readonly DriverLibrary[], folder: string): readonly Mount[] => [
  mount(folder, GRANT_FOLDER),
  // Read-only otherwise: a container can change nothing of the grant but what it reports of its use.
  mount(`${folder}/ledger`, `${GRANT_FOLDER}/ledger`, ['rw', 'nosuid', 'nodev', 'noexec', 'rbind', 'rprivate']),
  ...libraries.flatMap(({ hostPath, containerPath, real, made }) => [
    mount(hostPath, real),
    mount(`${folder}/${made}`, containerPath),
  ]),
];

const joined = (edits: readonly Edits[]): Edits => {
  const listOf = (key: string) => edits.flatMap((one) => (one[key] as readonly unknown[] | undefined) ?? []);
  const keys = new Set(edits.flatMap((one) => Object.keys(one)));
  return Object.fromEntries(
    [...keys].map((key) => [key, edits.some((one) => Array.isArray(one[key])) ? listOf(key) : edits[0]?.[key]]),
  );
};

/** The specification of these devices, of NVIDIA's for their GPUs; devices with a GPU that it lacks are left out. */
export function sliceSpec(nvidia: CdiSpec, devices: readonly SliceDevice[]): CdiSpec | undefined {
  const libraries = driverLibraries(nvidia);
  const made = devices.flatMap(({ name, gpuUuids, folder }): readonly CdiDevice[] => {
    const given = gpuUuids.flatMap((uuid) => nvidia.devices.filter((device) => device.name === uuid));
    if (given.length < gpuUuids.length) return [];
    const edits = joined([
      ...given.map(({ containerEdits }) => withoutLibraries(containerEdits)),
      { mounts: ownMounts(libraries, folder) },
    ]);
    return [{ name, containerEdits: edits }];
  });
  if (made.length === 0) return undefined;
  const common = withoutLibraries(nvidia.containerEdits);
  const env = [...((common.env as readonly string[] | undefined) ?? [])];
  // A runtime of NVIDIA's that reads the image's own variable would add all GPUs and the driver's libraries.
  if (!env.some((entry) => entry.startsWith('NVIDIA_VISIBLE_DEVICES='))) env.push('NVIDIA_VISIBLE_DEVICES=void');
  return { ...nvidia, kind: SLICE_KIND, devices: made, containerEdits: { ...common, env } };
}
