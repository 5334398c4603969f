// Evicts pods from overcommitted GPUs so that their successors are placed anew: looks at GPUs that changed, waits for
// overlaps that pass by themselves, and asks the API server. overcommit.ts chooses the pods. A pod that no controller
// would recreate gets an Event only.

import type { Logger } from '../../common/logger.ts';
import { createRounds } from '../../common/rounds.ts';
import { describeApiError, statusOf } from '../../kube/api-error.ts';
import { callApi, pathOf } from '../../kube/call.ts';
import type { ApiConfig } from '../../kube/config.ts';
import { createEventWriter } from '../../kube/events.ts';
import type { Allocations } from '../../placement/allocations.ts';
import {
  choosePodsToEvict,
  findOvercommittedGpus,
  type GrantedPod,
  type PodToEvict,
} from '../../placement/overcommit.ts';
import type { BoundPodFacts } from '../allocations/bound-pod.ts';
import type { Leadership } from '../leadership/leader-election.ts';

/** `kept`: got an Event, and was left where it is. */
export type EvictionOutcome = 'evicted' | 'kept' | 'failed';

type EvictorParts = {
  readonly config: ApiConfig;
  readonly allocations: Allocations;
  readonly leadership: Leadership;
  /** By UID. */
  readonly boundPods: ReadonlyMap<string, BoundPodFacts>;
  /** How long a GPU must be overcommitted: overlaps with pods that are ending pass. */
  readonly afterMs: number;
  /** Of this replica, for Events. */
  readonly hostname: string;
  readonly onEviction: (outcome: EvictionOutcome) => void;
  readonly logger: Logger;
};

type OvercommitEvictor = {
  start(): void;
  /** As of the last look; 0 while another replica leads. */
  readonly overcommittedGpus: number;
  close(): Promise<void>;
};

/** What the Event says behind the reason. */
export const EVICTED = 'the pod had not started and was evicted, so that its successor is placed anew';
export const KEPT =
  'the pod has not started, and no controller is known to recreate it, so it was not evicted: it starts when other pods leave the GPU. To have it placed elsewhere, delete it and create it again';
const ROUND_MS = 1000;
/** In one round, over all nodes. */
const MOST_EVICTIONS = 5;
const RETRY_MS = 5000;

type Done = ReadonlyMap<string, { readonly outcome: EvictionOutcome; readonly atMs: number }>;

export function createOvercommitEvictor(parts: EvictorParts): OvercommitEvictor {
  const { leadership, boundPods, afterMs, onEviction } = parts;
  const evict = createEviction(parts);
  /** By UID of the pod. */
  const done = new Map<string, { readonly outcome: EvictionOutcome; readonly atMs: number }>();
  const overcommit = createOvercommitTracker(parts, done);

  const round = async (): Promise<number> => {
    if (!leadership.state().leads) {
      overcommit.reset();
      return 0;
    }
    for (const podUid of done.keys()) if (!boundPods.has(podUid)) done.delete(podUid);
    const nowMs = performance.now();
    let evictions = 0;
    for (const { podUid, because } of overcommit.choosePods(nowMs, afterMs)) {
      const [pod, before] = [boundPods.get(podUid), done.get(podUid)];
      if (!pod || (before && (before.outcome !== 'failed' || nowMs < before.atMs + RETRY_MS))) continue;
      if (pod.isRecreated) evictions += 1;
      if (evictions > MOST_EVICTIONS || rounds.signal.aborted || !leadership.state().leads) return 0;
      const outcome = await evict(podUid, pod, because);
      done.set(podUid, { outcome, atMs: performance.now() });
      onEviction(outcome);
    }
    return 0;
  };
  const rounds = createRounds(round, ROUND_MS);
  return {
    ...rounds,
    get overcommittedGpus() {
      return overcommit.gpus;
    },
  };
}

/** Which GPUs are overcommitted, and since when. Looks only at nodes that changed, and at those that were
 * overcommitted. */
function createOvercommitTracker({ allocations, boundPods }: EvictorParts, done: Done) {
  /** Node -> GPU -> since when. */
  const overcommitted = new Map<string, Map<string, number>>();
  let seenVersion: number | undefined;

  const podsOn = (node: string): GrantedPod[] =>
    [...allocations.allocationsOn(node)]
      .filter(({ reserved }) => !reserved)
      .map(({ podUid, demand }) => {
        // A pod that the watch has not shown yet cannot be judged, and stays.
        const { epoch = 0, createdMs = 0, state = 'started' } = boundPods.get(podUid) ?? {};
        // The API server accepted the eviction; the watch shows it later.
        const evicted = done.get(podUid)?.outcome === 'evicted';
        return { podUid, demand, epoch, createdMs, state: evicted ? 'terminating' : state };
      });

  const chooseOn = (node: string, nowMs: number, afterMs: number): readonly PodToEvict[] => {
    const gpus = allocations.gpusOf(node);
    const pods = gpus ? podsOn(node) : [];
    const before = overcommitted.get(node);
    const now = gpus ? findOvercommittedGpus(node, gpus, pods) : [];
    const since = new Map(now.map(({ gpuUuid }) => [gpuUuid, before?.get(gpuUuid) ?? nowMs]));
    if (since.size > 0) overcommitted.set(node, since);
    else overcommitted.delete(node);
    const ripe = new Set([...since].flatMap(([gpuUuid, sinceMs]) => (nowMs - sinceMs >= afterMs ? gpuUuid : [])));
    return gpus && ripe.size > 0 ? choosePodsToEvict(node, gpus, pods, ripe) : [];
  };

  return {
    /** The pods to evict from GPUs that have been overcommitted for `afterMs`. */
    choosePods(nowMs: number, afterMs: number): readonly PodToEvict[] {
      const changed = (seenVersion !== undefined && allocations.changedSince(seenVersion)) || allocations.nodeNames();
      seenVersion = allocations.version;
      return [...new Set([...changed, ...overcommitted.keys()])].flatMap((node) => chooseOn(node, nowMs, afterMs));
    },
    reset() {
      overcommitted.clear();
      seenVersion = undefined;
    },
    get gpus() {
      return [...overcommitted.values()].reduce((count, gpus) => count + gpus.size, 0);
    },
  };
}

/** Evicts one pod, or leaves it, and writes the Event about it. */
function createEviction({ config, hostname, logger }: EvictorParts) {
  const writeEvent = createEventWriter(config, logger.warn);
  return async (podUid: string, pod: BoundPodFacts, because: string): Promise<EvictionOutcome> => {
    const { namespace, name, resourceVersion } = pod;
    const notify = (consequence: string) => {
      logger.info(`${because}; ${consequence}`, { pod: `${namespace}/${name}` });
      void writeEvent({
        ...{ namespace, pod: name, podUid, type: 'Warning', reason: 'GPUGrantOvercommitted', atMs: Date.now() },
        message: `${because}; ${consequence}`,
        by: { component: 'scheduler', instance: hostname },
      });
    };
    if (!pod.isRecreated) {
      notify(KEPT);
      return 'kept';
    }
    try {
      // With the version that was judged: a pod that has started since stays.
      const deleteOptions = { preconditions: { uid: podUid, resourceVersion } };
      const path = `${pathOf(namespace, 'pods', name)}/eviction`;
      await callApi(config, { method: 'POST', path, body: { metadata: { name, namespace }, deleteOptions } });
    } catch (error) {
      // 404 and 409: the pod is gone or has changed, and the next round judges it again.
      if (![404, 409].some((status) => status === statusOf(error)))
        logger.warn(`cannot evict the pod: ${describeApiError(error)}`, { pod: `${namespace}/${name}` });
      return 'failed';
    }
    notify(EVICTED);
    return 'evicted';
  };
}
