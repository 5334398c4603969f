// What the extender answers: which nodes can take a pod and which is best, by the allocations as they are. Reserves
// nothing. Pure but for a bounded cache of decisions (decision-cache.ts).
import { createHash } from 'node:crypto';
import { GPUS_ANNOTATION, REQUEST_ANNOTATION } from '../../api/names.ts';
import type { Placement, PodRequest } from '../../api/request.ts';
import { parsePodRequest } from '../../api/request-annotation.ts';
import { err, ok, type Result } from '../../common/result.ts';
import type { Allocations } from '../../placement/allocations.ts';
import type { Fragmentation } from '../../placement/fragmentation.ts';
import type { Gang } from '../../placement/gang.ts';
import { type PlacementRequest, type PodPlacement, placePod, preferenceOf } from '../../placement/place-pod.ts';
import { costOnNode, scoreOfRank } from '../../placement/score.ts';
import { learnWorkload } from '../../placement/workload.ts';
import {
  createDecisionCache,
  type Decided,
  type DecidedNodes,
  type Fitting,
  type RefusedNode,
} from './decision-cache.ts';

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
  /**
   * All nodes that can take it, in the order of `nodes`, and why each of the others cannot. With `most`, where as many can:
   * the best, and no reasons.
   */
  filter(request: ParsedRequest, nodes: readonly string[], most?: number): Filtered;
  /** Scores in the order of `nodes`. */
  prioritize(
    request: ParsedRequest,
    nodes: readonly string[],
  ): readonly { readonly Host: string; readonly Score: number }[];
  /**
   * Asks for the best of these nodes again and again, while pods of a few kinds are allocated: looks only at nodes that
   * changed since the same kind was asked for, and learns from none of those pods. Undefined: none can take the pod.
   */
  bestOf(nodes: readonly string[]): (request: ParsedRequest) => string | undefined;
  /** The size of the cache. */
  readonly cached: { readonly requests: number; readonly decisions: number };
};

/** What counts of a pod besides its request: for `spread`, for `fragmentation`, and its group. */
export type PodAspects = Pick<PlacementRequest, 'replicaOf' | 'cores'> & { readonly gang?: Gang };

/** A pod's request, and the key under which decisions about it are cached. */
export type ParsedRequest = {
  readonly request: PodRequest & PodAspects;
  readonly key: string;
};

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
  const cache = createDecisionCache(allocations);
  /** `pods`: how many held shares then. */
  let learned: { readonly worth: Fragmentation; readonly pods: number } | undefined;

  const learns = ({ placement }: ParsedRequest['request']) => (placement ?? defaultPlacement) === 'fragmentation';
  /** Learns anew when the number of pods has changed by so much, which voids the cache. */
  const learn = (): Fragmentation => {
    const change = Math.abs(allocations.pods - (learned?.pods ?? 0));
    if (!learned || change > LEARN_AFTER + learned.pods / 4) {
      learned = { worth: learnWorkload(allocations), pods: allocations.pods };
      cache.clear();
    }
    return learned.worth;
  };

  const worthFor = (request: ParsedRequest['request']) => (learns(request) ? (learned?.worth ?? learn()) : undefined);

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
    const { first, second } = costOnNode(placed.containers, placeable, preference);
    return { node, first, second, tie: hashOf(node), rank: -1 };
  };

  const decideKnown = ({ request, key }: ParsedRequest, nodes: readonly string[]): DecidedNodes =>
    cache.decideAll(key, nodes, (node) => decide(request, node));

  const decideAll = (request: ParsedRequest, nodes: readonly string[]): DecidedNodes => {
    if (learns(request.request)) learn();
    return decideKnown(request, nodes);
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
    filter(request, nodes, most = Number.POSITIVE_INFINITY) {
      if (learns(request.request)) learn();
      const best = most === 1 ? cache.best(request.key, nodes, (node) => decide(request.request, node)) : undefined;
      if (best !== undefined) return { feasible: [best], failed: {}, unresolvable: {} };
      const { decided, order } = decideKnown(request, nodes);
      const fitting: Fitting[] = [];
      const refused: RefusedNode[] = [];
      for (const one of decided) {
        if ('rank' in one) fitting.push(one);
        else refused.push(one);
      }
      if (fitting.length >= most)
        return { feasible: bestOf(fitting, order, most).map(({ node }) => node), failed: {}, unresolvable: {} };
      const feasible = fitting.map(({ node }) => node);
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
    bestOf(nodes) {
      const among = new Set(nodes);
      /** By the request's key. */
      const asked = new Map<string, { readonly version: number; readonly order: DecidedNodes['order'] }>();
      return (request) => {
        if (asked.size === 0 && learns(request.request)) learn();
        const before = asked.get(request.key);
        const changed = before && allocations.changedSince(before.version);
        let { order } = decideKnown(request, changed ? [...changed].filter((node) => among.has(node)) : nodes);
        // The cache has dropped what was decided about the others.
        if (before && order !== before.order) order = decideKnown(request, nodes).order;
        asked.set(request.key, { version: allocations.version, order });
        return order.find(({ node }) => among.has(node))?.node;
      };
    },
    get cached() {
      return cache.size;
    },
  };
}

/** The best of these, best first. `order`: all that fit anywhere. */
function bestOf(fitting: readonly Fitting[], order: readonly Fitting[], most: number): readonly Fitting[] {
  const isGiven = new Uint8Array(order.length);
  for (const { rank } of fitting) isGiven[rank] = 1;
  const best: Fitting[] = [];
  for (const one of order) if (isGiven[one.rank] === 1 && best.push(one) === most) break;
  return best;
}

/** Equal for requests that fit the same nodes equally well: a digest of what placePod reads of a request, without
 * names. */
function keyOf(request: ParsedRequest['request']): string {
  const { placement, gpuModels, gpuUuids, sameGpu, containers, replicaOf, cores } = request;
  const amounts = containers.map(({ kind, gpus }) => [kind, gpus]);
  return createHash('sha256')
    .update(JSON.stringify([placement, gpuModels, gpuUuids, sameGpu, amounts, replicaOf, cores]))
    .digest('base64');
}

/** FNV-1a, 31 bits: V8 keeps it in the object. */
function hashOf(text: string): number {
  let hash = 0x811c9dc5;
  for (let at = 0; at < text.length; at += 1) hash = Math.imul(hash ^ text.charCodeAt(at), 0x01000193);
  return hash >>> 1;
}

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
