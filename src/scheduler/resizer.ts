// Grants pods another amount of memory while they run, as the annotation `cotenant.io/memory` asks: on the GPUs that
// they have, if these have it left. The allocations hold the larger of both amounts until the watch shows the new grant;
// the agent of the node applies it. A change that does not fit is tried again every round, and reported once.
import type { V1PodCondition } from '@kubernetes/client-node';
import { formatPodGrant, type PodGrant } from '../api/grant-annotation.ts';
import { grantWithSizes, parseMemorySizes } from '../api/memory-annotation.ts';
import { GRANT_ANNOTATION, MEMORY_ANNOTATION, MEMORY_RESIZED } from '../api/names.ts';
import type { Logger } from '../common/logger.ts';
import { formatBytes } from '../common/quantity.ts';
import { err, ok, type Result } from '../common/result.ts';
import { createRounds } from '../common/rounds.ts';
import { describeApiError, retryAfterMsOf, statusOf } from '../kube/api-error.ts';
import { callApi, pathOf } from '../kube/call.ts';
import type { ApiConfig } from '../kube/config.ts';
import { createEventWriter } from '../kube/events.ts';
import type { Allocation, Allocations } from '../placement/allocations.ts';
import { demandOf } from '../placement/demand.ts';
import type { ResizeRequest } from './allocations/bound-pod.ts';
import type { Leadership } from './leadership/leader-election.ts';

type ResizerParts = {
  readonly config: ApiConfig;
  readonly allocations: Allocations;
  readonly leadership: Leadership;
  /** By UID of the pod. */
  readonly resizeRequests: ReadonlyMap<string, ResizeRequest>;
  /** Of this replica, for Events. */
  readonly hostname: string;
  readonly onResize: (outcome: ResizeOutcome) => void;
  readonly logger: Logger;
};

export const RESIZE_OUTCOMES = ['granted', 'refused', 'failed'] as const;
/** `refused` counts once for each text of the annotation. */
export type ResizeOutcome = (typeof RESIZE_OUTCOMES)[number];

type Resizer = { start(): void; close(): Promise<void> };

const ROUND_MS = 500;
/** In one round, so that a round ends while the API server answers slowly. */
const MOST_WRITES = 20;

export function createResizer(parts: ResizerParts): Resizer {
  const { config, allocations, leadership, resizeRequests, onResize, logger } = parts;
  const report = createReports(parts);
  /** What a pod had, and what is reserved for it while it is not known whether the API server has the new grant. */
  const reserved = new Map<string, { readonly before: Allocation; readonly reservation: Allocation }>();

  /** How long the API server asks to wait. */
  let pauseMs = 0;

  /** Unless the watch has shown another grant of the pod, or its end. */
  const giveBack = (podUid: string): void => {
    const own = reserved.get(podUid);
    reserved.delete(podUid);
    if (own && allocations.allocationOf(podUid) === own.reservation) allocations.allocate(own.before);
  };

  const write = async (podUid: string, request: ResizeRequest, grant: PodGrant): Promise<ResizeOutcome> => {
    const { namespace, name, resourceVersion } = request;
    const annotations = { [GRANT_ANNOTATION]: formatPodGrant(grant) };
    try {
      // With the version that was judged: a pod that has changed since is judged again.
      const body = { metadata: { uid: podUid, resourceVersion, annotations } };
      await callApi(config, { method: 'PATCH', path: pathOf(namespace, 'pods', name), patch: 'merge', body });
    } catch (error) {
      const status = statusOf(error);
      pauseMs = retryAfterMsOf(error);
      // Without an answer the write may be carried out: what was reserved stays so.
      if (typeof status === 'number' && status < 500) giveBack(podUid);
      if (status !== 404 && status !== 409)
        logger.warn(`cannot write the grant: ${describeApiError(error)}`, { pod: `${namespace}/${name}` });
      return 'failed';
    }
    return 'granted';
  };

  /** Undefined: nothing is to be done. */
  const settle = async (podUid: string, request: ResizeRequest): Promise<ResizeOutcome | undefined> => {
    const own = reserved.get(podUid)?.before ?? allocations.allocationOf(podUid);
    if (!own) return undefined;
    const wanted = wantedGrant(request);
    if (wanted.ok && wanted.value === request.grant) {
      reserved.delete(podUid);
      return undefined;
    }
    const fits = wanted.ok ? findRoom(allocations, own, wanted.value) : wanted;
    if (!wanted.ok || !fits.ok) {
      giveBack(podUid);
      return report.refused(podUid, request, fits.ok ? '' : fits.error) ? 'refused' : undefined;
    }
    const reservation = { ...own, demand: largerOf(own.demand, demandOf(wanted.value.containers)) };
    reserved.set(podUid, { before: own, reservation });
    allocations.allocate(reservation);
    const outcome = await write(podUid, request, wanted.value);
    if (outcome === 'granted') await report.granted(podUid, request, wanted.value);
    return outcome;
  };

  const round = async (): Promise<number> => {
    if (!leadership.state().leads) {
      for (const podUid of [...reserved.keys()]) giveBack(podUid);
      report.reset();
      return 0;
    }
    for (const podUid of reserved.keys()) if (!resizeRequests.has(podUid)) giveBack(podUid);
    let writes = 0;
    pauseMs = 0;
    for (const [podUid, request] of [...resizeRequests]) {
      if (writes === MOST_WRITES || rounds.signal.aborted || !leadership.state().leads) return 0;
      const outcome = await settle(podUid, request);
      if (outcome === undefined) continue;
      onResize(outcome);
      writes += 1;
      if (pauseMs > 0) return pauseMs;
    }
    report.keepOnly(resizeRequests);
    return 0;
  };

  const rounds = createRounds(round, ROUND_MS);
  return rounds;
}

function wantedGrant({ grant, wanted }: ResizeRequest): Result<PodGrant> {
  const sizes = parseMemorySizes(wanted);
  return sizes.ok ? grantWithSizes(grant, sizes.value) : err(sizes.error);
}

/** A GPU that has too little already takes a smaller grant, and none that is larger. */
function findRoom(allocations: Allocations, own: Allocation, { containers }: PodGrant): Result<undefined> {
  const node = allocations.placeableNode(own.nodeName);
  const now = allocations.allocationOf(own.podUid)?.demand;
  for (const [gpuUuid, { memoryBytes }] of demandOf(containers)) {
    if (memoryBytes <= (own.demand.get(gpuUuid)?.memoryBytes ?? 0)) continue;
    const gpu = node?.gpus.find((one) => one.gpuUuid === gpuUuid);
    if (!gpu) return err(`${gpuUuid} is not known on node ${own.nodeName}`);
    if (!gpu.healthy) return err(`${gpuUuid} is not healthy: ${gpu.fault ?? 'the driver does not answer for it'}`);
    const left = gpu.usableBytes - gpu.grantedBytes + (now?.get(gpuUuid)?.memoryBytes ?? 0);
    if (memoryBytes > left)
      return err(
        `${gpuUuid} has ${formatBytes(Math.max(0, left))} for the pod, but ${formatBytes(memoryBytes)} are wanted`,
      );
  }
  return ok(undefined);
}

type Demand = Allocation['demand'];

const largerOf = (one: Demand, other: Demand): Demand =>
  new Map(
    [...other].map(([gpuUuid, demand]) => {
      const memoryBytes = Math.max(demand.memoryBytes, one.get(gpuUuid)?.memoryBytes ?? 0);
      return [gpuUuid, { ...demand, memoryBytes }];
    }),
  );

/** Says on the pod what became of the change: an Event, and a condition. */
function createReports({ config, hostname, logger }: ResizerParts) {
  const writeEvent = createEventWriter(config, logger.warn);
  /** Text of the annotation that was refused last, by UID of the pod. */
  const refusals = new Map<string, string>();

  const say = async (podUid: string, pod: ResizeRequest, granted: boolean, message: string): Promise<void> => {
    const { namespace, name } = pod;
    logger.info(message, { pod: `${namespace}/${name}` });
    const reason = granted ? 'GPUMemoryResized' : 'GPUMemoryNotResized';
    void writeEvent({
      ...{ namespace, pod: name, podUid, type: granted ? 'Normal' : 'Warning', reason, message, atMs: Date.now() },
      by: { component: 'scheduler', instance: hostname },
    });
    const condition: V1PodCondition = {
      type: MEMORY_RESIZED,
      status: granted ? 'True' : 'False',
      reason,
      message,
      lastTransitionTime: new Date(),
    };
    const body = { metadata: { uid: podUid }, status: { conditions: [condition] } };
    const path = `${pathOf(namespace, 'pods', name)}/status`;
    await callApi(config, { method: 'PATCH', path, patch: 'strategic', body }).catch((error: unknown) => {
      logger.warn(`cannot write the condition: ${describeApiError(error)}`, { pod: `${namespace}/${name}` });
    });
  };

  return {
    granted(podUid: string, request: ResizeRequest, { containers }: PodGrant): Promise<void> {
      refusals.delete(podUid);
      const sizes = containers.map(({ name, gpus }) => `${name} ${formatBytes(gpus[0]?.memoryBytes ?? 0)}`).join(', ');
      return say(podUid, request, true, `the memory of its GPUs is now, by container: ${sizes}`);
    },
    /** False: it was reported already. */
    refused(podUid: string, request: ResizeRequest, because: string): boolean {
      if (refusals.get(podUid) === request.wanted) return false;
      refusals.set(podUid, request.wanted);
      void say(podUid, request, false, `annotation ${MEMORY_ANNOTATION} is not applied: ${because}`);
      return true;
    },
    keepOnly(requests: ReadonlyMap<string, unknown>): void {
      for (const podUid of refusals.keys()) if (!requests.has(podUid)) refusals.delete(podUid);
    },
    reset: () => refusals.clear(),
  };
}
