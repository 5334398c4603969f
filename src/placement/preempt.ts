// Which pods of lower priority must leave a node so that another pod fits its GPUs: the least important ones, and as
// few as possible. Pure; who may be evicted at all, and which node is chosen, is the scheduler's part.
import type { GpuDemand } from '../api/gpu.ts';
import type { ContainerGrant } from '../api/grant-annotation.ts';
import type { Placement } from '../api/request.ts';
import type { PlaceableNode } from './node.ts';
import { type PlacementRequest, placePod } from './place-pod.ts';

/** A pod that may be evicted. */
export type Evictable = {
  readonly podUid: string;
  readonly priority: number;
  readonly createdMs: number;
  /** By UUID of the GPU. */
  readonly demand: ReadonlyMap<string, GpuDemand>;
  /** Disruption budgets that count its eviction. */
  readonly budgets: readonly string[];
};

export type PreemptionSituation = {
  readonly request: PlacementRequest;
  readonly defaultPlacement: Placement;
  /** With all pods on it, but for those that leave it anyway. */
  readonly node: PlaceableNode;
  readonly evictable: readonly Evictable[];
  /** How many more evictions each budget allows. */
  readonly allowed: ReadonlyMap<string, number>;
};

export type Preemption = {
  /** Most important first; empty: the pod fits as it is. */
  readonly victims: readonly Evictable[];
  /** What the pod gets once they have left. */
  readonly containers: readonly ContainerGrant[];
};

/** Sets of victims that are tried; beyond that a set is taken of which none can stay, though a smaller one may exist. */
const MOST_TRIES = 2000;

/**
 * Undefined: no eviction helps. Sets of victims compare by the priority of the most important victim, then by their
 * number, then by the sum of their priorities, then the youngest go first. No budget is exceeded.
 */
export function choosePreemption(situation: PreemptionSituation): Preemption | undefined {
  const { request, node, defaultPlacement, evictable, allowed } = situation;
  const attempt = (victims: readonly Evictable[]): Preemption | undefined => {
    if (exceedsBudget(victims, allowed)) return undefined;
    const placed = placePod(request, without(node, victims), defaultPlacement);
    return placed.ok ? { victims: victims.toSorted(byImportance), containers: placed.containers } : undefined;
  };
  const asItIs = attempt([]);
  if (asItIs) return asItIs;
  const candidates = evictable.filter(({ demand }) => node.gpus.some(({ gpuUuid }) => demand.has(gpuUuid)));
  const helps = (leaving: readonly Evictable[]) => placePod(request, without(node, leaving), defaultPlacement).ok;
  for (const most of [...new Set(candidates.map(({ priority }) => priority))].sort((a, b) => a - b)) {
    const lower = candidates.filter(({ priority }) => priority <= most).sort(byImportance);
    if (!helps(lower)) continue;
    // A single share needs room on one GPU, so only the pods of one GPU are combined.
    const groups = sharesOf(request) === 1 ? node.gpus.map(({ gpuUuid }) => holdersOf(lower, gpuUuid)) : [lower];
    const found = groups
      .filter(helps)
      .flatMap((group) => fewest(group, attempt) ?? reprieved(group, allowed, attempt) ?? []);
    const [first, ...others] = found;
    if (first) return others.reduce((a, b) => (compareVictims(b.victims, a.victims) < 0 ? b : a), first);
  }
  return undefined;
}

const sharesOf = ({ containers }: PlacementRequest): number =>
  containers.reduce((sum, { gpus }) => sum + gpus.length, 0);

const holdersOf = (pods: readonly Evictable[], gpuUuid: string): readonly Evictable[] =>
  pods.filter(({ demand }) => demand.has(gpuUuid));

/** Negative: `a` matters more. */
export const byImportance = (a: Evictable, b: Evictable): number =>
  b.priority - a.priority || a.createdMs - b.createdMs || (a.podUid < b.podUid ? -1 : 1);

/** Of the smallest sets that help the cheapest; undefined also where too many sets would have to be tried. */
function fewest(
  candidates: readonly Evictable[],
  attempt: (victims: readonly Evictable[]) => Preemption | undefined,
): Preemption | undefined {
  let tries = 0;
  for (let size = 1; size <= candidates.length; size += 1) {
    let best: Preemption | undefined;
    for (const victims of subsets(candidates, size)) {
      tries += 1;
      if (tries > MOST_TRIES) return undefined;
      const found = attempt(victims);
      if (found && (!best || compareVictims(found.victims, best.victims) < 0)) best = found;
    }
    if (best) return best;
  }
  return undefined;
}

/** All go that the budgets allow, the least important first; then each returns that can stay, the most important
 * first. */
function reprieved(
  candidates: readonly Evictable[],
  allowed: ReadonlyMap<string, number>,
  attempt: (victims: readonly Evictable[]) => Preemption | undefined,
): Preemption | undefined {
  let victims: readonly Evictable[] = [];
  for (const one of candidates.toReversed())
    if (!exceedsBudget([...victims, one], allowed)) victims = [...victims, one];
  let found = attempt(victims);
  for (const one of candidates) {
    const fewer = found && attempt(found.victims.filter((other) => other !== one));
    if (fewer) found = fewer;
  }
  return found;
}

/** Negative: evicting `a` costs less. Both are ordered by importance. */
export function compareVictims(a: readonly Evictable[], b: readonly Evictable[]): number {
  const highest = ([first]: readonly Evictable[]) => first?.priority ?? Number.NEGATIVE_INFINITY;
  const sum = (victims: readonly Evictable[]) => victims.reduce((total, { priority }) => total + priority, 0);
  const oldest = (victims: readonly Evictable[]) => Math.min(...victims.map(({ createdMs }) => createdMs));
  return (
    (a.length === 0 ? 0 : 1) - (b.length === 0 ? 0 : 1) ||
    highest(a) - highest(b) ||
    a.length - b.length ||
    sum(a) - sum(b) ||
    oldest(b) - oldest(a) ||
    0
  );
}

export function exceedsBudget(
  victims: readonly Pick<Evictable, 'budgets'>[],
  allowed: ReadonlyMap<string, number>,
): boolean {
  const used = new Map<string, number>();
  for (const { budgets } of victims) for (const budget of budgets) used.set(budget, (used.get(budget) ?? 0) + 1);
  return [...used].some(([budget, count]) => count > (allowed.get(budget) ?? 0));
}

/** The node once these pods have left it. */
export const without = (node: PlaceableNode, leaving: readonly Pick<Evictable, 'demand'>[]): PlaceableNode =>
  withDemand(
    node,
    leaving.map(({ demand }) => demand),
    -1,
  );

/** The node with these demands added to what is granted (1), or taken from it (-1). */
function withDemand(node: PlaceableNode, all: readonly ReadonlyMap<string, GpuDemand>[], sign: 1 | -1): PlaceableNode {
  if (all.length === 0) return node;
  const gpus = node.gpus.map((gpu) => {
    let { grantedBytes, grantedCoresPercent, tenants } = gpu;
    for (const demand of all) {
      const own = demand.get(gpu.gpuUuid);
      if (!own) continue;
      grantedBytes += sign * own.memoryBytes;
      grantedCoresPercent += sign * own.coresPercent;
      tenants += sign * own.tenants;
    }
    return { ...gpu, grantedBytes, grantedCoresPercent, tenants };
  });
  return { ...node, gpus };
}

export function* subsets<T>(items: readonly T[], size: number): Generator<readonly T[]> {
  if (size === 0) yield [];
  for (const [index, first] of size > 0 ? items.entries() : [])
    for (const rest of subsets(items.slice(index + 1), size - 1)) yield [first, ...rest];
}
