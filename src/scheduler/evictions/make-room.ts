// Evicts pods of lower priority before a pod is bound, and holds what they leave: filter nominates a node, bind evicts
// there and waits. kube-scheduler holds CPU and memory for the pod meanwhile, so nothing is evicted in vain. What is held
// without an end in sight is released after a while, and for a pod of a higher priority that takes it.
import { setTimeout as delay } from 'node:timers/promises';
import type { Logger } from '../../common/logger.ts';
import { err, ok, type Result } from '../../common/result.ts';
import type { PodEvent } from '../../kube/event-correlator.ts';
import type { EvictCall } from '../../kube/eviction.ts';
import type { Allocations } from '../../placement/allocations.ts';
import type { BindingRequest } from '../allocations/binding-writer.ts';
import type { BoundPodFacts } from '../allocations/bound-pod.ts';
import type { InFlightBindings } from '../allocations/in-flight.ts';
import type { ParsedRequest } from '../decisions/filter-and-score.ts';
import type { Plan, PreemptingPod, PreemptionPlanner } from './preemption.ts';

type RoomMakerParts = {
  readonly allocations: Allocations;
  readonly inFlight: InFlightBindings;
  readonly planner: PreemptionPlanner;
  readonly boundPods: ReadonlyMap<string, BoundPodFacts>;
  readonly evict: EvictCall;
  readonly writeEvent: (event: PodEvent) => Promise<void>;
  readonly hostname: string;
  readonly times?: RoomMakerTimes;
  readonly logger: Logger;
};

type RoomMakerTimes = {
  /** How long a bind waits for evicted pods to end. */
  readonly waitMs: number;
  /** How long a pod's room is held after its last bind. */
  readonly heldMs: number;
};

/** kube-scheduler waits 20 s for an answer to bind, and pauses for up to 10 s before it tries a pod again. */
const TIMES: RoomMakerTimes = { waitMs: 6000, heldMs: 45_000 };
const LOOK_MS = 100;
const MOST_NOMINATIONS = 1000;

/** `isBinding`: a bind waits for the pods that leave. */
type Held = { readonly node: string; readonly isBinding: boolean; readonly timer: NodeJS.Timeout };

export type RoomMaker = {
  /** Whether room is held for the pod. */
  holds(podUid: string): boolean;
  /** What `decide` returns while nothing is held for pods of a lower priority, unless one is being bound. Whose node it
   * changes loses its hold, as kube-scheduler clears the nominations of lower priority there. */
  without<T>(priority: number, decide: () => T): T;
  /** The one node where the pod shall be bound although it does not fit yet; undefined: evictions help nowhere. */
  nominate(pod: PreemptingPod, request: ParsedRequest, nodes: readonly string[]): string | undefined;
  /** By what the allocations are now, for a node that was nominated. */
  planFor(podUid: string, request: ParsedRequest, node: string): Plan | undefined;
  /** Evicts, and resolves when the GPUs are free, or with the reason why they are not. The pod's room is held then. */
  makeRoom(binding: BindingRequest, plan: Plan): Promise<Result<void>>;
  /** The pod is bound now: nothing more is held for it here. */
  settle(podUid: string): void;
  /** Gives back what is held for the pod. */
  release(podUid: string): void;
};

export function createRoomMaker(parts: RoomMakerParts): RoomMaker {
  const { allocations, inFlight, planner, boundPods, evict, writeEvent, hostname, times = TIMES, logger } = parts;
  /** Oldest first. */
  const nominated = new Map<string, { readonly pod: PreemptingPod; readonly node: string }>();
  const held = new Map<string, Held>();

  const settle = (podUid: string): void => {
    clearTimeout(held.get(podUid)?.timer);
    held.delete(podUid);
    nominated.delete(podUid);
  };
  const release = (podUid: string): void => {
    if (!held.has(podUid)) return;
    clearTimeout(held.get(podUid)?.timer);
    held.delete(podUid);
    inFlight.settle(podUid);
    allocations.release(podUid);
  };
  const hold = (podUid: string, node: string, isBinding: boolean): void => {
    clearTimeout(held.get(podUid)?.timer);
    held.set(podUid, { node, isBinding, timer: setTimeout(() => release(podUid), times.heldMs).unref() });
  };

  const evictOne = async (podUid: string, { podNamespace, podName }: BindingRequest, node: string) => {
    const facts = boundPods.get(podUid);
    if (!facts) return;
    const { namespace, name } = facts;
    await evict({ namespace, name, uid: podUid });
    const message = `evicted from node ${node} so that pod ${podNamespace}/${podName} of higher priority gets its GPUs`;
    logger.info(message, { pod: `${namespace}/${name}` });
    void writeEvent({
      ...{ namespace, pod: name, podUid, type: 'Warning', reason: 'GPUPreempted', message, atMs: Date.now() },
      by: { component: 'scheduler', instance: hostname },
    });
  };

  return {
    holds: (podUid) => held.has(podUid),
    without(priority, decide) {
      const lifted = [...held].flatMap(([podUid, { node, isBinding }]) => {
        const isLower = (nominated.get(podUid)?.pod.priority ?? priority) < priority;
        const allocation = isLower && !isBinding ? allocations.allocationOf(podUid) : undefined;
        if (allocation) allocations.release(podUid);
        return allocation ? [{ allocation, node }] : [];
      });
      const before = lifted.map(({ node }) => allocations.placeableNode(node));
      try {
        return decide();
      } finally {
        const isFree = lifted.map(({ node }, index) => allocations.placeableNode(node) === before[index]);
        for (const [index, { allocation }] of lifted.entries())
          if (isFree[index]) allocations.allocate(allocation);
          else release(allocation.podUid);
      }
    },
    nominate(pod, request, nodes) {
      const before = held.get(pod.podUid);
      if (before && nodes.includes(before.node)) return before.node;
      release(pod.podUid);
      const node = planner.best(pod, request, nodes)?.node;
      nominated.delete(pod.podUid);
      if (node !== undefined) nominated.set(pod.podUid, { pod, node });
      for (const oldest of nominated.keys()) if (nominated.size > MOST_NOMINATIONS) nominated.delete(oldest);
      return node;
    },
    planFor(podUid, request, node) {
      const nomination = nominated.get(podUid);
      return nomination?.node === node ? planner.on(nomination.pod, request, node) : undefined;
    },
    async makeRoom(binding, { node, victims, ending }) {
      const { podUid } = binding;
      hold(podUid, node, true);
      try {
        // One after the other: where a budget refuses one, no other is evicted in vain.
        for (const victim of victims) await evictOne(victim.podUid, binding, node);
      } catch (error) {
        release(podUid);
        return err(`a pod of lower priority on node ${node} cannot be evicted: ${(error as Error).message}`);
      }
      const awaited = [...victims.map((victim) => victim.podUid), ...ending];
      const untilMs = performance.now() + times.waitMs;
      const left = () => awaited.filter((uid) => allocations.allocationOf(uid)?.nodeName === node);
      while (left().length > 0 && performance.now() < untilMs) await delay(LOOK_MS, undefined, { ref: false });
      hold(podUid, node, false);
      const names = left().map((uid) => `${boundPods.get(uid)?.namespace}/${boundPods.get(uid)?.name}`);
      if (names.length === 0) return ok(undefined);
      return err(`pods of lower priority on node ${node} have not ended yet: ${names.join(', ')}; the GPUs are held`);
    },
    settle,
    release,
  };
}
