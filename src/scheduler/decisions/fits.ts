// What would fit the cluster as it is now, where, and how many more of it: pods are placed one after the other on a copy
// of the allocations, as the extender would place them. Counts GPUs alone. Pure.
import type { Placement } from '../../api/request.ts';
import { type Allocations, copyAllocations } from '../../placement/allocations.ts';
import { demandOf } from '../../placement/demand.ts';
import { BEST_SCORE } from '../../placement/score.ts';
import { createDecider, type Decider, type ParsedRequest } from './filter-and-score.ts';

export type WantedPods = {
  readonly request: ParsedRequest;
  readonly replicas: number;
  /** Nodes that may take them; absent: all that share GPUs. */
  readonly nodes?: readonly string[];
  /** One pod on each of the nodes, whatever else would be better, and no more. */
  readonly isOnEachNode?: boolean;
};

export type Fit = {
  /** One for each replica that fits, in the order in which they are placed. */
  readonly placed: readonly { readonly node: string; readonly gpus: readonly string[] }[];
  /** How many more of these alone fit once all wanted pods are placed; `MOST_MORE`: so many or more. */
  readonly more: number;
  readonly moreOn: readonly { readonly node: string; readonly count: number }[];
  /** The node where the next one misses by least, and why. Absent: more fit. */
  readonly nearest?: string;
};

/** More are not counted: it takes the extender a tenth of a second. */
export const MOST_MORE = 10_000;
export const MOST_REPLICAS = 1000;

export function fitPods(wanted: readonly WantedPods[], allocations: Allocations, placement: Placement): Fit[] {
  const copy = copyAllocations(allocations);
  const state = { allocations: copy, decider: createDecider(copy, placement), nodes: [...copy.nodeNames()].sort() };
  const placed = wanted.map((one) => placeReplicas(one, state));
  return wanted.map((one, index) => {
    const { nearest, ...first } = placed[index] ?? { placed: [] };
    if (one.isOnEachNode) return { ...first, more: 0, moreOn: [], ...(nearest !== undefined && { nearest }) };
    if (nearest !== undefined) return { ...first, more: 0, moreOn: [], nearest };
    return { ...first, ...countMore(one, state) };
  });
}

type State = { readonly allocations: Allocations; readonly decider: Decider; readonly nodes: readonly string[] };

function placeReplicas(
  wanted: WantedPods,
  { allocations, decider, nodes: all }: State,
): Pick<Fit, 'placed' | 'nearest'> {
  const { request, replicas, nodes = all, isOnEachNode } = wanted;
  const placed: { readonly node: string; readonly gpus: readonly string[] }[] = [];
  if (isOnEachNode) {
    const missed = nodes.filter((node) => {
      const gpus = take(request, node, { allocations, decider });
      if (gpus) placed.push({ node, gpus });
      return !gpus;
    });
    return missed.length === 0 ? { placed } : { placed, nearest: nearestMiss(request, missed, decider) };
  }
  while (placed.length < replicas) {
    const node = bestNode(request, nodes, decider);
    const gpus = node === undefined ? undefined : take(request, node, { allocations, decider });
    if (node === undefined || !gpus) return { placed, nearest: nearestMiss(request, nodes, decider) };
    placed.push({ node, gpus });
  }
  return { placed };
}

/** Where the extender would put the pod. */
export function bestNode(request: ParsedRequest, nodes: readonly string[], decider: Decider): string | undefined {
  const { feasible } = decider.filter(request, nodes);
  return decider.prioritize(request, feasible).find(({ Score }) => Score === BEST_SCORE)?.Host;
}

/** Allocates what one more pod gets on the node, and says which GPUs that is; undefined: it does not fit. */
function take({ request, key }: ParsedRequest, node: string, { allocations, decider }: Omit<State, 'nodes'>) {
  const placed = decider.on({ request, key }, node);
  if (!placed.ok) return undefined;
  const { gpuModels, replicaOf, cores } = request;
  const demand = demandOf(placed.containers);
  const podUid = uidOf(allocations.pods);
  const aspects = { ...(replicaOf && { replicaOf }), ...(cores !== undefined && { cores }) };
  allocations.allocate({ podUid, nodeName: node, demand, gpuModels, ...aspects });
  return [...demand.keys()];
}

/** No UID of Kubernetes has a space. */
const uidOf = (pods: number): string => `fits ${pods}`;

function countMore({ request, nodes }: WantedPods, state: State): Pick<Fit, 'more' | 'moreOn' | 'nearest'> {
  const { allocations, decider } = state;
  const before = allocations.pods;
  const moreOn: { readonly node: string; readonly count: number }[] = [];
  for (const node of nodes ?? state.nodes) {
    const start = allocations.pods;
    while (allocations.pods - before < MOST_MORE && take(request, node, state));
    if (allocations.pods > start) moreOn.push({ node, count: allocations.pods - start });
  }
  const more = allocations.pods - before;
  const nearest = more === 0 && { nearest: nearestMiss(request, nodes ?? state.nodes, decider) };
  while (allocations.pods > before) allocations.release(uidOf(allocations.pods - 1));
  return { more, moreOn, ...nearest };
}

/** The node that misses by least, and why. */
export function nearestMiss(request: ParsedRequest, nodes: readonly string[], decider: Decider): string {
  let nearest: { readonly distance: number; readonly text: () => string } | undefined;
  for (const node of nodes) {
    const placed = decider.on(request, node);
    if (placed.ok || (nearest && nearest.distance <= placed.distance)) continue;
    nearest = { distance: placed.distance, text: () => `node ${node}: ${placed.reason()}` };
  }
  return nearest?.text() ?? 'no node that may take it shares GPUs';
}
