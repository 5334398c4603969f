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
  /** Position in `Cached.order`. */
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
  clear(): void;
  readonly size: { readonly requests: number; readonly decisions: number };
};

/** Of all requests together, some 200 bytes each. The decisions about the least recently used requests are dropped. */
const MOST_DECISIONS = 125_000;

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
      if (decided && 'rank' in decided) remove(order, decided);
    }
    decisions += byNode.size - before;
  };

  /** The cached decisions about this request, without those about nodes that have changed; now the most recently
   * used. */
  const cachedFor = (key: string): Cached => {
    const cached = cache.get(key) ?? { version: allocations.version, byNode: new Map<string, Decided>(), order: [] };
    cache.delete(key);
    cache.set(key, cached);
    refresh(cached);
    return cached;
  };

  return {
    decideAll(key, nodes, decide) {
      const { byNode, order } = cachedFor(key);
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
      insert(order, fitting);
      decisions += byNode.size - before;
      for (const oldest of cache.keys()) {
        if (decisions <= MOST_DECISIONS) break;
        drop(oldest);
      }
      return { decided, order };
    },
    clear() {
      for (const key of cache.keys()) drop(key);
    },
    get size() {
      return { requests: cache.size, decisions };
    },
  };
}

function remove(order: Fitting[], decided: Fitting): void {
  order.splice(decided.rank, 1);
  renumber(order, decided.rank);
}

const before = (a: Fitting, b: Fitting): number => compareCosts(a, b) || a.tie - b.tie || (a.node < b.node ? -1 : 1);

/** A few by binary search, many by sorting all. */
function insert(order: Fitting[], fresh: readonly Fitting[]): void {
  if (fresh.length === 0) return;
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
