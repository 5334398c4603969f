// What the extender answers: which nodes can take a pod and which is best, from the ledger as it stands. Pure but for a memory of
// what was decided on nodes that have not changed since. Nothing here reserves anything.
import type { Ledger } from '../placement/ledger.ts';
import { type PodPlaced, placePod } from '../placement/place-pod.ts';
import { compareFits, type Fit, fitOf, scoreOf } from '../placement/rank.ts';
import { CARDS_ANNOTATION, REQUEST_ANNOTATION } from '../request/names.ts';
import { parseRecord } from '../request/record.ts';
import type { Placement, PodRequest } from '../request/request.ts';

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
  /** Where on this node it would go. */
  on(shape: Shape, node: string): PodPlaced;
  filter(shape: Shape, nodes: readonly string[]): Filtered;
  /** Scores in the order of `nodes`. */
  prioritize(shape: Shape, nodes: readonly string[]): readonly { readonly Host: string; readonly Score: number }[];
};

/** A request with what was decided about it: pods of one template have one. */
export type Shape = {
  readonly request: PodRequest;
  /** Of the ledger, up to which `byNode` and `order` are true. */
  version: number;
  readonly byNode: Map<string, Decided>;
  /** Nodes that can take it, best first. */
  readonly order: Decided[];
};

type Decided = {
  readonly node: string;
  readonly placed: PodPlaced;
  readonly fit: Fit | undefined;
  /** Place in the order, while it is in there. */
  rank: number;
};

const MOST_SHAPES = 256;
const MOST_NODES = 50_000;
/**
 * Sentences with card and numbers, for the nodes that miss by least. The scheduler writes them all into the pod's condition,
 * where those of thousands of nodes would not fit; the others are told by kind, which the scheduler counts.
 */
const MOST_SENTENCES = 3;

export function createDecider(ledger: Ledger, fallback: Placement): Decider {
  const shapes = new Map<string, Shape>();

  const decide = (request: PodRequest, node: string): Decided => {
    const books = ledger.books(node);
    const placed = books ? placePod(request, books, fallback) : sharesNothing(node);
    const fit = books && placed.ok ? fitOf(placed.containers, books) : undefined;
    return { node, placed, fit, rank: -1 };
  };

  /** Forgets what was decided on nodes that have changed. */
  const refresh = (shape: Shape): void => {
    const { byNode, order } = shape;
    if (shape.version === ledger.version) return;
    const changed = ledger.changedSince(shape.version);
    shape.version = ledger.version;
    // Nodes that share nothing come and go without a word to the ledger: their names must not pile up.
    if (changed === undefined || byNode.size > MOST_NODES) {
      byNode.clear();
      order.length = 0;
      return;
    }
    for (const node of changed) {
      const decided = byNode.get(node);
      byNode.delete(node);
      if (decided?.fit) remove(order, decided);
    }
  };

  const known = (shape: Shape, node: string, fresh: Decided[]): Decided => {
    const before = shape.byNode.get(node);
    if (before) return before;
    const decided = decide(shape.request, node);
    shape.byNode.set(node, decided);
    if (decided.fit) fresh.push(decided);
    return decided;
  };

  const on: Decider['on'] = (shape, node) => {
    refresh(shape);
    const fresh: Decided[] = [];
    const { placed } = known(shape, node, fresh);
    insert(shape, fresh, fallback);
    return placed;
  };

  return {
    read(annotation) {
      if (annotation === undefined)
        return { wrong: `the pod has no annotation ${REQUEST_ANNOTATION}: it did not pass through Cotenant's webhook` };
      const before = shapes.get(annotation);
      if (before) {
        shapes.delete(annotation);
        shapes.set(annotation, before);
        return before;
      }
      const record = parseRecord(annotation);
      if (!record.ok) return { wrong: `the pod's annotation ${REQUEST_ANNOTATION} is not what the webhook writes` };
      const shape = { request: record.value, version: ledger.version, byNode: new Map(), order: [] };
      shapes.set(annotation, shape);
      const [oldest] = shapes.keys();
      if (shapes.size > MOST_SHAPES && oldest !== undefined) shapes.delete(oldest);
      return shape;
    },
    on,
    filter(shape, nodes) {
      refresh(shape);
      const feasible: string[] = [];
      const refused: Refused[] = [];
      const fresh: Decided[] = [];
      for (const node of nodes) {
        const { placed } = known(shape, node, fresh);
        if (placed.ok) feasible.push(node);
        else refused.push({ node, placed });
      }
      insert(shape, fresh, fallback);
      return { feasible, ...told(refused) };
    },
    prioritize(shape, nodes) {
      refresh(shape);
      const fresh: Decided[] = [];
      const asked = nodes.map((node) => known(shape, node, fresh));
      insert(shape, fresh, fallback);
      let best: Decided | undefined;
      for (const one of asked) if (one.fit && (best === undefined || one.rank < best.rank)) best = one;
      return asked.map((one) => ({
        Host: one.node,
        Score: one.fit ? scoreOf(one === best ? 0 : one.rank, shape.order.length) : 0,
      }));
    },
  };
}

function remove(order: Decided[], decided: Decided): void {
  order.splice(decided.rank, 1);
  renumber(order, decided.rank);
}

/** A few by halving, many by sorting all. */
function insert({ request, order }: Shape, fresh: readonly Decided[], fallback: Placement): void {
  if (fresh.length === 0) return;
  const placement = request.placement ?? fallback;
  const before = (a: Decided, b: Decided): number =>
    (a.fit && b.fit ? compareFits(a.fit, b.fit, placement) : 0) || (a.node < b.node ? -1 : 1);
  if (fresh.length > 16) {
    for (const one of fresh) order.push(one);
    order.sort(before);
    renumber(order, 0);
    return;
  }
  for (const one of fresh) {
    let [low, high] = [0, order.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      const other = order[middle];
      if (other && before(other, one) < 0) low = middle + 1;
      else high = middle;
    }
    order.splice(low, 0, one);
    renumber(order, low);
  }
}

function renumber(order: readonly Decided[], from: number): void {
  for (let at = from; at < order.length; at += 1) {
    const one = order[at];
    if (one) one.rank = at;
  }
}

type Refusal = Extract<PodPlaced, { ok: false }>;
type Refused = { readonly node: string; readonly placed: Refusal };

const sharesNothing = (node: string): Refusal => ({
  ok: false,
  reason: () => `it shares no GPU (no annotation ${CARDS_ANNOTATION} on node ${node})`,
  general: 'no GPU is shared',
  distance: 8,
  passing: false,
});

function told(refused: readonly Refused[]): Pick<Filtered, 'failed' | 'unresolvable'> {
  const nearest = new Set(nearestOf(refused));
  const failed: Record<string, string> = {};
  const unresolvable: Record<string, string> = {};
  for (const one of refused) {
    const { node, placed } = one;
    const text = nearest.has(one) ? `node ${node}: ${placed.reason()}` : `node(s) where ${placed.general}`;
    (placed.passing ? failed : unresolvable)[node] = text;
  }
  return { failed, unresolvable };
}

/** The few that are nearest to fitting; of equal ones the first in order of names. */
function nearestOf(refused: readonly Refused[]): readonly Refused[] {
  const found: Refused[] = [];
  const before = (a: Refused, b: Refused) =>
    a.placed.distance < b.placed.distance || (a.placed.distance === b.placed.distance && a.node < b.node);
  for (const one of refused) {
    const last = found.at(-1);
    if (last && found.length === MOST_SENTENCES && !before(one, last)) continue;
    const place = found.findIndex((other) => before(one, other));
    found.splice(place < 0 ? found.length : place, 0, one);
    if (found.length > MOST_SENTENCES) found.pop();
  }
  return found;
}
