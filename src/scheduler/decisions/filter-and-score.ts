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
import { createDecisionCache, type Decided, type DecidedNodes, type RefusedNode } from './decision-cache.ts';

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
      return { fits: false, summary, distance, temporary };
    }
    const placeable = allocations.placeableNode(node) ?? NO_GPUS;
    const preference = preferenceOf(request, placeable, defaultPlacement, learned?.worth);
    return { fits: true, cost: costOnNode(placed.containers, placeable, preference) };
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
      const decided = decideKnown(request, nodes);
      const fitting = nodes.filter((_, at) => decided.rankAt(at) >= 0);
      if (fitting.length >= most) return { feasible: bestOf(nodes, decided, most), failed: {}, unresolvable: {} };
      const refused = nodes.flatMap((_, at) => (decided.rankAt(at) < 0 ? [decided.refusalAt(at)] : []));
      const reasonOf = (node: string): string => {
        const placed = place(request.request, node);
        return placed.ok ? '' : placed.reason();
      };
      return { feasible: fitting, ...toReasons(refused, reasonOf) };
    },
    prioritize(request, nodes) {
      const { rankAt, fitting } = decideAll(request, nodes);
      const ranks = nodes.map((_, at) => rankAt(at));
      const best = ranks.reduce((least, rank) => (rank >= 0 && rank < least ? rank : least), Number.POSITIVE_INFINITY);
      return nodes.map((Host, at) => {
        const rank = ranks[at] ?? -1;
        return { Host, Score: rank < 0 ? 0 : scoreOfRank(rank === best ? 0 : rank, fitting) };
      });
    },
    bestOf(nodes) {
      const among = new Set(nodes);
      /** By the request's key. */
      const asked = new Map<string, { readonly version: number; readonly kind: DecidedNodes['kind'] }>();
      return (request) => {
        if (asked.size === 0 && learns(request.request)) learn();
        const before = asked.get(request.key);
        const changed = before && allocations.changedSince(before.version);
        let decided = decideKnown(request, changed ? [...changed].filter((node) => among.has(node)) : nodes);
        // The cache has dropped what was decided about the others.
        if (before && decided.kind !== before.kind) decided = decideKnown(request, nodes);
        asked.set(request.key, { version: allocations.version, kind: decided.kind });
        for (let rank = 0; rank < decided.fitting; rank += 1) {
          const node = decided.nodeAt(rank);
          if (among.has(node)) return node;
        }
        return undefined;
      };
    },
    get cached() {
      return cache.size;
    },
  };
}

/** The best of these nodes, best first. */
function bestOf(nodes: readonly string[], { rankAt, nodeAt, fitting }: DecidedNodes, most: number): readonly string[] {
  const isGiven = new Uint8Array(fitting);
  for (let at = 0; at < nodes.length; at += 1) if (rankAt(at) >= 0) isGiven[rankAt(at)] = 1;
  const best: string[] = [];
  for (let rank = 0; rank < fitting && best.length < most; rank += 1) if (isGiven[rank] === 1) best.push(nodeAt(rank));
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
