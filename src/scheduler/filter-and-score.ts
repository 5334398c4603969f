// What the extender answers: which nodes can take a pod and which is best, from the ledger as it stands. Pure but for a bounded
// cache of decisions about nodes that have not changed since. Nothing here reserves anything.
import { createHash } from 'node:crypto';
import { GPUS_ANNOTATION, REQUEST_ANNOTATION } from '../api/names.ts';
import type { Placement, PodRequest } from '../api/request.ts';
import { parsePodRequest } from '../api/request-annotation.ts';
import type { Ledger } from '../placement/allocations.ts';
import { type PodPlaced, type PodRefusal, placePod } from '../placement/place-pod.ts';
import { compareFits, type Fit, fitOf, scoreOf } from '../placement/score.ts';

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
  /** The size of the cache. */
  readonly cached: { readonly requests: number; readonly decisions: number };
};

/** A pod's request, and the key under which the decisions about it are cached. */
export type Shape = { readonly request: PodRequest; readonly key: string };

/** The decisions about all requests with the same amounts. */
type Cached = {
  /** Of the ledger, up to which `byNode` and `order` are true. */
  version: number;
  /** Only nodes that the ledger knows. */
  readonly byNode: Map<string, Decided>;
  /** Nodes that can take it, best first. */
  readonly order: Fitting[];
};

/**
 * Plain values only: there is one per request and node, and an object held here (a grant, a reason with its GPUs) would be held
 * as often. Both are computed again from the request where they are needed.
 */
type Decided = Fitting | (Refusal & { readonly node: string });
type Fitting = Fit & {
  readonly node: string;
  /** Place in the order, while it is in there. */
  rank: number;
};
type Refusal = Pick<PodRefusal, 'general' | 'distance' | 'passing'>;

/** Of all requests together. Each takes some 200 bytes; those of the requests asked about longest ago are dropped. */
const MOST_DECISIONS = 250_000;
/**
 * Sentences with GPU and numbers, for the nodes that miss by least. The scheduler writes them all into the pod's condition,
 * where those of thousands of nodes would not fit; the others are told by kind, which the scheduler counts.
 */
const MOST_SENTENCES = 3;

export function createDecider(ledger: Ledger, fallback: Placement): Decider {
  /** By the request's key, the one asked about longest ago first. */
  const cache = new Map<string, Cached>();
  let decisions = 0;

  const place = (request: PodRequest, node: string): PodPlaced => {
    const books = ledger.books(node);
    return books ? placePod(request, books, fallback) : sharesNothing(node);
  };

  const decide = (request: PodRequest, node: string): Decided => {
    const placed = place(request, node);
    if (!placed.ok) return { node, general: placed.general, distance: placed.distance, passing: placed.passing };
    const { opened, granted } = fitOf(placed.containers, ledger.books(node) ?? NO_GPUS);
    return { node, opened, granted, rank: -1 };
  };

  const drop = (key: string): void => {
    decisions -= cache.get(key)?.byNode.size ?? 0;
    cache.delete(key);
  };

  /** Drops the decisions about nodes that have changed. */
  const refresh = (cached: Cached): void => {
    const { byNode, order } = cached;
    if (cached.version === ledger.version) return;
    const changed = ledger.changedSince(cached.version);
    cached.version = ledger.version;
    const before = byNode.size;
    if (changed === undefined) {
      byNode.clear();
      order.length = 0;
    }
    for (const node of changed ?? []) {
      const decided = byNode.get(node);
      byNode.delete(node);
      if (decided && 'rank' in decided) remove(order, decided);
    }
    decisions += byNode.size - before;
  };

  /** The decisions about these nodes, in their order, and all nodes known to fit, best first. */
  const decideAll = (
    { request, key }: Shape,
    nodes: readonly string[],
  ): { readonly decided: readonly Decided[]; readonly order: readonly Fitting[] } => {
    const cached = cache.get(key) ?? { version: ledger.version, byNode: new Map<string, Decided>(), order: [] };
    cache.delete(key);
    cache.set(key, cached);
    refresh(cached);
    const { byNode, order } = cached;
    const before = byNode.size;
    const fresh: Fitting[] = [];
    const decided = nodes.map((node) => {
      const known = byNode.get(node);
      if (known) return known;
      const one = decide(request, node);
      // Nodes without shared GPUs come and go without a change of the ledger: their names would pile up.
      if (ledger.books(node)) byNode.set(node, one);
      if ('rank' in one) fresh.push(one);
      return one;
    });
    insert(order, fresh, request.placement ?? fallback);
    decisions += byNode.size - before;
    for (const oldest of cache.keys()) {
      if (decisions <= MOST_DECISIONS) break;
      drop(oldest);
    }
    return { decided, order };
  };

  return {
    read(annotation) {
      if (annotation === undefined)
        return { wrong: `the pod has no annotation ${REQUEST_ANNOTATION}: it did not pass through Cotenant's webhook` };
      const record = parsePodRequest(annotation);
      if (!record.ok) return { wrong: `the pod's annotation ${REQUEST_ANNOTATION} is not what the webhook writes` };
      return { request: record.value, key: keyOf(record.value) };
    },
    on: ({ request }, node) => place(request, node),
    filter(shape, nodes) {
      const feasible: string[] = [];
      const refused: Refused[] = [];
      for (const one of decideAll(shape, nodes).decided) {
        if ('rank' in one) feasible.push(one.node);
        else refused.push(one);
      }
      const reasonOf = (node: string): string => {
        const placed = place(shape.request, node);
        return placed.ok ? '' : placed.reason();
      };
      return { feasible, ...told(refused, reasonOf) };
    },
    prioritize(shape, nodes) {
      const { decided, order } = decideAll(shape, nodes);
      let best: Fitting | undefined;
      for (const one of decided) if ('rank' in one && (best === undefined || one.rank < best.rank)) best = one;
      return decided.map((one) => ({
        Host: one.node,
        Score: 'rank' in one ? scoreOf(one === best ? 0 : one.rank, order.length) : 0,
      }));
    },
    get cached() {
      return { requests: cache.size, decisions };
    },
  };
}

/**
 * Equal for requests that fit the same nodes equally well: what placePod reads of a request, without names. A digest, so that
 * the length of a request costs nothing.
 */
function keyOf({ placement, gpuModels, gpuUuids, containers }: PodRequest): string {
  const amounts = containers.map(({ kind, gpus }) => [kind, gpus]);
  return createHash('sha256')
    .update(JSON.stringify([placement, gpuModels, gpuUuids, amounts]))
    .digest('base64');
}

function remove(order: Fitting[], decided: Fitting): void {
  order.splice(decided.rank, 1);
  renumber(order, decided.rank);
}

/** A few by halving, many by sorting all. */
function insert(order: Fitting[], fresh: readonly Fitting[], placement: Placement): void {
  if (fresh.length === 0) return;
  const before = (a: Fitting, b: Fitting): number => compareFits(a, b, placement) || (a.node < b.node ? -1 : 1);
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

function renumber(order: readonly Fitting[], from: number): void {
  for (let at = from; at < order.length; at += 1) {
    const one = order[at];
    if (one) one.rank = at;
  }
}

type Refused = Refusal & { readonly node: string };

const NO_GPUS = { mostTenantsPerGpu: 0, gpus: [] };

const sharesNothing = (node: string): PodPlaced => ({
  ok: false,
  reason: () => `it shares no GPU (no annotation ${GPUS_ANNOTATION} on node ${node})`,
  general: 'no GPU is shared',
  distance: 8,
  passing: false,
});

function told(
  refused: readonly Refused[],
  reasonOf: (node: string) => string,
): Pick<Filtered, 'failed' | 'unresolvable'> {
  const nearest = new Set(nearestOf(refused));
  const failed: Record<string, string> = {};
  const unresolvable: Record<string, string> = {};
  for (const one of refused) {
    const { node, general, passing } = one;
    const text = nearest.has(one) ? `node ${node}: ${reasonOf(node)}` : `node(s) where ${general}`;
    (passing ? failed : unresolvable)[node] = text;
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
