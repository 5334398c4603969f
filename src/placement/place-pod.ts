// Which GPUs of one node a pod's containers get. Pure: from the request, the node's GPUs and what is granted on them.
// Which node it is, is decided by score.ts and the scheduler; a plain process is a request of one container on the
// agent's node.
import type { GpuDemand, GpuGrant } from '../api/gpu.ts';
import type { ContainerGrant } from '../api/grant-annotation.ts';
import { GPU } from '../api/names.ts';
import {
  type ContainerRequest,
  type GpuShare,
  namedIn,
  type Placement,
  type PodRequest,
  resolveLimit,
  resolveShare,
} from '../api/request.ts';
import { demandOf } from './demand.ts';
import { findObstacle, type Obstacle } from './fit.ts';
import type { Fragmentation } from './fragmentation.ts';
import type { NodeGpu, PlaceableNode } from './node.ts';
import type { ReplicaOf } from './replicas.ts';
import { type Cost, compareCosts, costOnGpu, lossOn, type Preference } from './score.ts';
import { closestGpus } from './topology.ts';

type RequestedContainer = Pick<ContainerRequest, 'name' | 'kind' | 'initIndex' | 'memoryIsolation' | 'gpus'>;
/** What of a pod's request decides where it goes. */
export type PlacementRequest = Pick<PodRequest, 'placement' | 'gpuModels' | 'gpuUuids' | 'sameGpu'> & {
  readonly containers: readonly RequestedContainer[];
  /** For `spread`. */
  readonly replicaOf?: ReplicaOf;
  /** CPU cores that the pod requests, for `fragmentation`. */
  readonly cores?: number;
};

export type PodRefusal = {
  /** One sentence: the nearest miss with its GPU and numbers, or every GPU with its own. Made only when it is
   * called. */
  readonly reason: (detail?: 'nearest' | 'all') => string;
  /** The same without GPU and numbers: a clause behind "node(s) where". */
  readonly summary: string;
  /** How far the nearest miss is from fitting; comparable over nodes. */
  readonly distance: number;
  /** Whether it can fit once other pods leave the node. */
  readonly temporary: boolean;
};

export type PodPlacement =
  | { readonly ok: true; readonly containers: readonly ContainerGrant[] }
  | ({ readonly ok: false } & PodRefusal);

/**
 * Containers of a pod may share a GPU; shares of one container lie on different ones. A request with one container is
 * placed whenever that is possible at all. Several containers are tried one after the other, in a few orders: a pod
 * that fits a node in exactly one way may be refused. Without `worth`, `fragmentation` places like `binpack`.
 */
export function placePod(
  request: PlacementRequest,
  node: PlaceableNode,
  defaultPlacement: Placement,
  worth?: Fragmentation,
): PodPlacement {
  const gpus = selectGpus(request, node);
  if ('reason' in gpus) return { ok: false, ...gpus };
  // The node's own placement chooses among its GPUs only: nodes are compared by one placement.
  const preference = preferenceOf(request, node, node.placement ?? defaultPlacement, worth);
  if (request.sameGpu) return placeOnOneGpu(request, { ...node, gpus }, preference);
  const { mostTenantsPerGpu } = node;
  const [only, ...others] = request.containers;
  const [share, ...more] = only?.gpus ?? [];
  if (only && share && others.length === 0 && more.every((one) => isEqualShare(one, share)))
    return placeEqualShares(only, share, { gpus, mostTenantsPerGpu, preference });
  let first: PodRefusal | undefined;
  for (const order of ordersOf(request.containers, gpus)) {
    const other = preference.placement === 'spread' ? 'binpack' : 'spread';
    for (const tryThis of [preference, { placement: other } as const]) {
      const tried = placeInOrder(order, { gpus, mostTenantsPerGpu, preference: tryThis });
      if (tried.ok) return { ok: true, containers: tried.containers.toSorted((a, b) => (a.name < b.name ? -1 : 1)) };
      first ??= tried;
      // One container is placed exactly: another preference finds nothing.
      if (order.length === 1) break;
    }
  }
  return { ok: false, ...(first ?? refusal('the pod requests no GPU', 'no GPU is requested', false)) };
}

/** All containers on one GPU: the best of those that take them together. */
function placeOnOneGpu(request: PlacementRequest, node: PlaceableNode, preference: Preference): PodPlacement {
  const { sameGpu: _, ...apart } = request;
  const tried = node.gpus.map((gpu) => ({
    gpu,
    placed: placePod(apart, { ...node, gpus: [gpu] }, preference.placement),
  }));
  const costOf = (gpu: NodeGpu, containers: readonly ContainerGrant[]) =>
    costOnGpu(gpu, demandOf(containers).get(gpu.gpuUuid) ?? NOTHING, preference, false);
  const fitting = tried.flatMap(({ gpu, placed }) =>
    placed.ok ? [{ containers: placed.containers, ...costOf(gpu, placed.containers) }] : [],
  );
  const [best] = fitting.sort(compareCosts);
  if (best) return { ok: true, containers: best.containers };
  const missed = tried.flatMap(({ placed }) => (placed.ok ? [] : [placed]));
  const [nearest] = missed.sort((a, b) => a.distance - b.distance);
  return nearest ?? { ok: false, ...refusal('the pod requests no GPU', 'no GPU is requested', false) };
}

export function preferenceOf(
  { placement, replicaOf, cores = 0 }: PlacementRequest,
  node: PlaceableNode,
  defaultPlacement: Placement,
  worth?: Fragmentation,
): Preference {
  const chosen = placement ?? defaultPlacement;
  return {
    placement: chosen,
    ...(replicaOf && { replicaOf }),
    ...(worth && chosen === 'fragmentation' && { loss: lossOn(node, cores, worth) }),
  };
}

/** Of the node's GPUs those that the request allows. */
function selectGpus(
  { gpuModels, gpuUuids }: PlacementRequest,
  { gpus }: PlaceableNode,
): readonly NodeGpu[] | PodRefusal {
  if (gpus.length === 0) return refusal(`the agent reports no GPU (${GPU})`, 'the agent reports no GPU', false);
  if (gpuModels.length === 0 && gpuUuids.length === 0) return gpus;
  const models = gpuModels.map((name) => name.toLowerCase());
  const ofModel = gpus.filter(({ model }) => isAmong(model.toLowerCase(), models));
  if (ofModel.length === 0) {
    const present = [...new Set(gpus.map(({ model }) => model))].join(', ');
    return refusal(
      `no GPU is ${gpuModels[0]?.startsWith('!') ? '' : 'a '}${namedIn(gpuModels, ' or ')}; the node has ${present}`,
      'no GPU has the requested model',
      false,
    );
  }
  const selected = ofModel.filter(({ gpuUuid }) => isAmong(gpuUuid, gpuUuids));
  if (selected.length > 0) return selected;
  const present = gpus.map(({ gpuUuid }) => gpuUuid).join(', ');
  const reason = `the node has none of the requested GPUs ${namedIn(gpuUuids, ', ')}; its GPUs are ${present}`;
  return refusal(reason, 'none of the requested GPUs exists', false);
}

/** A list names what is allowed, where it names anything, and, with a `!`, what is not. */
const isAmong = (name: string, list: readonly string[]): boolean =>
  !list.includes(`!${name}`) && (list.includes(name) || list.every((one) => one.startsWith('!')));

const refusal = (reason: string, summary: string, temporary: boolean): PodRefusal => ({
  reason: () => reason,
  summary,
  distance: temporary ? 3 : 7,
  temporary,
});

/** Init containers last, for they reuse what the others have; the rest largest first, then each one first in turn. */
function* ordersOf(
  containers: readonly RequestedContainer[],
  gpus: readonly NodeGpu[],
): Generator<readonly RequestedContainer[]> {
  const biggest = Math.max(...gpus.map(({ usableBytes }) => usableBytes));
  const size = ({ gpus: shares }: RequestedContainer) =>
    Math.max(...shares.map((share) => resolveShare(share, biggest)));
  const bySize = containers.toSorted((a, b) => size(b) - size(a));
  const [init, others] = [bySize.filter(({ kind }) => kind === 'init'), bySize.filter(({ kind }) => kind !== 'init')];
  const usual = [...others, ...init];
  yield usual;
  for (const container of usual.slice(1)) yield [container, ...usual.filter((other) => other !== container)];
}

type Choice = {
  readonly gpus: readonly NodeGpu[];
  readonly mostTenantsPerGpu: number;
  readonly preference: Preference;
};

function placeInOrder(order: readonly RequestedContainer[], choice: Choice): PodPlacement {
  const placed: ContainerGrant[] = [];
  for (const container of order) {
    const { gpus: shares } = container;
    const options = shares.map((share) => rankGpus(container, share, placed, choice));
    const chosen = matchRanked(
      options.map(({ ranked }) => ranked),
      choice.preference,
    );
    if ('unmatched' in chosen) {
      const { obstacles = [] } = options[chosen.unmatched] ?? {};
      return { ok: false, ...refuseShares(obstacles, shares.length, choice.gpus.length) };
    }
    const gpus = shares.flatMap((share, index) => {
      const gpu = chosen[index];
      return gpu ? [grantOn(gpu, share)] : [];
    });
    placed.push({ ...identityOf(container), gpus });
  }
  return { ok: true, containers: placed };
}

/** The GPUs that can take the share beside what was placed before, best first, and what keeps the others from it. */
function rankGpus(
  container: RequestedContainer,
  share: GpuShare,
  placed: readonly ContainerGrant[],
  { gpus, mostTenantsPerGpu, preference }: Choice,
) {
  const before = demandOf(placed);
  const obstacles: Obstacle[] = [];
  const fitting: (Ranked & { grown: number })[] = [];
  for (const gpu of gpus) {
    const { gpuUuid } = gpu;
    const own: ContainerGrant = { ...identityOf(container), gpus: [grantOn(gpu, share)] };
    const others = placed.map((one) => ({ ...one, gpus: one.gpus.filter((granted) => granted.gpuUuid === gpuUuid) }));
    const demand = demandOf([...others, own]).get(gpuUuid) ?? NOTHING;
    const obstacle = findObstacle(gpu, demand, mostTenantsPerGpu);
    if (obstacle) {
      obstacles.push(obstacle);
      continue;
    }
    const grown = container.kind === 'init' ? demand.memoryBytes - (before.get(gpuUuid)?.memoryBytes ?? 0) : 0;
    fitting.push({ gpu, ...costOnGpu(gpu, demand, preference, before.has(gpuUuid)), grown });
  }
  fitting.sort((a, b) => a.grown - b.grown || compareCosts(a, b));
  return { obstacles, ranked: fitting };
}

/** A different GPU for each share; for `topology` those that reach one another best. */
function matchRanked(options: readonly (readonly Ranked[])[], { placement }: Preference) {
  const among = (isOption: (gpu: NodeGpu) => boolean) =>
    matchShares(options.map((ranked) => ranked.flatMap(({ gpu }) => (isOption(gpu) ? [gpu] : []))));
  const usual = among(() => true);
  if (placement !== 'topology' || options.length < 2 || 'unmatched' in usual) return usual;
  const all = new Map(options.flat().map((one) => [one.gpu, one]));
  const matched = (set: readonly Ranked[]) => among((gpu) => set.some((one) => one.gpu === gpu));
  const closest = closestGpus(
    [...all.values()].sort(compareCosts),
    options.length,
    (set) => !('unmatched' in matched(set)),
  );
  return closest ? matched(closest) : usual;
}

const isEqualShare = (a: GpuShare, b: GpuShare): boolean => JSON.stringify(a) === JSON.stringify(b);

/** One container with equal shares, as nearly all pods have: a GPU that fits one share fits each, so counting is
 * enough. */
function placeEqualShares(container: RequestedContainer, share: GpuShare, choice: Choice): PodPlacement {
  const { gpus: shares } = container;
  const obstacles: Obstacle[] = [];
  const fitting: Ranked[] = [];
  for (const gpu of choice.gpus) {
    const memoryBytes = resolveShare(share, gpu.usableBytes);
    const demand = { memoryBytes, coresPercent: share.coresPercent ?? 0, tenants: 1 };
    const obstacle = findObstacle(gpu, demand, choice.mostTenantsPerGpu);
    if (obstacle) obstacles.push(obstacle);
    else fitting.push({ gpu, ...costOnGpu(gpu, demand, choice.preference, false) });
  }
  if (fitting.length < shares.length)
    return { ok: false, ...refuseShares(obstacles, shares.length, choice.gpus.length) };
  fitting.sort(compareCosts);
  const isTopology = choice.preference.placement === 'topology' && shares.length > 1;
  const closest = isTopology ? closestGpus(fitting, shares.length, () => true) : undefined;
  const chosen = closest ?? fitting.slice(0, shares.length);
  const gpus = chosen.map(({ gpu }) => grantOn(gpu, share));
  return { ok: true, containers: [{ ...identityOf(container), gpus }] };
}

const identityOf = ({ name, kind, initIndex, memoryIsolation }: RequestedContainer): Omit<ContainerGrant, 'gpus'> => ({
  name,
  kind,
  ...(initIndex !== undefined && { initIndex }),
  memoryIsolation,
});

type Ranked = Cost & { readonly gpu: NodeGpu };

const NOTHING: GpuDemand = { memoryBytes: 0, coresPercent: 0, tenants: 0 };

const grantOn = ({ gpuUuid, usableBytes }: NodeGpu, share: GpuShare): GpuGrant => ({
  gpuUuid,
  memoryBytes: resolveShare(share, usableBytes),
  limitBytes: resolveLimit(share, usableBytes),
  coresPercent: share.coresPercent ?? 0,
  ...(share.coresLimitPercent !== undefined && { coresLimitPercent: share.coresLimitPercent }),
});

/**
 * A different GPU for each share, from its options in order of preference; shares with fewest options choose first.
 * Augmenting paths (Kuhn's algorithm) find an assignment whenever there is one; else the first share that could get
 * none.
 */
function matchShares(options: readonly (readonly NodeGpu[])[]): readonly NodeGpu[] | { readonly unmatched: number } {
  const shareOn = new Map<NodeGpu, number>();
  const assign = (share: number, tried: Set<NodeGpu>): boolean => {
    const free = options[share]?.find((gpu) => !shareOn.has(gpu));
    if (free) {
      shareOn.set(free, share);
      return true;
    }
    for (const gpu of options[share] ?? []) {
      if (tried.has(gpu)) continue;
      tried.add(gpu);
      const holder = shareOn.get(gpu);
      if (holder === undefined || assign(holder, tried)) {
        shareOn.set(gpu, share);
        return true;
      }
    }
    return false;
  };
  const order = options.map((_, index) => index).sort((a, b) => (options[a]?.length ?? 0) - (options[b]?.length ?? 0));
  for (const share of order) if (!assign(share, new Set())) return { unmatched: share };
  const chosen: NodeGpu[] = [];
  for (const [gpu, share] of shareOn) chosen[share] = gpu;
  return chosen;
}

/** Why `requested` shares found no GPUs among `present` ones. Without obstacles there are fewer GPUs than shares. */
function refuseShares(obstacles: readonly Obstacle[], requested: number, present: number): PodRefusal {
  if (requested > present) {
    const usable = present === 1 ? 'one GPU can be used' : `${present} GPUs can be used`;
    return refusal(`${usable}, but ${requested} are requested (${GPU})`, 'there are too few GPUs', false);
  }
  let nearest = obstacles[0];
  for (const one of obstacles) if (nearest === undefined || one.distance < nearest.distance) nearest = one;
  const fitting = present - obstacles.length;
  if (!nearest)
    return refusal(`${requested} different GPUs are requested (${GPU})`, 'too few GPUs have enough free', true);
  const { text, summary, distance } = nearest;
  const reason = (detail = 'nearest') => {
    const few = fitting > 0 ? `only ${fitting} of ${requested} requested GPUs can be granted: ` : '';
    if (detail === 'all') return `${few}${obstacles.map((one) => one.text()).join('; ')}`;
    const others = obstacles.length - 1;
    const more = others === 0 ? '' : `, and ${others} more ${others === 1 ? 'GPU does' : 'GPUs do'} not fit either`;
    return `${few}${text()}${more}`;
  };
  // As many GPUs as are requested can fit only if enough of them can be freed.
  const temporary = fitting + obstacles.filter((one) => one.temporary).length >= requested;
  return { reason, summary, distance, temporary };
}
