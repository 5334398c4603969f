// Which of one node's GPUs each container of a pod gets: pure, from the node's books and the pod's request. Owns the choice of
// GPUs on one node; which node it is belongs to rank.ts and the scheduler.

import type { GpuGrant, GpuNeed, PlaceableGpu } from '../api/gpu.ts';
import type { ContainerGrant } from '../api/grant-annotation.ts';
import { GPU } from '../api/names.ts';
import {
  type ContainerRequest,
  type GpuShare,
  type Placement,
  type PodRequest,
  resolveLimit,
  resolveShare,
} from '../api/request.ts';
import { needOf } from './demand.ts';
import { type Obstacle, obstacleOf } from './fit.ts';

/** A node's GPUs with what is granted on them. */
export type NodeBooks = {
  readonly mostTenantsPerGpu: number;
  readonly gpus: readonly PlaceableGpu[];
};

export type PodRefusal = {
  /** One sentence: the nearest miss with its GPU and numbers. Made when it is asked for. */
  readonly reason: () => string;
  /** The same without GPU and numbers: a clause behind "nodes where". */
  readonly general: string;
  /** How far the nearest miss is from fitting; comparable over nodes. */
  readonly distance: number;
  /** Whether it can fit once others leave the node. */
  readonly passing: boolean;
};

export type PodPlaced =
  | { readonly ok: true; readonly containers: readonly ContainerGrant[] }
  | ({ readonly ok: false } & PodRefusal);

/**
 * Containers of a pod may share a GPU; shares of one container lie on different ones. What fits is judged by the pod's need
 * per GPU as need.ts has it. A request with one container is placed whenever that is possible at all. Several containers are
 * tried one after the other, in a few orders: a pod that fills a node in one certain way alone may be refused.
 */
export function placePod(request: PodRequest, books: NodeBooks, fallback: Placement): PodPlaced {
  const open = openGpus(request, books);
  if ('reason' in open) return { ok: false, ...open };
  const placement = request.placement ?? fallback;
  const [only, ...others] = request.containers;
  const [share, ...more] = only?.gpus ?? [];
  if (only && share && others.length === 0 && more.every((one) => isAlike(one, share)))
    return placeAlike(only, share, open, books.mostTenantsPerGpu, placement);
  let first: PodRefusal | undefined;
  for (const order of ordersOf(request.containers, open)) {
    for (const preference of [placement, placement === 'spread' ? 'binpack' : 'spread'] as const) {
      const tried = placeInOrder(order, open, books.mostTenantsPerGpu, preference);
      if (tried.ok) return { ok: true, containers: tried.containers.toSorted((a, b) => (a.name < b.name ? -1 : 1)) };
      first ??= tried;
      // One container is placed exactly: another way to choose finds nothing.
      if (order.length === 1) break;
    }
  }
  return { ok: false, ...(first ?? shortage('the pod asks for no GPU', 'no GPU is asked for', false)) };
}

function openGpus({ gpuModels, gpuUuids }: PodRequest, { gpus }: NodeBooks): readonly PlaceableGpu[] | PodRefusal {
  if (gpuModels.length === 0 && gpuUuids.length === 0 && gpus.length > 0) return gpus;
  const models = gpuModels.map((name) => name.toLowerCase());
  const ofModel = gpus.filter(({ model }) => models.length === 0 || models.includes(model.toLowerCase()));
  const open = ofModel.filter(({ gpuUuid }) => gpuUuids.length === 0 || gpuUuids.includes(gpuUuid));
  if (gpus.length === 0) return shortage(`its agent reports no GPU (${GPU})`, 'no GPU is there', false);
  if (ofModel.length === 0) {
    const there = [...new Set(gpus.map(({ model }) => model))].join(', ');
    return shortage(`no GPU is a ${gpuModels.join(' or ')}; there is ${there}`, 'no GPU is of the model', false);
  }
  if (open.length === 0)
    return shortage(`it has none of the GPUs ${gpuUuids.join(', ')}`, 'none of the named GPUs is', false);
  return open;
}

const shortage = (reason: string, general: string, passing: boolean): PodRefusal => ({
  reason: () => reason,
  general,
  distance: passing ? 3 : 7,
  passing,
});

/** Init containers last, for they use again what the others have; the rest largest first, then each one first in turn. */
function* ordersOf(
  containers: readonly ContainerRequest[],
  gpus: readonly PlaceableGpu[],
): Generator<readonly ContainerRequest[]> {
  const biggest = Math.max(...gpus.map(({ usableBytes }) => usableBytes));
  const size = ({ gpus: shares }: ContainerRequest) => Math.max(...shares.map((share) => resolveShare(share, biggest)));
  const bySize = containers.toSorted((a, b) => size(b) - size(a));
  const [init, others] = [bySize.filter(({ kind }) => kind === 'init'), bySize.filter(({ kind }) => kind !== 'init')];
  const usual = [...others, ...init];
  yield usual;
  for (const container of usual.slice(1)) yield [container, ...usual.filter((other) => other !== container)];
}

type Tried =
  | { readonly ok: true; readonly containers: readonly ContainerGrant[] }
  | ({ readonly ok: false } & PodRefusal);

function placeInOrder(
  order: readonly ContainerRequest[],
  open: readonly PlaceableGpu[],
  mostTenantsPerGpu: number,
  placement: Placement,
): Tried {
  const placed: ContainerGrant[] = [];
  for (const container of order) {
    const { name, kind, memoryIsolation, gpus: shares } = container;
    const before = needOf(placed);
    const grantOn = (share: GpuShare, gpu: PlaceableGpu): ContainerGrant => ({
      name,
      kind,
      memoryIsolation,
      gpus: [gpuGrantOf(share, gpu)],
    });
    // The first container, which most pods have alone, adds to nothing: what it takes is what is needed.
    const needWith = (share: GpuShare, gpu: PlaceableGpu): GpuNeed =>
      placed.length === 0
        ? { ...gpuGrantOf(share, gpu), tenants: 1 }
        : (needOf([...placed.map((one) => onGpu(one, gpu)), grantOn(share, gpu)]).get(gpu.gpuUuid) ?? NOTHING);
    const options = shares.map((share) => {
      const seen = open.map((gpu) => {
        const need = needWith(share, gpu);
        return { gpu, need, obstacle: obstacleOf(gpu, need, mostTenantsPerGpu) };
      });
      const fitting = seen.filter(({ obstacle }) => obstacle === undefined);
      const key = ({ gpu, need }: (typeof seen)[number]) => {
        const grown = need.memoryBytes - (before.get(gpu.gpuUuid)?.memoryBytes ?? 0);
        const left = gpu.usableBytes - gpu.grantedBytes - need.memoryBytes;
        return { grown: kind === 'init' ? grown : 0, left: placement === 'spread' ? -left : left };
      };
      return {
        share,
        obstacles: seen.flatMap(({ obstacle }) => obstacle ?? []),
        gpus: fitting
          .map((one) => ({ gpu: one.gpu, ...key(one) }))
          .sort((a, b) => a.grown - b.grown || a.left - b.left)
          .map(({ gpu }) => gpu),
      };
    });
    const chosen = matched(options.map(({ gpus }) => gpus));
    if ('unmatched' in chosen) {
      return { ok: false, ...refusalOf(options[chosen.unmatched]?.obstacles ?? [], shares.length, open.length) };
    }
    placed.push({
      name,
      kind,
      memoryIsolation,
      gpus: shares.flatMap((share, index) => {
        const gpu = chosen[index];
        return gpu ? [gpuGrantOf(share, gpu)] : [];
      }),
    });
  }
  return { ok: true, containers: placed };
}

const isAlike = (a: GpuShare, b: GpuShare): boolean => JSON.stringify(a) === JSON.stringify(b);

/** One container with equal shares, as nearly all pods have: what fits one share fits each, so that counting is enough. */
function placeAlike(
  { name, kind, memoryIsolation, gpus: shares }: ContainerRequest,
  share: GpuShare,
  open: readonly PlaceableGpu[],
  mostTenantsPerGpu: number,
  placement: Placement,
): PodPlaced {
  const obstacles: Obstacle[] = [];
  const fitting: { readonly gpu: PlaceableGpu; readonly left: number }[] = [];
  for (const gpu of open) {
    const memoryBytes = resolveShare(share, gpu.usableBytes);
    const need = { memoryBytes, coresPercent: share.coresPercent ?? 0, tenants: 1 };
    const obstacle = obstacleOf(gpu, need, mostTenantsPerGpu);
    const left = gpu.usableBytes - gpu.grantedBytes - memoryBytes;
    if (obstacle) obstacles.push(obstacle);
    else fitting.push({ gpu, left: placement === 'spread' ? -left : left });
  }
  if (fitting.length < shares.length) return { ok: false, ...refusalOf(obstacles, shares.length, open.length) };
  const chosen = fitting.sort((a, b) => a.left - b.left).slice(0, shares.length);
  const gpus = chosen.map(({ gpu }) => gpuGrantOf(share, gpu));
  return { ok: true, containers: [{ name, kind, memoryIsolation, gpus }] };
}

const NOTHING: GpuNeed = { memoryBytes: 0, coresPercent: 0, tenants: 0 };

const onGpu = (container: ContainerGrant, { gpuUuid }: PlaceableGpu): ContainerGrant => ({
  ...container,
  gpus: container.gpus.filter((gpu) => gpu.gpuUuid === gpuUuid),
});

const gpuGrantOf = (share: GpuShare, { gpuUuid, usableBytes }: PlaceableGpu): GpuGrant => ({
  gpuUuid,
  memoryBytes: resolveShare(share, usableBytes),
  limitBytes: resolveLimit(share, usableBytes),
  coresPercent: share.coresPercent ?? 0,
});

/**
 * A GPU of its own for each share, from its options in order of preference; shares with fewest options choose first. Augmenting
 * paths (Kuhn), so that an assignment is found whenever there is one; else the first share that could get none.
 */
function matched(
  options: readonly (readonly PlaceableGpu[])[],
): readonly PlaceableGpu[] | { readonly unmatched: number } {
  const holders = new Map<PlaceableGpu, number>();
  const assign = (share: number, tried: Set<PlaceableGpu>): boolean => {
    const free = options[share]?.find((gpu) => !holders.has(gpu));
    if (free) {
      holders.set(free, share);
      return true;
    }
    for (const gpu of options[share] ?? []) {
      if (tried.has(gpu)) continue;
      tried.add(gpu);
      const holder = holders.get(gpu);
      if (holder === undefined || assign(holder, tried)) {
        holders.set(gpu, share);
        return true;
      }
    }
    return false;
  };
  const order = options.map((_, index) => index).sort((a, b) => (options[a]?.length ?? 0) - (options[b]?.length ?? 0));
  for (const share of order) if (!assign(share, new Set())) return { unmatched: share };
  const chosen: PlaceableGpu[] = [];
  for (const [gpu, share] of holders) chosen[share] = gpu;
  return chosen;
}

/** The nearest miss in words. Without obstacles there are simply fewer GPUs than shares. */
function refusalOf(obstacles: readonly Obstacle[], asked: number, there: number): PodRefusal {
  if (asked > there) {
    const have = there === 1 ? 'one GPU' : `${there} GPUs`;
    return shortage(`${have} can be chosen from, ${asked} are asked for (${GPU})`, 'there are too few GPUs', false);
  }
  let nearest = obstacles[0];
  for (const one of obstacles) if (nearest === undefined || one.distance < nearest.distance) nearest = one;
  const fit = there - obstacles.length;
  if (!nearest) return shortage(`${asked} different GPUs of ${GPU} are asked for`, 'too few GPUs have room', true);
  const { text, general, distance } = nearest;
  const reason = () => {
    const few = fit > 0 ? `${fit} of ${asked} GPUs have room: ` : '';
    const others = obstacles.length - 1;
    const more = others === 0 ? '' : `, and ${others} more ${others === 1 ? 'GPU does' : 'GPUs do'} not fit either`;
    return `${few}${text()}${more}`;
  };
  // As many GPUs as are asked for can fit only if enough of them can be freed.
  const passing = fit + obstacles.filter((one) => one.passing).length >= asked;
  return { reason, general, distance, passing };
}
