// What a container of the bed gets of the simulated GPU node: the same files whether a device's CDI spec or the runtime of
// the environment route brings them. Folder of the node: lib/, node.sock, and GPUs/ with a file for each GPU, which stands
// for its device node. A CDI spec has more, as NVIDIA's has: files of driver/ that stand for libraries of programs that draw.
import { join } from 'node:path';

/** Where a container finds the simulated node. */
export const INSIDE = '/usr/local/simulated';
/** Of CDI devices, as NVIDIA's toolkit names its own. */
export const CDI_KIND = 'nvidia.com/gpu';
/** Where the loader looks by itself, as the toolkit's mounts go. */
const LOADER_FOLDER = '/usr/lib/x86_64-linux-gnu';
const LIBRARIES = ['libcuda.so.1', 'libnvidia-ml.so.1'];
/** Of a driver's libraries that are neither CUDA's nor NVML's, by their names alone: of graphics, of video. */
export const STAND_INS = ['libGLX_nvidia.so.0', 'libnvidia-encode.so.1'] as const;
const OPTIONS = ['rbind', 'ro', 'nosuid', 'nodev', 'rprivate'];

export type Mount = { readonly from: string; readonly to: string; readonly options: readonly string[] };

const mount = (from: string, to: string): Mount => ({ from, to, options: OPTIONS });

/** For every container with a GPU; without a mount of single GPUs it sees none. */
export const commonMounts = (folder: string): readonly Mount[] => [
  ...['lib', 'node.sock'].map((name) => mount(join(folder, name), join(INSIDE, name))),
  ...libraryMounts(folder),
];

const libraryMounts = (folder: string): readonly Mount[] =>
  LIBRARIES.map((name) => mount(join(folder, 'lib', name), join(LOADER_FOLDER, name)));

export const gpuMount = (folder: string, uuid: string): Mount =>
  mount(join(folder, 'gpus', uuid), join(INSIDE, 'gpus', uuid));

/** All GPUs, and the folder itself, so that a container outlives a restart of the node. */
export const wholeMounts = (folder: string): readonly Mount[] => [mount(folder, INSIDE), ...libraryMounts(folder)];

/** What NVIDIA's toolkit writes for a node of these GPUs, in effect: what is common once, each GPU by its UUID, and all. */
export function cdiSpec(folder: string, uuids: readonly string[]): object {
  const drawing = STAND_INS.map((name) => mount(join(folder, 'driver', name), join(LOADER_FOLDER, name)));
  /** By its name a GPU's; it is nobody's. */
  const render = (index: number) => ({ path: `/dev/dri/renderD${128 + index}`, hostPath: '/dev/null' });
  const edits = (mounts: readonly Mount[]) => ({
    mounts: mounts.map(({ from, to, options }) => ({ hostPath: from, containerPath: to, options })),
  });
  const gpus = uuids.map((uuid) => gpuMount(folder, uuid));
  return {
    cdiVersion: '0.5.0',
    kind: CDI_KIND,
    // So that a runtime that reads the variable brings nothing of its own.
    containerEdits: { env: ['NVIDIA_VISIBLE_DEVICES=void'], ...edits([...commonMounts(folder), ...drawing]) },
    devices: [
      ...gpus.map((gpu, index) => ({
        name: uuids[index],
        containerEdits: { ...edits([gpu]), deviceNodes: [render(index)] },
      })),
      { name: 'all', containerEdits: { ...edits(gpus), deviceNodes: gpus.map((_, index) => render(index)) } },
    ],
  };
}
