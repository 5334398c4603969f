// What the extender answers: which nodes can take a pod and which is best, from the ledger as it stands. Pure but for a memory of
// what was decided last on books that have not changed since. Nothing here reserves anything.
import type { Ledger } from '../placement/ledger.ts';
import { type NodeBooks, type PodPlaced, placePod } from '../placement/place-pod.ts';
import { type Fit, fitOf, ranked, scoreOf } from '../placement/rank.ts';
import { CARDS_ANNOTATION, REQUEST_ANNOTATION } from '../request/names.ts';
import { parseRecord } from '../request/record.ts';
import type { Placement, PodRequest } from '../request/request.ts';

export type Decision =
  | { readonly placed: Extract<PodPlaced, { ok: true }>; readonly fit: Fit }
  | { readonly placed: Extract<PodPlaced, { ok: false }> };

export type Filtered = {
  readonly feasible: readonly string[];
  /** Node -> sentence, where room can come when others leave. */
  readonly failed: Readonly<Record<string, string>>;
  /** Node -> sentence, where it cannot. */
  readonly unresolvable: Readonly<Record<string, string>>;
};

export type Decider = {
  /** The request in a pod's annotation, or what is wrong with it. */
  read(annotation: string | undefined): Shape | { readonly wrong: string };
  on(shape: Shape, node: string): Decision;
  filter(shape: Shape, nodes: readonly string[]): Filtered;
  /** Scores in the order of `nodes`. */
  prioritize(shape: Shape, nodes: readonly string[]): readonly { readonly Host: string; readonly Score: number }[];
};

/** A request with what was decided about it on each node's books: pods of one template have one. */
export type Shape = { readonly request: PodRequest; readonly decided: WeakMap<NodeBooks, Decision> };

const MOST_SHAPES = 256;
/**
 * Sentences with card and numbers, for the nodes that miss by least. The scheduler writes them all into the pod's condition,
 * where those of thousands of nodes would not fit; the others are told by kind, which the scheduler counts.
 */
const MOST_SENTENCES = 3;

export function createDecider(ledger: Ledger, fallback: Placement): Decider {
  const shapes = new Map<string, Shape>();
  const on = ({ request, decided }: Shape, node: string): Decision => {
    const books = ledger.books(node);
    if (!books) return { placed: sharesNothing(node) };
    const known = decided.get(books);
    if (known) return known;
    const placed = placePod(request, books, fallback);
    const decision = placed.ok ? { placed, fit: fitOf(placed.containers, books) } : { placed };
    decided.set(books, decision);
    return decision;
  };
  return {
    read(annotation) {
      if (annotation === undefined)
        return { wrong: `the pod has no annotation ${REQUEST_ANNOTATION}: it did not pass through Cotenant's webhook` };
      const known = shapes.get(annotation);
      if (known) {
        shapes.delete(annotation);
        shapes.set(annotation, known);
        return known;
      }
      const record = parseRecord(annotation);
      if (!record.ok) return { wrong: `the pod's annotation ${REQUEST_ANNOTATION} is not what the webhook writes` };
      const shape = { request: record.value, decided: new WeakMap<NodeBooks, Decision>() };
      shapes.set(annotation, shape);
      const [oldest] = shapes.keys();
      if (shapes.size > MOST_SHAPES && oldest !== undefined) shapes.delete(oldest);
      return shape;
    },
    on,
    filter(shape, nodes) {
      const feasible: string[] = [];
      const refused: Refused[] = [];
      for (const node of nodes) {
        const { placed } = on(shape, node);
        if (placed.ok) feasible.push(node);
        else refused.push({ node, ...placed });
      }
      return { feasible, ...told(refused) };
    },
    prioritize(shape, nodes) {
      const fitting = nodes.flatMap((node) => {
        const decision = on(shape, node);
        return 'fit' in decision ? [{ node, fit: decision.fit }] : [];
      });
      const order = ranked(fitting, shape.request.placement ?? fallback);
      const scores = new Map(order.map(({ node }, place) => [node, scoreOf(place, order.length)]));
      return nodes.map((Host) => ({ Host, Score: scores.get(Host) ?? 0 }));
    },
  };
}

type Refusal = Extract<PodPlaced, { ok: false }>;
type Refused = Refusal & { readonly node: string };

const sharesNothing = (node: string): Refusal => ({
  ok: false,
  reason: `it shares no GPU (no annotation ${CARDS_ANNOTATION} on node ${node})`,
  general: 'no GPU is shared',
  distance: 8,
  passing: false,
});

function told(refused: readonly Refused[]): Pick<Filtered, 'failed' | 'unresolvable'> {
  const nearest = new Set(nearestOf(refused));
  const failed: Record<string, string> = {};
  const unresolvable: Record<string, string> = {};
  for (const one of refused) {
    const text = nearest.has(one) ? `node ${one.node}: ${one.reason}` : `node(s) where ${one.general}`;
    (one.passing ? failed : unresolvable)[one.node] = text;
  }
  return { failed, unresolvable };
}

/** The few that are nearest to fitting; of equal ones the first in order of names. */
function nearestOf(refused: readonly Refused[]): readonly Refused[] {
  const found: Refused[] = [];
  const before = (a: Refused, b: Refused) => a.distance < b.distance || (a.distance === b.distance && a.node < b.node);
  for (const one of refused) {
    const last = found.at(-1);
    if (last && found.length === MOST_SENTENCES && !before(one, last)) continue;
    const place = found.findIndex((other) => before(one, other));
    found.splice(place < 0 ? found.length : place, 0, one);
    if (found.length > MOST_SENTENCES) found.pop();
  }
  return found;
}
