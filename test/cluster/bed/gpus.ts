// Files of the simulated GPU node that a container gets: the same whether a CDI spec or the NVIDIA runtime provides
// them. The node's folder has lib/, node.sock, and gpus/ with a file per GPU in place of its device node. As NVIDIA's,
// the CDI spec also has graphics and video libraries, for which files of driver/ stand in.
import { join } from 'node:path';

/** Where a container finds the simulated node. */
export const INSIDE = '/usr/local/simulated';
/** CDI kind, as of NVIDIA's toolkit. */
export const CDI_KIND = 'nvidia.com/gpu';
/** Default folder of the loader, where the toolkit mounts libraries. */
const LOADER_FOLDER = '/usr/lib/x86_64-linux-gnu';
const LIBRARIES = ['libcuda.so.1', 'libnvidia-ml.so.1'];
/** Driver libraries for graphics and video, other than CUDA and NVML: only their names are used. */
export const STAND_INS = ['libGLX_nvidia.so.0', 'libnvidia-encode.so.1'] as const;
const OPTIONS = ['rbind', 'ro', 'nosuid', 'nodev', 'rprivate'];

export type Mount = { readonly from: string; readonly to: string; readonly options: readonly string[] };

const mount = (from: string, to: string): Mount => ({ from, to, options: OPTIONS });

/** For every container with a GPU; it sees none without a mount of single GPUs. */
export const commonMounts = (folder: string): readonly Mount[] => [
  ...['lib', 'node.sock'].map((name) => mount(join(folder, name), join(INSIDE, name))),
  ...libraryMounts(folder),
];

const libraryMounts = (folder: string): readonly Mount[] =>
  LIBRARIES.map((name) => mount(join(folder, 'lib', name), join(LOADER_FOLDER, name)));

export const gpuMount = (folder: string, uuid: string): Mount =>
  mount(join(folder, 'gpus', uuid), join(INSIDE, 'gpus', uuid));

/** All GPUs and the folder itself, so that a container outlives a restart of the node. */
export const wholeMounts = (folder: string): readonly Mount[] => [mount(folder, INSIDE), ...libraryMounts(folder)];

/** A CDI spec like that of NVIDIA's toolkit for these GPUs: the common edits once, each GPU by its UUID, and `all`. */
export function cdiSpec(folder: string, uuids: readonly string[]): object {
  const drawing = STAND_INS.map((name) => mount(join(folder, 'driver', name), join(LOADER_FOLDER, name)));
  /** A render node by its name only; it is /dev/null. */
  const render = (index: number) => ({ path: `/dev/dri/renderD${128 + index}`, hostPath: '/dev/null' });
  const edits = (mounts: readonly Mount[]) => ({
    mounts: mounts.map(({ from, to, options }) => ({ hostPath: from, containerPath: to, options })),
  });
  const gpus = uuids.map((uuid) => gpuMount(folder, uuid));
  return {
    cdiVersion: '0.5.0',
    kind: CDI_KIND,
    // Makes a runtime that reads the variable add nothing of its own.
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
