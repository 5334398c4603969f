// Which container of which pod a container id is, for pods with a share: told by the runtime the moment that a container is
// made, and by the cluster's pods a little later. Owns the book; who has a grant is the registry's.
export type ContainerName = { readonly podUid: string; readonly container: string };

/** In place of a container's name, for the sandbox of a pod. */
export const WHOLE_POD = '';

export type ContainerBook = {
  /** Told by the runtime; a container that starts anew has another id. */
  tell(containerId: string, name: ContainerName & { readonly terminationLog?: string | undefined }): void;
  forget(containerId: string): void;
  /** By the runtime's word, else by the cluster's. */
  nameOf(containerId: string): ContainerName | undefined;
  /** The newest container of that name, and the name of the file for its last words. */
  newest(podUid: string, container: string): { readonly id: string; readonly terminationLog?: string } | undefined;
};

/** `clusterName`: what the watch of pods knows; it lags by a moment. */
export function createContainerBook(clusterName: (containerId: string) => ContainerName | undefined): ContainerBook {
  const told = new Map<string, ContainerName & { readonly terminationLog?: string }>();
  return {
    tell(containerId, { podUid, container, terminationLog }) {
      told.delete(containerId); // the newest is the last
      told.set(containerId, { podUid, container, ...(terminationLog === undefined ? {} : { terminationLog }) });
    },
    forget: (containerId) => void told.delete(containerId),
    nameOf: (containerId) => told.get(containerId) ?? clusterName(containerId),
    newest(podUid, container) {
      const entry = [...told].findLast(([, name]) => name.podUid === podUid && name.container === container);
      if (!entry) return undefined;
      const [id, { terminationLog }] = entry;
      return { id, ...(terminationLog === undefined ? {} : { terminationLog }) };
    },
  };
}
