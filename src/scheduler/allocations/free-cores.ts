// What is left of each node's CPU cores, for the placement policy `fragmentation`. Counted only where that policy is the
// default: it takes an entry for every pod of the cluster that requests CPU.

export type FreeCores = {
  setNode(name: string, allocatable: number): void;
  removeNode(name: string): void;
  setPod(podUid: string, node: string, cores: number): void;
  removePod(podUid: string): void;
  /** Drops all other pods. */
  keepPods(podUids: ReadonlySet<string>): void;
};

export function createFreeCores(onChange: (node: string, free: number | undefined) => void): FreeCores {
  const allocatable = new Map<string, number>();
  const requested = new Map<string, number>();
  const pods = new Map<string, { readonly node: string; readonly cores: number }>();
  const add = (node: string, cores: number): void => {
    requested.set(node, (requested.get(node) ?? 0) + cores);
    const all = allocatable.get(node);
    if (all !== undefined) onChange(node, all - (requested.get(node) ?? 0));
  };
  const removePod = (podUid: string): void => {
    const pod = pods.get(podUid);
    if (pod && pods.delete(podUid)) add(pod.node, -pod.cores);
  };
  return {
    setNode(name, cores) {
      if (allocatable.get(name) === cores) return;
      allocatable.set(name, cores);
      add(name, 0);
    },
    removeNode(name) {
      if (allocatable.delete(name)) onChange(name, undefined);
    },
    setPod(podUid, node, cores) {
      const known = pods.get(podUid);
      if (known?.node === node && known.cores === cores) return;
      removePod(podUid);
      if (cores === 0) return;
      pods.set(podUid, { node, cores });
      add(node, cores);
    },
    removePod,
    keepPods(podUids) {
      for (const podUid of pods.keys()) if (!podUids.has(podUid)) removePod(podUid);
    },
  };
}
