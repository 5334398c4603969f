// Creates and changes grants of processes and containers without a pod: this agent places them, and they end with their
// owner. The registry creates their files.

import { applyComputeChange, type ComputeChange } from '../../api/compute-annotation.ts';
import type { GpuGrant, GpuStanding } from '../../api/gpu.ts';
import type { ComputeChoice, GpuShare, Mode, Placement } from '../../api/request.ts';
import { MIB } from '../../common/quantity.ts';
import { err, ok, type Result } from '../../common/result.ts';
import { placePod } from '../../placement/place-pod.ts';
import { type ContainerOwner, freeName, type Grant, isOfPod, type ProcessOwner, plainName } from '../grants/grant.ts';
import type { LiveGrant } from '../grants/live-grant.ts';
import type { Refusal } from '../grants/refusal.ts';
import type { Registry } from '../grants/registry.ts';
import { resizeGpu } from '../grants/resize.ts';
import { grantedOn } from '../grants/sums.ts';
import type { Native } from '../os/addon.ts';
import { unifiedPath } from '../os/cgroup.ts';
import { isShareable, usableBytes } from '../sampling/sample.ts';
import type { NodeState } from '../usage/node-usage.ts';

export type GrantAsk = {
  readonly name: string;
  readonly container: string;
  readonly shares: readonly GpuShare[];
  /** Only among these GPUs, and these models; empty: any. */
  readonly gpuUuids: readonly string[];
  readonly gpuModels?: readonly string[] | undefined;
  readonly isolateMemory: boolean;
  readonly compute?: ComputeChoice | undefined;
};
export type ProcessAsk = GrantAsk & { readonly owner: { readonly pid: number; readonly startTicks: number } };

/** `memoryBytes`: on each of its GPUs. `enforcement`: any client of the agent's socket may set it; null removes it. */
export type GrantChange = ComputeChange & { readonly memoryBytes?: number; readonly enforcement?: Mode | null };

export type GrantContext = {
  readonly state: NodeState;
  readonly registry: Pick<Registry, 'list' | 'create'>;
  readonly native: Pick<Native, 'readProcess'>;
  readonly placement: Placement;
  readonly mostTenantsPerGpu: number;
  /** The node's enforcement mode. */
  readonly mode: Mode;
  /** Why nothing may be granted on these GPUs now. */
  readonly notYet: (gpuUuids: readonly string[], byDriver: boolean) => Refusal | undefined;
  readonly standingOf: (gpuUuid: string) => GpuStanding;
};

export function grantProcess(ask: ProcessAsk, context: GrantContext): Result<LiveGrant, Refusal> {
  const owner = context.native.readProcess(ask.owner.pid);
  if (owner?.startTicks !== ask.owner.startTicks) {
    return err({ refused: `no process ${ask.owner.pid} with start time ${ask.owner.startTicks} on this node` });
  }
  const group = unifiedPath(owner.cgroup) ?? '';
  return grantTo({ ...ask.owner, cgroup: group }, ask, context, group !== '');
}

/** A grant that containers mount, for the owner that it is made for. */
export const grantContainers = (
  owner: ContainerOwner,
  ask: GrantAsk,
  context: GrantContext,
): Result<LiveGrant, Refusal> => grantTo(owner, ask, context, false);

function grantTo(
  owner: ProcessOwner | ContainerOwner,
  ask: GrantAsk,
  context: GrantContext,
  byDriver: boolean,
): Result<LiveGrant, Refusal> {
  const { state, registry, placement, mostTenantsPerGpu, mode, notYet, standingOf } = context;
  const live = registry.list().map(({ grant }) => grant);
  const container = plainName(ask.container);
  const memoryIsolation = ask.isolateMemory ? 'on' : 'off';
  const gpus = state.devices
    .filter(({ gpu }) => isShareable(gpu))
    .map(({ gpu }) => {
      const granted = grantedOn(live, gpu.uuid);
      return {
        ...standingOf(gpu.uuid),
        gpuUuid: gpu.uuid,
        model: gpu.name,
        usableBytes: usableBytes(gpu),
        healthy: gpu.healthy,
        grantedBytes: granted.memoryBytes,
        grantedCoresPercent: granted.coresPercent,
        tenants: granted.tenants,
      };
    });
  const placed = placePod(
    {
      gpuModels: [...(ask.gpuModels ?? [])],
      gpuUuids: [...ask.gpuUuids],
      containers: [{ name: container, kind: 'app', memoryIsolation, gpus: [...ask.shares] }],
    },
    { mostTenantsPerGpu, gpus },
    placement,
  );
  if (!placed.ok) return err({ refused: placed.reason('all') });
  const granted = placed.containers.flatMap((one) => one.gpus);
  const wait = notYet(
    granted.map(({ gpuUuid }) => gpuUuid),
    mode === 'enforce' && byDriver,
  );
  if (wait) return err(wait);
  return ok(
    registry.create({
      namespace: 'local',
      pod: freeName(plainName(ask.name), (name) => live.some(({ pod }) => pod === name)),
      container,
      createdMs: Date.now(),
      gpus: granted,
      isolateMemory: ask.isolateMemory,
      ...(ask.compute && { compute: ask.compute }),
      owner,
    }),
  );
}

/** The grant's GPUs with another amount of memory on each. A GPU that is overcommitted takes a smaller grant. */
function resizedGpus(
  grant: Grant,
  bytes: number,
  others: readonly Grant[],
  state: NodeState | undefined,
): Result<readonly GpuGrant[], Refusal> {
  const resized = grant.gpus.map((gpu) => resizeGpu(gpu, bytes));
  const grants = [...others, { ...grant, gpus: resized }];
  for (const { gpuUuid, memoryBytes } of grant.gpus) {
    const device = state?.devices.find(({ gpu }) => gpu.uuid === gpuUuid);
    const usable = device ? usableBytes(device.gpu) : 0;
    const sum = grantedOn(grants, gpuUuid).memoryBytes;
    if (bytes > memoryBytes && sum > usable) {
      const left = Math.max(0, usable - (sum - bytes));
      return err({
        refused: `${gpuUuid} has ${Math.floor(left / MIB)} MiB left for it, but ${Math.ceil(bytes / MIB)} MiB are requested`,
      });
    }
  }
  return ok(resized);
}

/** The grant with other compute; refused if other grants leave less on one of its GPUs. */
export function changeOf(
  grant: Grant,
  change: ComputeChange,
  others: readonly Grant[],
): Result<Pick<Grant, 'gpus' | 'compute'>, Refusal> {
  const changed = applyComputeChange(grant, change);
  if (!changed.ok) return err({ refused: changed.error });
  const next = changed.value;
  for (const [index, { gpuUuid, coresPercent }] of next.gpus.entries()) {
    const left = 100 - grantedOn(others, gpuUuid).coresPercent;
    if (coresPercent > Math.max(left, grant.gpus[index]?.coresPercent ?? 0))
      return err({
        refused: `${gpuUuid} has ${Math.max(0, left)} % of its compute left for it, but ${coresPercent} % are requested`,
      });
  }
  return ok(next);
}

/** The enforcement mode of a process grant. Refused for a pod's grant, whose mode follows the pod's annotations. */
function enforcementOfProcessGrant(
  { id, namespace, pod, owner }: Grant,
  mode: Mode | null,
): Result<Pick<Grant, 'enforcement'>, Refusal> {
  if (isOfPod(owner))
    return err({
      refused: `grant ${id} belongs to pod ${namespace}/${pod}: annotate the pod to change its enforcement mode`,
    });
  return ok({ enforcement: mode === null ? undefined : { mode, by: 'administrator' } });
}

/** Changes a grant's memory, compute or enforcement mode; its GPUs stay the same. A refusal changes nothing. */
export function changeGrant(
  id: string,
  { enforcement, memoryBytes, ...change }: GrantChange,
  state: NodeState | undefined,
  registry: Registry,
): Result<LiveGrant, Refusal> {
  const entry = registry.get(id);
  if (!entry) return err({ refused: `no grant ${id} on this node` });
  const others = registry.list().flatMap(({ grant }) => (grant.id === id ? [] : [grant]));
  const gpus = memoryBytes === undefined ? ok(entry.grant.gpus) : resizedGpus(entry.grant, memoryBytes, others, state);
  if (!gpus.ok) return gpus;
  const enforcementChange = enforcement === undefined ? ok({}) : enforcementOfProcessGrant(entry.grant, enforcement);
  if (!enforcementChange.ok) return enforcementChange;
  const resized = { gpus: gpus.value };
  const next =
    Object.keys(change).length === 0 ? ok(resized) : changeOf({ ...entry.grant, ...resized }, change, others);
  return next.ok ? ok(registry.change(id, { ...next.value, ...enforcementChange.value })) : next;
}
