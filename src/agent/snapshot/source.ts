// Where the exporter half has what it serves from: the node half in the same process, or the socket of another one (follow.ts). Owns
// what it may ask, and the answers within one process.
import type { ReviewCall } from '../../kube/token-review.ts';
import type { History } from './history.ts';
import type { View } from './snapshot.ts';

/** How it stands with the newest view. */
export type Standing = {
  readonly up: boolean;
  /** Why it is not. */
  readonly problem?: string | undefined;
};

/** What a page is made of: a view, and what the process that has it tells of itself. Or the JSON of both, as bytes. */
export type Material = { readonly view: View; readonly own: string };
export type Encoded = Uint8Array<ArrayBuffer>;

/** Promises are rejected where the half that would know is away, with words for whoever asked. */
export type Source = {
  /** Undefined: there is no view. */
  standing(): Standing | undefined;
  /** Of the newest view; of its processes no more than how many they are, unless they are wanted. */
  material(withProcesses: boolean): Promise<Material | Encoded>;
  /** The newest view as JSON, or `null`. */
  status(): Promise<string | Uint8Array>;
  /** Use over the last minutes as JSON. */
  history(): Promise<string | Uint8Array>;
  /** Text of the node half's own metrics, for when there is no page. */
  own(): Promise<string>;
  /** Whose a token is and what it opens; undefined: there is nobody to ask. */
  readonly review?: ReviewCall | undefined;
};

/** What the node half has. */
export type Here = {
  readonly view: () => View | undefined;
  readonly history: () => History;
  readonly own: () => Promise<string>;
  readonly review?: ReviewCall | undefined;
};

export const NO_SAMPLE = 'no sample yet';

/**
 * Of processes a page that does not show them needs no more than how many they are; to hand each of them over is a good part of
 * what a page takes. A list of so many empty places is next to nothing.
 */
function counted(view: View): View {
  const blank = <T>({ length }: readonly T[]): readonly T[] => new Array<T>(length);
  return {
    ...view,
    containers: view.containers.map((entry) => ({ ...entry, processes: blank(entry.processes) })),
    assigned: view.assigned.map((entry) => ({ ...entry, processes: blank(entry.processes) })),
  };
}

export function materialOf(view: View, own: string, withProcesses: boolean): Material {
  return { view: withProcesses ? view : counted(view), own };
}

export const standingOf = ({ self: { up, problem } }: View): Standing =>
  problem === undefined ? { up } : { up, problem };

/** One process has both halves. */
export function sourceHere({ view, history, own, review }: Here): Source {
  return {
    standing() {
      const newest = view();
      return newest && standingOf(newest);
    },
    async material(withProcesses) {
      const newest = view();
      if (!newest) throw new Error(NO_SAMPLE);
      return materialOf(newest, await own(), withProcesses);
    },
    status: async () => JSON.stringify(view() ?? null),
    history: async () => JSON.stringify(history()),
    own,
    review,
  };
}
