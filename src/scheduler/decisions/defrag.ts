// Which pods to move so that a wanted share fits a node: the fewest, and of equally many the least important. A pod moves
// by its eviction; its successor goes where the extender would put it, which is simulated on a copy of the allocations.
// Only pods on the GPUs in question move, so no move makes another one necessary. Pure.
import type { Placement } from '../../api/request.ts';
import { type Allocation, type Allocations, copyAllocations } from '../../placement/allocations.ts';
import { demandOf } from '../../placement/demand.ts';
import { placePod } from '../../placement/place-pod.ts';
import {
  byImportance,
  compareVictims,
  type Evictable,
  exceedsBudget,
  subsets,
  without,
} from '../../placement/preempt.ts';
import { createDecider, type Decider, type ParsedRequest } from './filter-and-score.ts';
import { bestNode } from './fits.ts';

/** A pod that may be evicted, and whose controller makes another one. */
export type Movable = Evictable & {
  readonly request: ParsedRequest;
  /** Nodes that may take its successor. */
  readonly nodes: readonly string[];
};

export type DefragSituation = {
  readonly allocations: Allocations;
  readonly placement: Placement;
  readonly wanted: ParsedRequest;
  /** Nodes that may take the wanted share. */
  readonly nodes: readonly string[];
  readonly movable: readonly Movable[];
  /** How many more evictions each disruption budget allows. */
  readonly allowed: ReadonlyMap<string, number>;
};

type Spot = { readonly node: string; readonly gpus: readonly string[] };
type Move = { readonly podUid: string; readonly from: Spot; readonly to: Spot };
/** In the order of the evictions; without moves the share fits as it is. */
export type DefragPlan = Spot & { readonly moves: readonly Move[] };

/** `exhausted`: there were more sets of pods than are tried. */
export type NoPlan = { readonly moves?: undefined; readonly exhausted: boolean };

/** Sets of pods that are tried. */
const MOST_TRIES = 20_000;

export function planDefrag(situation: DefragSituation): DefragPlan | NoPlan {
  const { wanted, nodes, movable, allowed } = situation;
  const state = stateOf(situation);
  const asItIs = bestSpot(wanted, nodes, state.decider);
  if (asItIs) return { node: asItIs.node, gpus: asItIs.gpus, moves: [] };
  const groups = nodes.flatMap((node) => groupsOn(node, situation));
  const largest = Math.max(0, ...groups.map(({ pods }) => pods.length));
  let tries = 0;
  for (let size = 1; size <= largest; size += 1) {
    let best: { readonly plan: DefragPlan; readonly pods: readonly Movable[] } | undefined;
    for (const { node, pods } of groups)
      for (const some of subsets(pods, size)) {
        if (best && compareVictims(best.pods, some) <= 0) continue;
        tries += 1;
        if (tries > MOST_TRIES) return best?.plan ?? { exhausted: true };
        if (exceedsBudget(some, allowed) || !fitsWithout(wanted, node, some, situation)) continue;
        const plan = simulate(situation, node, some, state);
        if (typeof plan !== 'string') best = { plan, pods: some };
      }
    if (best) return best.plan;
  }
  return { exhausted: movable.length > 0 && tries > MOST_TRIES };
}

/**
 * What the rest of a plan comes to by the allocations as they are now; text: why it no longer holds.
 */
export function continuePlan(
  situation: DefragSituation,
  node: string,
  podUids: readonly string[],
): DefragPlan | string {
  const pods = situation.movable.filter(({ podUid }) => podUids.includes(podUid));
  if (pods.length < podUids.length) return 'a pod that was to move next is gone or may not be evicted any more';
  return simulate(situation, node, pods.toSorted(byImportance), stateOf(situation));
}

type State = { readonly allocations: Allocations; readonly decider: Decider };

function stateOf({ allocations, placement }: DefragSituation): State {
  const copy = copyAllocations(allocations);
  return { allocations: copy, decider: createDecider(copy, placement) };
}

/** One share needs one GPU, so only pods that are on it together are combined. Most important first. */
function groupsOn(node: string, { allocations, movable, wanted }: DefragSituation) {
  const placeable = allocations.placeableNode(node);
  const pods = movable.filter(({ podUid }) => allocations.allocationOf(podUid)?.nodeName === node).sort(byImportance);
  const shares = wanted.request.containers.reduce((sum, { gpus }) => sum + gpus.length, 0);
  if (!placeable || pods.length === 0) return [];
  if (shares > 1) return [{ node, pods }];
  return placeable.gpus.map(({ gpuUuid }) => ({ node, pods: pods.filter(({ demand }) => demand.has(gpuUuid)) }));
}

/** A quick answer, before the moves are simulated. */
function fitsWithout(wanted: ParsedRequest, node: string, pods: readonly Movable[], situation: DefragSituation) {
  const placeable = situation.allocations.placeableNode(node);
  return placeable !== undefined && placePod(wanted.request, without(placeable, pods), situation.placement).ok;
}

/** Evicts the pods one after the other, the least important first, and places each one's successor. */
function simulate(
  { wanted }: DefragSituation,
  node: string,
  pods: readonly Movable[],
  { allocations, decider }: State,
): DefragPlan | string {
  const before: Allocation[] = [];
  const moves: Move[] = [];
  const follow = (): DefragPlan | string => {
    for (const { podUid, request, nodes, demand } of pods.toReversed()) {
      const held = allocations.allocationOf(podUid);
      if (!held) return 'a pod that was to move is gone';
      before.push(held);
      allocations.release(podUid);
      const spot = bestSpot(request, nodes, decider);
      if (!spot) return 'a pod that was to move fits nowhere else';
      allocations.allocate({ ...held, nodeName: spot.node, demand: spot.demand });
      const from = { node: held.nodeName, gpus: [...demand.keys()] };
      moves.push({ podUid, from, to: { node: spot.node, gpus: spot.gpus } });
    }
    const placed = decider.on(wanted, node);
    if (!placed.ok) return `node ${node}: ${placed.reason()}`;
    return { node, gpus: [...demandOf(placed.containers).keys()], moves };
  };
  const result = follow();
  for (const one of before) allocations.allocate(one);
  return result;
}

/** Where the extender would put the pod. */
function bestSpot(request: ParsedRequest, nodes: readonly string[], decider: Decider) {
  const node = bestNode(request, nodes, decider);
  const placed = node === undefined ? undefined : decider.on(request, node);
  if (node === undefined || !placed?.ok) return undefined;
  const demand = demandOf(placed.containers);
  return { node, gpus: [...demand.keys()], demand };
}
