// Decisions about kinds of pods and nodes, kept until the node changes: bounded, the least recently used first to go.
import { createPool } from '../../common/digest.ts';
import type { Allocations } from '../../placement/allocations.ts';
import type { PodRefusal } from '../../placement/place-pod.ts';
import { type Cost, compareCosts } from '../../placement/score.ts';

/** The decisions about all requests with the same amounts. */
type Cached = {
  /** Of the allocations that `byNode` and `order` were decided by. */
  version: number;
  /** Only nodes that the allocations know. */
  readonly byNode: Map<string, Decided>;
  /** Nodes that can take it, best first. */
  readonly order: Fitting[];
  /** Whether the ranks in `order` are their positions. */
  isRanked: boolean;
};

/**
 * Small values only: there is one per request and node. Grants and sentences are computed again from the request where
 * they are needed.
 */
export type Decided = Fitting | RefusedNode;
export type Fitting = Cost & {
  readonly node: string;
  /** Between nodes that cost the same: in an order that has nothing to do with their names. */
  readonly tie: number;
  /** Position in `Cached.order`, where that is ranked. */
  rank: number;
};
export type RefusedNode = Pick<PodRefusal, 'summary' | 'distance' | 'temporary'> & { readonly node: string };

export type DecidedNodes = {
  /** In the order of the nodes. */
  readonly decided: readonly Decided[];
  /** All nodes known to fit, best first. */
  readonly order: readonly Fitting[];
};

type DecisionCache = {
  /** The decisions about these nodes for the request with this key. */
  decideAll(key: string, nodes: readonly string[], decide: (node: string) => Decided): DecidedNodes;
  /** The best of these nodes, found without looking at each of them; undefined: they must be. */
  best(key: string, nodes: readonly string[], decide: (node: string) => Decided): string | undefined;
  clear(): void;
  readonly size: { readonly requests: number; readonly decisions: number };
};

/** Of all requests together, some 200 bytes each. The decisions about the least recently used requests are dropped. */
const MOST_DECISIONS = 125_000;
/** Of the best nodes, these are looked for among those asked about: each takes some 4 ns for each of them. */
const MOST_TRIED = 4;

export function createDecisionCache(allocations: Allocations): DecisionCache {
  /** By the request's key, the least recently used first. */
  const cache = new Map<string, Cached>();
  let decisions = 0;
  /** Each call has them as texts of its own. */
  const sharedName = createPool<string>(10_000);

  const drop = (key: string): void => {
    decisions -= cache.get(key)?.byNode.size ?? 0;
    cache.delete(key);
  };

  /** Drops the decisions about nodes that have changed. */
  const refresh = (cached: Cached): void => {
    const { byNode, order } = cached;
    if (cached.version === allocations.version) return;
    const changed = allocations.changedSince(cached.version);
    cached.version = allocations.version;
    const before = byNode.size;
    if (changed === undefined) {
      byNode.clear();
      order.length = 0;
    }
    for (const node of changed ?? []) {
      const decided = byNode.get(node);
      byNode.delete(node);
      if (decided && 'rank' in decided) order.splice(placeOf(order, decided), 1);
    }
    cached.isRanked = false;
    decisions += byNode.size - before;
  };

  /** The cached decisions about this request, without those about nodes that have changed; now the most recently
   * used. */
  const cachedFor = (key: string): Cached => {
    const fresh = { byNode: new Map<string, Decided>(), order: [], isRanked: true };
    const cached = cache.get(key) ?? { version: allocations.version, ...fresh };
    cache.delete(key);
    cache.set(key, cached);
    refresh(cached);
    return cached;
  };

  const decideEach = (key: string, nodes: readonly string[], decide: (node: string) => Decided) => {
    const cached = cachedFor(key);
    const { byNode, order } = cached;
    const before = byNode.size;
    const decided: Decided[] = [];
    const fitting: Fitting[] = [];
    // A plain loop: it runs for each call of kube-scheduler over all nodes of the cluster.
    for (const name of nodes) {
      let one = byNode.get(name);
      if (one === undefined) {
        const node = sharedName(name, name);
        one = decide(node);
        // Nodes without shared GPUs come and go without a change of the allocations: their names would pile up.
        if (allocations.placeableNode(node)) byNode.set(node, one);
        if ('rank' in one) fitting.push(one);
      }
      decided.push(one);
    }
    if (fitting.length > 0) {
      insert(order, fitting);
      cached.isRanked = false;
    }
    decisions += byNode.size - before;
    for (const oldest of cache.keys()) {
      if (decisions <= MOST_DECISIONS) break;
      drop(oldest);
    }
    return { cached, decided };
  };

  return {
    decideAll(key, nodes, decide) {
      const { cached, decided } = decideEach(key, nodes, decide);
      const { order } = cached;
      if (!cached.isRanked) for (const [rank, one] of order.entries()) one.rank = rank;
      cached.isRanked = true;
      return { decided, order };
    },
    best(key, nodes, decide) {
      const cached = cache.get(key);
      const changed = cached && allocations.changedSince(cached.version);
      if (!cached || !changed) return undefined;
      decideEach(key, [...changed], decide);
      // Of a node without a decision nothing is known, unless it shares no GPU.
      if (cached.byNode.size < allocations.nodes) return undefined;
      return cached.order.slice(0, MOST_TRIED).find(({ node }) => nodes.includes(node))?.node;
    },
    clear() {
      for (const key of cache.keys()) drop(key);
    },
    get size() {
      return { requests: cache.size, decisions };
    },
  };
}

const before = (a: Fitting, b: Fitting): number => compareCosts(a, b) || a.tie - b.tie || (a.node < b.node ? -1 : 1);

/** Where it is in the order, or belongs. */
function placeOf(order: readonly Fitting[], one: Fitting): number {
  let [low, high] = [0, order.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    const other = order[middle];
    if (other && other !== one && before(other, one) < 0) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** A few by binary search, many by sorting all. */
function insert(order: Fitting[], fresh: readonly Fitting[]): void {
  if (fresh.length > 64) {
    for (const one of fresh) order.push(one);
    order.sort(before);
  } else for (const one of fresh) order.splice(placeOf(order, one), 0, one);
}
