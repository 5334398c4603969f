// Which container of which pod a container id is, for pods with a share: told by the runtime the moment that a container is
// made, and by the cluster's pods a little later. Owns the book; who has a grant is the registry's.
export type ContainerName = { readonly podUid: string; readonly container: string };

/** In place of a container's name, for the sandbox of a pod. */
export const WHOLE_POD = '';

export type ContainerBook = {
  /** Told by the runtime; a container that starts anew has another id. */
  tell(containerId: string, name: ContainerName & { readonly terminationLog?: string | undefined }): void;
  forget(containerId: string): void;
  /** It was made without its GPUs; false: that was said before. */
  passBy(containerId: string): boolean;
  isPassedBy(containerId: string): boolean;
  /** It has them all the same. */
  hasGpus(containerId: string): void;
  /** By the runtime's word, else by the cluster's. */
  nameOf(containerId: string): ContainerName | undefined;
  /** The newest container of that name, the name of the file for its last words, and whether it was made without its GPUs. */
  newest(podUid: string, container: string): Newest | undefined;
};
export type Newest = { readonly id: string; readonly terminationLog?: string; readonly passedBy?: true };

/** `clusterName`: what the watch of pods knows; it lags by a moment. */
export function createContainerBook(clusterName: (containerId: string) => ContainerName | undefined): ContainerBook {
  const told = new Map<string, ContainerName & { readonly terminationLog?: string }>();
  const passedBy = new Set<string>();
  return {
    tell(containerId, { podUid, container, terminationLog }) {
      told.delete(containerId); // the newest is the last
      told.set(containerId, { podUid, container, ...(terminationLog === undefined ? {} : { terminationLog }) });
    },
    forget(containerId) {
      told.delete(containerId);
      passedBy.delete(containerId);
    },
    passBy(containerId) {
      const isNews = !passedBy.has(containerId);
      passedBy.add(containerId);
      return isNews;
    },
    isPassedBy: (containerId) => passedBy.has(containerId),
    hasGpus(containerId) {
      passedBy.delete(containerId);
    },
    nameOf: (containerId) => told.get(containerId) ?? clusterName(containerId),
    newest(podUid, container) {
      const entry = [...told].findLast(([, name]) => name.podUid === podUid && name.container === container);
      if (!entry) return undefined;
      const [id, { terminationLog }] = entry;
      return {
        id,
        ...(terminationLog === undefined ? {} : { terminationLog }),
        ...(passedBy.has(id) && { passedBy: true }),
      };
    },
  };
}
