// What the extender answers: which nodes can take a pod and which is best, by the allocations as they are. Reserves
// nothing. Pure but for a bounded cache of decisions about nodes that have not changed since.
import { createHash } from 'node:crypto';
import { GPUS_ANNOTATION, REQUEST_ANNOTATION } from '../api/names.ts';
import type { Placement, PodRequest } from '../api/request.ts';
import { parsePodRequest } from '../api/request-annotation.ts';
import { err, ok, type Result } from '../common/result.ts';
import type { Allocations } from '../placement/allocations.ts';
import type { Fragmentation } from '../placement/fragmentation.ts';
import {
  type PlacementRequest,
  type PodPlacement,
  type PodRefusal,
  placePod,
  preferenceOf,
} from '../placement/place-pod.ts';
import { type Cost, compareCosts, costOnNode, scoreOfRank } from '../placement/score.ts';
import { learnWorkload } from '../placement/workload.ts';

export type Filtered = {
  readonly feasible: readonly string[];
  /** Node -> sentence, where the pod can fit once others leave. */
  readonly failed: Readonly<Record<string, string>>;
  /** Node -> sentence, where it cannot fit. */
  readonly unresolvable: Readonly<Record<string, string>>;
};

export type Decider = {
  /** The request in a pod's annotation, with what else of the pod decides where it goes. */
  read(annotation: string | undefined, aspects?: PodAspects): Result<ParsedRequest>;
  /** Which GPUs of this node it would get. */
  on(request: ParsedRequest, node: string): PodPlacement;
  filter(request: ParsedRequest, nodes: readonly string[]): Filtered;
  /** Scores in the order of `nodes`. */
  prioritize(
    request: ParsedRequest,
    nodes: readonly string[],
  ): readonly { readonly Host: string; readonly Score: number }[];
  /** The size of the cache. */
  readonly cached: { readonly requests: number; readonly decisions: number };
};

/** What counts of a pod besides its request: for `spread`, and for `fragmentation`. */
export type PodAspects = Pick<PlacementRequest, 'replicaOf' | 'cores'>;

/** A pod's request, and the key under which decisions about it are cached. */
export type ParsedRequest = {
  readonly request: PodRequest & PodAspects;
  readonly key: string;
};

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
type Decided = Fitting | (Refusal & { readonly node: string });
type Fitting = Cost & {
  readonly node: string;
  /** Between nodes that cost the same: in an order that has nothing to do with their names. */
  readonly tie: number;
  /** Position in `Cached.order`. */
  rank: number;
};
type Refusal = Pick<PodRefusal, 'summary' | 'distance' | 'temporary'>;

/** Of all requests together, some 200 bytes each. The decisions about the least recently used requests are dropped. */
const MOST_DECISIONS = 125_000;
/**
 * Sentences with GPU and numbers, for the nodes that miss by least. kube-scheduler writes all reasons into the pod's
 * condition, where thousands of sentences would not fit; the other nodes get summaries, of which it counts the equal
 * ones.
 */
const MOST_SENTENCES = 3;
/** Pods. */
const LEARN_AFTER = 20;

export const NOT_ADMITTED = `the pod has no annotation ${REQUEST_ANNOTATION}: Cotenant's webhook did not admit it; delete it and create it again`;

export function createDecider(allocations: Allocations, defaultPlacement: Placement): Decider {
  /** By the request's key, the least recently used first. */
  const cache = new Map<string, Cached>();
  let decisions = 0;
  /** `pods`: how many held shares then. */
  let learned: { readonly worth: Fragmentation; readonly pods: number } | undefined;

  /** Learned anew when the number of pods has changed by so much, which voids the cache. */
  const worthFor = (request: ParsedRequest['request']): Fragmentation | undefined => {
    if ((request.placement ?? defaultPlacement) !== 'fragmentation') return undefined;
    const change = Math.abs(allocations.pods - (learned?.pods ?? 0));
    if (!learned || change > LEARN_AFTER + learned.pods / 4) {
      learned = { worth: learnWorkload(allocations), pods: allocations.pods };
      for (const key of cache.keys()) drop(key);
    }
    return learned.worth;
  };

  const place = (request: ParsedRequest['request'], node: string): PodPlacement => {
    const placeable = allocations.placeableNode(node);
    return placeable ? placePod(request, placeable, defaultPlacement, worthFor(request)) : NO_SHARED_GPU;
  };

  const decide = (request: ParsedRequest['request'], node: string): Decided => {
    const placed = place(request, node);
    if (!placed.ok) {
      const { summary, distance, temporary } = placed;
      return { node, summary, distance, temporary };
    }
    const placeable = allocations.placeableNode(node) ?? NO_GPUS;
    const preference = preferenceOf(request, placeable, defaultPlacement, learned?.worth);
    const cost = costOnNode(placed.containers, placeable, preference);
    return { node, ...cost, tie: hashOf(node), rank: -1 };
  };

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

  /** The decisions about these nodes, in their order, and all nodes known to fit, best first. */
  const decideAll = (
    { request, key }: ParsedRequest,
    nodes: readonly string[],
  ): { readonly decided: readonly Decided[]; readonly order: readonly Fitting[] } => {
    worthFor(request);
    const { byNode, order } = cachedFor(key);
    const before = byNode.size;
    const decided: Decided[] = [];
    const fitting: Fitting[] = [];
    // A plain loop: it runs for each call of kube-scheduler over all nodes of the cluster.
    for (const node of nodes) {
      let one = byNode.get(node);
      if (one === undefined) {
        one = decide(request, node);
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
  };

  return {
    read(annotation, aspects = {}) {
      if (annotation === undefined) return err(NOT_ADMITTED);
      const record = parsePodRequest(annotation);
      if (!record.ok)
        return err(
          `Cotenant's webhook did not write the pod's annotation ${REQUEST_ANNOTATION}; create the pod without it`,
        );
      const placement = record.value.placement ?? defaultPlacement;
      const { replicaOf, cores } = aspects;
      const request = {
        ...record.value,
        ...(placement === 'spread' && replicaOf && { replicaOf }),
        ...(placement === 'fragmentation' && cores !== undefined && { cores }),
      };
      return ok({ request, key: keyOf(request) });
    },
    on: ({ request }, node) => place(request, node),
    filter(request, nodes) {
      const feasible: string[] = [];
      const refused: RefusedNode[] = [];
      for (const one of decideAll(request, nodes).decided) {
        if ('rank' in one) feasible.push(one.node);
        else refused.push(one);
      }
      const reasonOf = (node: string): string => {
        const placed = place(request.request, node);
        return placed.ok ? '' : placed.reason();
      };
      return { feasible, ...toReasons(refused, reasonOf) };
    },
    prioritize(request, nodes) {
      const { decided, order } = decideAll(request, nodes);
      let best: Fitting | undefined;
      for (const one of decided) if ('rank' in one && (best === undefined || one.rank < best.rank)) best = one;
      return decided.map((one) => ({
        Host: one.node,
        Score: 'rank' in one ? scoreOfRank(one === best ? 0 : one.rank, order.length) : 0,
      }));
    },
    get cached() {
      return { requests: cache.size, decisions };
    },
  };
}

/** Equal for requests that fit the same nodes equally well: a digest of what placePod reads of a request, without
 * names. */
function keyOf({ placement, gpuModels, gpuUuids, containers, replicaOf, cores }: ParsedRequest['request']): string {
  const amounts = containers.map(({ kind, gpus }) => [kind, gpus]);
  return createHash('sha256')
    .update(JSON.stringify([placement, gpuModels, gpuUuids, amounts, replicaOf, cores]))
    .digest('base64');
}

function remove(order: Fitting[], decided: Fitting): void {
  order.splice(decided.rank, 1);
  renumber(order, decided.rank);
}

const before = (a: Fitting, b: Fitting): number => compareCosts(a, b) || a.tie - b.tie || (a.node < b.node ? -1 : 1);

/** FNV-1a. */
function hashOf(text: string): number {
  let hash = 0x811c9dc5;
  for (let at = 0; at < text.length; at += 1) hash = Math.imul(hash ^ text.charCodeAt(at), 0x01000193);
  return hash >>> 0;
}

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

type RefusedNode = Refusal & { readonly node: string };

const NO_GPUS = { mostTenantsPerGpu: 0, gpus: [] };

const NO_SHARED_GPU: PodPlacement = {
  ok: false,
  reason: () => `the node shares no GPU (it has no annotation ${GPUS_ANNOTATION})`,
  summary: 'no GPU is shared',
  distance: 8,
  temporary: false,
};

function toReasons(
  refused: readonly RefusedNode[],
  reasonOf: (node: string) => string,
): Pick<Filtered, 'failed' | 'unresolvable'> {
  const nearest = new Set(nearestOf(refused));
  const failed: Record<string, string> = {};
  const unresolvable: Record<string, string> = {};
  for (const one of refused) {
    const { node, summary, temporary } = one;
    const text = nearest.has(one) ? `node ${node}: ${reasonOf(node)}` : `node(s) where ${summary}`;
    (temporary ? failed : unresolvable)[node] = text;
  }
  return { failed, unresolvable };
}

/** The nodes that are nearest to fitting; of equal ones the first by name. */
function nearestOf(refused: readonly RefusedNode[]): readonly RefusedNode[] {
  const found: RefusedNode[] = [];
  const before = (a: RefusedNode, b: RefusedNode) =>
    a.distance < b.distance || (a.distance === b.distance && a.node < b.node);
  for (const one of refused) {
    const last = found.at(-1);
    if (last && found.length === MOST_SENTENCES && !before(one, last)) continue;
    const place = found.findIndex((other) => before(one, other));
    found.splice(place < 0 ? found.length : place, 0, one);
    if (found.length > MOST_SENTENCES) found.pop();
  }
  return found;
}
