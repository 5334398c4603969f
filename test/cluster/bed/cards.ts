// What a container of the bed gets of the simulated GPU node: the same files whether a device's CDI spec or the runtime of
// the environment route brings them. Folder of the node: lib/, node.sock, and cards/ with a file for each card, which stands
// for its device node.
import { join } from 'node:path';

/** Where a container finds the simulated node. */
export const INSIDE = '/usr/local/simulated';
/** Of CDI devices, as NVIDIA's toolkit names its own. */
export const CDI_KIND = 'nvidia.com/gpu';
/** Where the loader looks by itself, as the toolkit's mounts go. */
const LOADER_FOLDER = '/usr/lib/x86_64-linux-gnu';
const LIBRARIES = ['libcuda.so.1', 'libnvidia-ml.so.1'];
const OPTIONS = ['rbind', 'ro', 'nosuid', 'nodev', 'rprivate'];

export type Mount = { readonly from: string; readonly to: string; readonly options: readonly string[] };

const mount = (from: string, to: string): Mount => ({ from, to, options: OPTIONS });

/** For every container with a card; without a mount of single cards it sees none. */
export const commonMounts = (folder: string): readonly Mount[] => [
  ...['lib', 'node.sock'].map((name) => mount(join(folder, name), join(INSIDE, name))),
  ...libraryMounts(folder),
];

const libraryMounts = (folder: string): readonly Mount[] =>
  LIBRARIES.map((name) => mount(join(folder, 'lib', name), join(LOADER_FOLDER, name)));

export const cardMount = (folder: string, uuid: string): Mount =>
  mount(join(folder, 'cards', uuid), join(INSIDE, 'cards', uuid));

/** All cards, and the folder itself, so that a container outlives a restart of the node. */
export const wholeMounts = (folder: string): readonly Mount[] => [mount(folder, INSIDE), ...libraryMounts(folder)];

/** What NVIDIA's toolkit writes for a node of these cards, in effect: what is common once, each card by its UUID, and all. */
export function cdiSpec(folder: string, uuids: readonly string[]): object {
  const edits = (mounts: readonly Mount[]) => ({
    mounts: mounts.map(({ from, to, options }) => ({ hostPath: from, containerPath: to, options })),
  });
  const cards = uuids.map((uuid) => cardMount(folder, uuid));
  return {
    cdiVersion: '0.5.0',
    kind: CDI_KIND,
    // So that a runtime that reads the variable brings nothing of its own.
    containerEdits: { env: ['NVIDIA_VISIBLE_DEVICES=void'], ...edits(commonMounts(folder)) },
    devices: [
      ...cards.map((card, index) => ({ name: uuids[index], containerEdits: edits([card]) })),
      { name: 'all', containerEdits: edits(cards) },
    ],
  };
}
