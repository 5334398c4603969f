// Container ids to pod and container name, for pods with a grant: from the container runtime as soon as a container is
// created, and from the API server's pods a little later.
export type ContainerName = { readonly podUid: string; readonly container: string };

/** Instead of a container's name, for the sandbox of a pod. */
export const WHOLE_POD = '';

export type ContainerIndex = {
  /** From the runtime; a restarted container has another id. */
  add(containerId: string, name: ContainerName & { readonly terminationLog?: string | undefined }): void;
  remove(containerId: string): void;
  /** The container was created without its GPUs; false: this was recorded before. */
  markMissed(containerId: string): boolean;
  isMissed(containerId: string): boolean;
  /** The container has its GPUs nevertheless. */
  hasGpus(containerId: string): void;
  /** As the container runtime reports it, else the API server. */
  nameOf(containerId: string): ContainerName | undefined;
  /** The newest container of that name, the name of its termination message file, and whether it was created without
   * its GPUs. */
  newest(podUid: string, container: string): NewestContainer | undefined;
};
type NewestContainer = { readonly id: string; readonly terminationLog?: string; readonly missed?: true };

/** `clusterName`: names from the watch of pods, which lags a little. */
export function createContainerIndex(clusterName: (containerId: string) => ContainerName | undefined): ContainerIndex {
  const named = new Map<string, ContainerName & { readonly terminationLog?: string }>();
  const missed = new Set<string>();
  return {
    add(containerId, { podUid, container, terminationLog }) {
      named.delete(containerId); // the newest is the last
      named.set(containerId, { podUid, container, ...(terminationLog === undefined ? {} : { terminationLog }) });
    },
    remove(containerId) {
      named.delete(containerId);
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
    nameOf: (containerId) => named.get(containerId) ?? clusterName(containerId),
    newest(podUid, container) {
      const entry = [...named].findLast(([, name]) => name.podUid === podUid && name.container === container);
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
