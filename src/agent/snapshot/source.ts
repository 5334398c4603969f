// The interface through which the exporter half reads snapshots: from the node half in the same process (here), or in
// another one through a socket (ipc/client.ts).
import { randomInt } from 'node:crypto';
import type { ReviewCall } from '../../kube/token-review.ts';
import type { History } from './history.ts';
import type { Snapshot } from './snapshot.ts';

/** Health of the latest snapshot. */
export type SnapshotHealth = {
  readonly up: boolean;
  /** Why `up` is false. */
  readonly problem?: string | undefined;
  /** Differs from that of every other snapshot, also of an agent that ran before. */
  readonly number: number;
};

/**
 * The input of a metrics page: a snapshot, undefined before the first sample, and the node half's own metrics as text.
 * `Encoded`: its JSON, as bytes in a buffer of their own, which may be transferred to a worker.
 */
export type Material = { readonly snapshot?: Snapshot | undefined; readonly own: string };
export type Encoded = Uint8Array<ArrayBuffer>;

/** Promises are rejected if the node half does not answer; the error's message is meant for the HTTP client. */
export type Source = {
  health(): Promise<SnapshotHealth>;
  /** The latest snapshot; without `withProcesses` its process lists have the right length and no content. */
  material(withProcesses: boolean): Promise<Material | Encoded>;
  /** The latest snapshot as JSON, or `null`. */
  status(): Promise<string | Uint8Array>;
  /** Use over the last minutes as JSON. */
  history(): Promise<string | Uint8Array>;
  /** Reviews a token with the API server; undefined: tokens are not reviewed. */
  readonly review?: ReviewCall | undefined;
};

/** What the node half provides. */
export type NodeData = {
  readonly snapshot: () => Snapshot | undefined;
  readonly history: () => History;
  readonly own: () => Promise<string>;
  readonly review?: ReviewCall | undefined;
};

/** The source within the process of the node half; its material is not encoded. */
export type LocalSource = Source & { material(withProcesses: boolean): Promise<Material> };

/**
 * A page without processes needs only their number, and copying each of them takes a good part of the page's time. An
 * array of empty slots costs almost nothing.
 */
function withoutProcesses(snapshot: Snapshot): Snapshot {
  const blank = <T>({ length }: readonly T[]): readonly T[] => new Array<T>(length);
  return {
    ...snapshot,
    containers: snapshot.containers.map((entry) => ({ ...entry, processes: blank(entry.processes) })),
    assigned: snapshot.assigned.map((entry) => ({ ...entry, processes: blank(entry.processes) })),
  };
}

export function createLocalSource({ snapshot, history, own, review }: NodeData): LocalSource {
  let last: Snapshot | undefined;
  let number = randomInt(2 ** 47);
  return {
    async health() {
      const newest = snapshot();
      if (newest !== last) number += 1;
      last = newest;
      return newest
        ? { up: newest.self.up, problem: newest.self.problem, number }
        : { up: false, problem: 'no sample yet', number };
    },
    async material(withProcesses) {
      const newest = snapshot();
      return { snapshot: newest && !withProcesses ? withoutProcesses(newest) : newest, own: await own() };
    },
    status: async () => JSON.stringify(snapshot() ?? null),
    history: async () => JSON.stringify(history()),
    review,
  };
}
