// Which container of which pod a container id is, for pods with a share: told by the runtime the moment that a container is
// made, and by the cluster's pods a little later. Owns the book; who has a grant is the registry's.
export type ContainerName = { readonly podUid: string; readonly container: string };

/** In place of a container's name, for the sandbox of a pod. */
export const WHOLE_POD = '';

export type ContainerIndex = {
  /** Told by the runtime; a container that starts anew has another id. */
  add(containerId: string, name: ContainerName & { readonly terminationLog?: string | undefined }): void;
  remove(containerId: string): void;
  /** It was made without its GPUs; false: that was said before. */
  markMissed(containerId: string): boolean;
  isMissed(containerId: string): boolean;
  /** It has them all the same. */
  hasGpus(containerId: string): void;
  /** By the runtime's word, else by the cluster's. */
  nameOf(containerId: string): ContainerName | undefined;
  /** The newest container of that name, the name of the file for its last words, and whether it was made without its GPUs. */
  newest(podUid: string, container: string): NewestContainer | undefined;
};
export type NewestContainer = { readonly id: string; readonly terminationLog?: string; readonly missed?: true };

/** `clusterName`: what the watch of pods knows; it lags by a moment. */
export function createContainerIndex(clusterName: (containerId: string) => ContainerName | undefined): ContainerIndex {
  const told = new Map<string, ContainerName & { readonly terminationLog?: string }>();
  const missed = new Set<string>();
  return {
    add(containerId, { podUid, container, terminationLog }) {
      told.delete(containerId); // the newest is the last
      told.set(containerId, { podUid, container, ...(terminationLog === undefined ? {} : { terminationLog }) });
    },
    remove(containerId) {
      told.delete(containerId);
      missed.delete(containerId);
    },
    markMissed(containerId) {
      const isNews = !missed.has(containerId);
      missed.add(containerId);
      return isNews;
    },
    isMissed: (containerId) => missed.has(containerId),
    hasGpus(containerId) {
      missed.delete(containerId);
    },
    nameOf: (containerId) => told.get(containerId) ?? clusterName(containerId),
    newest(podUid, container) {
      const entry = [...told].findLast(([, name]) => name.podUid === podUid && name.container === container);
      if (!entry) return undefined;
      const [id, { terminationLog }] = entry;
      return {
        id,
        ...(terminationLog === undefined ? {} : { terminationLog }),
        ...(missed.has(id) && { missed: true }),
      };
    },
  };
}
