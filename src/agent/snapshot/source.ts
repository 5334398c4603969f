// The interface through which the exporter half reads snapshots: from the node half in the same process (here), or in another one
// through a socket (ipc/client.ts).
import type { ReviewCall } from '../../kube/token-review.ts';
import type { History } from './history.ts';
import type { Snapshot } from './snapshot.ts';

/** Health of the latest snapshot. */
export type SnapshotHealth = {
  readonly up: boolean;
  /** Why `up` is false. */
  readonly problem?: string | undefined;
};

/** The input of a metrics page: a snapshot, and the node half's own metrics as text. `Encoded`: its JSON, as bytes. */
export type Material = { readonly snapshot: Snapshot; readonly own: string };
export type Encoded = Uint8Array<ArrayBuffer>;

/** Promises are rejected if the node half does not answer; the error's message is meant for the HTTP client. */
export type Source = {
  /** Undefined: there is no snapshot. */
  health(): SnapshotHealth | undefined;
  /** The latest snapshot; without `withProcesses` its process lists have the right length and no content. */
  material(withProcesses: boolean): Promise<Material | Encoded>;
  /** The latest snapshot as JSON, or `null`. */
  status(): Promise<string | Uint8Array>;
  /** Use over the last minutes as JSON. */
  history(): Promise<string | Uint8Array>;
  /** The node half's own metrics as text, for use without a snapshot. */
  own(): Promise<string>;
  /** Reviews a token with the API server; undefined: tokens are not reviewed. */
  readonly review?: ReviewCall | undefined;
};

/** What the node half provides. */
export type LocalSource = {
  readonly snapshot: () => Snapshot | undefined;
  readonly history: () => History;
  readonly own: () => Promise<string>;
  readonly review?: ReviewCall | undefined;
};

export const NO_SAMPLE = 'no sample yet';

/**
 * A page without processes needs only their number, and copying each of them takes a good part of the page's time. An array of empty
 * slots costs almost nothing.
 */
function withoutProcesses(snapshot: Snapshot): Snapshot {
  const blank = <T>({ length }: readonly T[]): readonly T[] => new Array<T>(length);
  return {
    ...snapshot,
    containers: snapshot.containers.map((entry) => ({ ...entry, processes: blank(entry.processes) })),
    assigned: snapshot.assigned.map((entry) => ({ ...entry, processes: blank(entry.processes) })),
  };
}

export function materialOf(snapshot: Snapshot, own: string, withProcesses: boolean): Material {
  return { snapshot: withProcesses ? snapshot : withoutProcesses(snapshot), own };
}

export const healthOf = ({ self: { up, problem } }: Snapshot): SnapshotHealth =>
  problem === undefined ? { up } : { up, problem };

/** For an agent that runs both halves in one process. */
export function createLocalSource({ snapshot, history, own, review }: LocalSource): Source {
  return {
    health() {
      const newest = snapshot();
      return newest && healthOf(newest);
    },
    async material(withProcesses) {
      const newest = snapshot();
      if (!newest) throw new Error(NO_SAMPLE);
      return materialOf(newest, await own(), withProcesses);
    },
    status: async () => JSON.stringify(snapshot() ?? null),
    history: async () => JSON.stringify(history()),
    own,
    review,
  };
}
