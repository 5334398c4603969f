// Where the exporter half has what it serves from: the node half in the same process, or the socket of another one (follow.ts). Owns
// what it may ask, and the answers within one process.
import type { ReviewCall } from '../../kube/token-review.ts';
import type { History } from './history.ts';
import type { Snapshot } from './snapshot.ts';

/** How it stands with the newest snapshot. */
export type SnapshotHealth = {
  readonly up: boolean;
  /** Why it is not. */
  readonly problem?: string | undefined;
};

/** What a page is made of: a snapshot, and what the process that has it tells of itself. Or the JSON of both, as bytes. */
export type Material = { readonly snapshot: Snapshot; readonly own: string };
export type Encoded = Uint8Array<ArrayBuffer>;

/** Promises are rejected where the half that would know is away, with words for whoever asked. */
export type Source = {
  /** Undefined: there is no snapshot. */
  health(): SnapshotHealth | undefined;
  /** Of the newest snapshot; of its processes no more than how many they are, unless they are wanted. */
  material(withProcesses: boolean): Promise<Material | Encoded>;
  /** The newest snapshot as JSON, or `null`. */
  status(): Promise<string | Uint8Array>;
  /** Use over the last minutes as JSON. */
  history(): Promise<string | Uint8Array>;
  /** Text of the node half's own metrics, for when there is no page. */
  own(): Promise<string>;
  /** Reviews a token with the API server; undefined: there is none. */
  readonly review?: ReviewCall | undefined;
};

/** What the node half has. */
export type LocalSource = {
  readonly snapshot: () => Snapshot | undefined;
  readonly history: () => History;
  readonly own: () => Promise<string>;
  readonly review?: ReviewCall | undefined;
};

export const NO_SAMPLE = 'no sample yet';

/**
 * Of processes a page that does not show them needs no more than how many they are; to hand each of them over is a good part of
 * what a page takes. A list of so many empty places is next to nothing.
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

/** One process has both halves. */
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
