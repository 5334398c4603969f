// Watches the ResourceSlices of this node: DRA drivers write them when they start or divide a GPU. A failure (the
// cluster has no ResourceSlices, or denies the right to watch them) is reported once and retried.
import type { V1ResourceSlice } from '@kubernetes/client-node';
import type { ApiConfig } from './config.ts';
import { type ListWatch, listAndWatch } from './list-watch.ts';

/** A cluster without DRA answers each try with 404. */
const PAUSE_MS = { firstMs: 1000, mostMs: 600_000 };

export type ResourceSlicesOptions = {
  readonly config: ApiConfig;
  readonly nodeName: string;
  readonly onSlices: (slices: readonly unknown[]) => void;
  readonly onProblem: (text: string) => void;
  readonly pauseMs?: typeof PAUSE_MS;
  /** Within which the watches of all nodes come back after the API server was away. */
  readonly spreadMs?: number;
};

/** The last slices stay valid while the API server is away. */
export function watchResourceSlices(options: ResourceSlicesOptions): ListWatch {
  const { config, nodeName, onSlices, onProblem, pauseMs = PAUSE_MS, spreadMs = 0 } = options;
  const fieldSelector = `spec.nodeName=${nodeName}`;
  const byName = new Map<string, V1ResourceSlice>();
  let isReported = false;
  const changed = () => {
    isReported = false;
    onSlices([...byName.values()]);
  };
  const nameOf = (slice: V1ResourceSlice) => slice.metadata?.name ?? '';
  return listAndWatch(config, {
    path: '/apis/resource.k8s.io/v1/resourceslices',
    query: { fieldSelector },
    keep: (slice: V1ResourceSlice) => slice,
    onList(items) {
      byName.clear();
      for (const slice of items) byName.set(nameOf(slice), slice);
      changed();
    },
    onChange(slice) {
      byName.set(nameOf(slice), slice);
      changed();
    },
    onGone(slice) {
      byName.delete(nameOf(slice));
      changed();
    },
    onProblem(text) {
      if (isReported) return;
      isReported = true;
      onProblem(
        `cannot watch the ResourceSlices of this node; devices of DRA claims are identified by their names: ${text}`,
      );
    },
    pauseMs,
    spreadMs,
  });
}
