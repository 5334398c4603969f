// Binds pods: decides by the allocations as they are, allocates at once, and writes node and grant in one call. Nothing
// else runs between the check of leadership and the allocation, so no two decisions use the same free memory. Where
// filter has nominated the node for a pod that displaces others, their eviction comes before the write (make-room.ts).
import { setTimeout as delay } from 'node:timers/promises';
import { REQUEST_ANNOTATION } from '../api/names.ts';
import { MEMORY_VARIABLES } from '../api/request.ts';
import type { Logger } from '../common/logger.ts';
import { err, ok, type Result } from '../common/result.ts';
import { describeApiError } from '../kube/api-error.ts';
import type { ApiConfig } from '../kube/config.ts';
import type { Allocations } from '../placement/allocations.ts';
import { demandOf } from '../placement/demand.ts';
import {
  type BindingRequest,
  type BindingWriter,
  buildBinding,
  createBindingWriter,
  type WriteResult,
} from './allocations/binding-writer.ts';
import type { InFlightBinding, InFlightBindings } from './allocations/in-flight.ts';
import { createTakeover, relistForLostPods } from './allocations/takeover.ts';
import { type Decider, NOT_ADMITTED, type ParsedRequest } from './decisions/filter-and-score.ts';
import { aspectsOf } from './decisions/pod-aspects.ts';
import { type CachedRequest, createRequestCache, type RequestCache } from './decisions/request-cache.ts';
import type { RoomMaker } from './evictions/make-room.ts';
import type { Nominations } from './evictions/nominations.ts';
import type { GangPod, Gangs } from './groups/gangs.ts';
import type { PodGroups } from './groups/pod-groups.ts';
import type { Leadership } from './leadership/leader-election.ts';

/** `refused`: the pod does not fit, or this replica must not bind it. `failed`: the API server did not take it. */
type BindResult = { readonly outcome: 'bound' } | { readonly outcome: 'refused' | 'failed'; readonly because: string };

export type Binder = {
  bind(request: BindingRequest): Promise<BindResult>;
  /** The request that filter saw of a pod, so that bind need not read the pod. */
  cacheRequest(podUid: string, request: CachedRequest): void;
  cachedRequest(podUid: string): CachedRequest | undefined;
  close(): void;
};

export type BinderTimes = {
  /** How long kube-scheduler waits for a binding's answer. */
  readonly answerMs: number;
  /** So long after its start a write is no longer carried out: the API server's own 60 s for a request, and a
   * margin. */
  readonly landsMs: number;
  /** A pod that was written and is not shown for so long may have ended in between. */
  readonly shownMs: number;
};

const TIMES: BinderTimes = { answerMs: 5000, landsMs: 75_000, shownMs: 30_000 };
/** By then kube-scheduler has given up, and the pod may go to another node. */
const DECIDE_MS = 8000;

type BinderParts = {
  readonly config: ApiConfig;
  readonly allocations: Allocations;
  readonly inFlight: InFlightBindings;
  readonly decider: Decider;
  readonly leadership: Leadership;
  readonly roomMaker: RoomMaker;
  readonly podGroups: PodGroups;
  readonly gangs: Gangs;
  readonly nominations: Nominations;
  /** Lists all bound pods again. */
  readonly relist: () => Promise<void>;
  /** Resolves when all that was written on bound pods before the call is known. */
  readonly catchUp: () => Promise<void>;
  readonly times?: BinderTimes;
  readonly logger: Logger;
};

export function createBinder(parts: BinderParts): Binder {
  const { config, allocations, inFlight, decider, leadership, roomMaker, podGroups, nominations } = parts;
  const { relist, catchUp, times = TIMES, logger } = parts;
  const closing = new AbortController();
  const writer = createBindingWriter({ config, landsMs: times.landsMs, closed: closing.signal, logger });
  const requests = createRequestCache(() => performance.now());
  const readRequest = createRequestReader(requests, writer);
  const takeOver = createTakeover(catchUp, logger);
  const bindOnce = async (binding: BindingRequest): Promise<BindResult> => {
    const { podUid, node } = binding;
    const startedMs = performance.now();
    const before = leadership.state();
    if (!before.leads) return refused(`this replica is not the leader: ${before.because}`);
    await takeOver(before.term, before.epoch);
    const read = await readRequest(binding);
    if (!read.ok) return refused(read.error);
    const { text, priority } = read.value;
    const completed = await podGroups.complete(read.value.aspects);
    if (!completed.ok) return refused(completed.error);
    const aspects = completed.value;
    const request = decider.read(text, aspects);
    if (!request.ok) return refused(request.error);
    // No await from here to the allocation.
    const now = leadership.state();
    if (!now.leads || now.term !== before.term) return refused('this replica is no longer the leader');
    if (performance.now() - startedMs > DECIDE_MS) return refused('the bound pods could not be listed in time');
    const pod = { podUid, request: request.value, aspects };
    const allocated = nominations.without({ podUid, priority }, () => allocateOn(node, pod, parts));
    if (!allocated.ok) return refused(allocated.error);
    const { allocation, containers, plan, own } = allocated.value;
    if (plan) {
      const made = await roomMaker.makeRoom(binding, plan);
      const still = leadership.state();
      if (!made.ok) return refused(made.error);
      if (!still.leads || still.term !== before.term) {
        roomMaker.release(podUid);
        return refused('this replica is no longer the leader');
      }
      roomMaker.settle(podUid);
      allocations.allocate(allocation);
    }
    const written = writer
      .write(binding, buildBinding(binding, before.epoch, containers, sizedOf(request.value)))
      .then((result) => conclude(podUid, own, result));
    return answerWithin(times.answerMs, written, { outcome: 'failed', because: pendingOn(node) });
  };

  const conclude = (podUid: string, own: InFlightBinding, result: WriteResult): BindResult => {
    if (result.kind === 'written') {
      own.writtenMs = performance.now();
      requests.forget(podUid);
      return { outcome: 'bound' };
    }
    if (result.kind === 'unknown') return { outcome: 'failed', because: pendingOn(own.node) };
    // Unless the watch was quicker.
    if (inFlight.of(podUid) === own) {
      inFlight.settle(podUid);
      allocations.release(podUid);
    }
    return { outcome: 'failed', because: result.because };
  };

  const timer = relistForLostPods(inFlight, relist, times.shownMs);

  return {
    bind: oneAtATime(bindOnce),
    cacheRequest: requests.put,
    cachedRequest: requests.get,
    close() {
      clearInterval(timer);
      closing.abort();
    },
  };
}

/** Containers that have their granted memory in a variable. */
const sizedOf = ({ request }: ParsedRequest): readonly string[] =>
  request.containers.filter(({ dialect }) => MEMORY_VARIABLES[dialect] !== undefined).map(({ name }) => name);

/** Allocates what the pod gets on the node; with `plan` it is reserved until others have left. */
function allocateOn(node: string, { podUid, request, aspects }: GangPod, parts: BinderParts) {
  const { allocations, inFlight, decider, roomMaker, gangs } = parts;
  const held = gangs.place({ podUid, request, aspects }, [node]);
  if (held && !held.ok) return held;
  gangs.release(podUid);
  roomMaker.release(podUid);
  const pending = inFlight.of(podUid);
  if (pending && pending.writtenMs === undefined) return err(pendingOn(pending.node));
  if (allocations.allocationOf(podUid)) return err('the pod already has a grant');
  const placed = decider.on(request, node);
  const plan = placed.ok ? undefined : roomMaker.planFor(podUid, request, node);
  const containers = placed.ok ? placed.containers : plan?.containers;
  if (!containers) return err(`node ${node}: ${placed.ok ? '' : placed.reason()}`);
  const { gpuModels } = request.request;
  const allocation = { podUid, nodeName: node, demand: demandOf(containers), gpuModels, ...aspects };
  allocations.allocate({ ...allocation, reserved: plan !== undefined });
  return ok({ allocation, containers, plan, own: inFlight.add(podUid, node) });
}

/** Of a pod no two bindings run at the same time: the same one again has the same result. */
function oneAtATime(bindOnce: Binder['bind']): Binder['bind'] {
  const running = new Map<string, { readonly node: string; readonly result: Promise<BindResult> }>();
  return (request) => {
    const known = running.get(request.podUid);
    if (known?.node === request.node) return known.result;
    if (known) return Promise.resolve(refused(`the pod is being bound to node ${known.node}`));
    const result = bindOnce(request)
      .catch((error): BindResult => ({ outcome: 'failed', because: describeApiError(error) }))
      .finally(() => running.delete(request.podUid));
    running.set(request.podUid, { node: request.node, result });
    return result;
  };
}

/** The request of a pod as filter saw it, or as the API server has the pod. */
function createRequestReader(requests: RequestCache, { readPod }: BindingWriter) {
  return async (binding: BindingRequest): Promise<Result<CachedRequest>> => {
    const { podUid, podName, podNamespace } = binding;
    const cached = requests.get(podUid);
    if (cached) return ok(cached);
    const { metadata, spec } = (await readPod(binding)) ?? {};
    if (metadata?.uid !== podUid) return err(`pod ${podNamespace}/${podName} with UID ${podUid} does not exist`);
    const text = metadata.annotations?.[REQUEST_ANNOTATION];
    if (text === undefined) return err(NOT_ADMITTED);
    return ok({ text, aspects: aspectsOf(metadata, spec), priority: spec?.priority ?? 0 });
  };
}

/** The allocation stays while the answer is given before the binding's result is known. */
async function answerWithin(ms: number, written: Promise<BindResult>, late: BindResult): Promise<BindResult> {
  const answered = new AbortController();
  const timeout = delay(ms, late, { signal: answered.signal, ref: false });
  timeout.catch(() => undefined);
  try {
    return await Promise.race([written, timeout]);
  } finally {
    answered.abort();
  }
}

const refused = (because: string): BindResult => ({ outcome: 'refused', because });

const pendingOn = (node: string): string =>
  `it is not known yet whether the pod was bound to node ${node}; what it requests there stays reserved until it is`;
