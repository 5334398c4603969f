// Holds GPUs for all pods of a group before the first of them is bound, so that a group is placed whole or not at all.
// A group holds nothing until as many of its pods were seen as it needs and all of them fit at once. What is held
// without progress is free again after a while, for other pods first: the group pauses, longer each time in turn, and its
// pods must be seen anew.
import { shortDigest } from '../../common/digest.ts';
import { err, ok, type Result } from '../../common/result.ts';
import type { Allocations } from '../../placement/allocations.ts';
import { demandOf } from '../../placement/demand.ts';
import type { SizedGang } from '../../placement/gang.ts';
import type { InFlightBindings } from '../allocations/in-flight.ts';
import type { Decider, ParsedRequest, PodAspects } from '../decisions/filter-and-score.ts';
import { nearestMiss } from '../decisions/fits.ts';

export type GangPod = { readonly podUid: string; readonly request: ParsedRequest; readonly aspects: PodAspects };

export type Gangs = {
  /**
   * The node that is held for the pod, one of `nodes`, or why its group has to wait. Undefined: the pod has no group, or
   * the group is complete without it. The group's size must be known (pod-groups.ts).
   */
  place(pod: GangPod, nodes: readonly string[]): Result<string> | undefined;
  /**
   * Asks, once for all that a group holds, whether each of its pods is still there. False: one is gone, or the API server
   * does not say so in time; what was held is free again, and the pod has to be placed anew. A group of which it is not
   * known pauses: each question may take seconds, in which kube-scheduler places no other pod.
   */
  confirm(podUid: string): Promise<boolean>;
  /** The pod is about to be bound: nothing is held for it any more. */
  release(podUid: string): void;
  /** Frees what was held for too long. */
  expire(): void;
};

type GangParts = {
  readonly allocations: Allocations;
  readonly inFlight: InFlightBindings;
  readonly decider: Decider;
  /** UIDs of a namespace's pods that are not bound and not being deleted; undefined: unknown. */
  readonly unboundPods: (namespace: string) => Promise<ReadonlySet<string> | undefined>;
  /** Milliseconds of a monotonic clock. */
  readonly now?: () => number;
};

/** kube-scheduler pauses for up to 10 s before it tries a pod again, and binds one pod after the other. */
export const HELD_MS = 60_000;
/** How long a group may hold nothing after so many times in turn in which it held GPUs until no pod was bound. */
export const pauseMs = (idleHolds: number): number => Math.min(HELD_MS * 2 ** (idleHolds - 1), MOST_PAUSE_MS);
const MOST_PAUSE_MS = 300_000;
/** A pod that was not tried again for so long may be gone; kube-scheduler tries each at least every 5 minutes. */
export const SEEN_MS = 360_000;
/** Together; the pods of the group that was seen least recently are forgotten. */
const MOST_SEEN = 10_000;

/**
 * Different requests of one group: each that is new costs a decision for every node, 75 ms of the extender for 5,000, in
 * which no other pod is answered.
 */
export const MOST_KINDS = 8;

type Group = {
  /** Unbound pods, in the order in which they were seen first. */
  readonly seen: Map<string, GangPod & { readonly atMs: number }>;
  /** UIDs of those for which GPUs are allocated. */
  readonly held: Set<string>;
  /** Why it did not fit at once, by the kind of the pod that was asked for, which is placed first. */
  readonly refused: Map<string, { readonly state: string; readonly because: string }>;
  heldUntilMs: number;
  isConfirmed: boolean;
  /** How often in turn GPUs were held in vain: for HELD_MS without a binding, or for pods of which nothing was known. */
  idleHolds: number;
  /** Until then nothing is held. */
  pausedUntilMs: number;
};

export function createGangs(parts: GangParts): Gangs {
  const { allocations, now = () => performance.now() } = parts;
  /** Least recently seen first. */
  const groups = new Map<string, Group>();
  /** Versions of the allocations that came from groups that did not fit: all was as before after each. */
  let tries = 0;
  /** Equal while nothing has changed that decides whether these pods fit; `nodes`: for the first of them. */
  const stateOf = (wanted: readonly GangPod[], nodes: readonly string[]): string => {
    const kinds = wanted.map(({ request }) => request.key).join();
    return shortDigest(`${allocations.version - tries} ${kinds} ${nodes.join()}`);
  };

  const expire = (): void => {
    const nowMs = now();
    for (const [key, group] of groups) {
      if (group.held.size > 0 && group.heldUntilMs <= nowMs) {
        for (const podUid of group.held) free(parts, group, podUid);
        group.seen.clear();
        pause(group, nowMs);
      }
      for (const [podUid, { atMs }] of group.seen)
        if (atMs + SEEN_MS <= nowMs && !group.held.has(podUid)) group.seen.delete(podUid);
      if (group.seen.size === 0 && group.pausedUntilMs + SEEN_MS <= nowMs) groups.delete(key);
    }
  };

  /** Others may look at the allocations when no pod is filtered any more. */
  const prolong = (group: Group): void => {
    group.heldUntilMs = now() + HELD_MS;
    setTimeout(expire, HELD_MS + 1000).unref();
  };

  const see = (pod: GangPod, key: string): Group => {
    const group = groups.get(key) ?? newGroup();
    group.seen.set(pod.podUid, { ...pod, atMs: now() });
    groups.delete(key);
    groups.set(key, group);
    let seen = [...groups.values()].reduce((sum, one) => sum + one.seen.size, 0);
    for (const [oldest, { seen: pods, held }] of groups) {
      if (seen <= MOST_SEEN) break;
      if (held.size > 0 || oldest === key) continue;
      seen -= pods.size;
      groups.delete(oldest);
    }
    return group;
  };

  return {
    place(pod, nodes) {
      const { gang } = pod.aspects;
      expire();
      if (gang?.size === undefined) return undefined;
      const sized = { key: gang.key, size: gang.size };
      const group = see(pod, sized.key);
      const own = group.held.has(pod.podUid) ? allocations.allocationOf(pod.podUid) : undefined;
      if (own && nodes.includes(own.nodeName)) return ok(own.nodeName);
      free(parts, group, pod.podUid);
      // It is not known yet whether it was bound.
      if (allocations.allocationOf(pod.podUid)) return undefined;
      const there = boundOf(allocations, gang.key, group) + group.held.size;
      const needed = sized.size - there;
      if (needed <= 0) return undefined;
      const others = [...group.seen.values()].filter(({ podUid }) => podUid !== pod.podUid && !group.held.has(podUid));
      const lacking = [pod, ...others];
      if (lacking.length < needed)
        return err(waitText(sized, `${there + lacking.length} of its ${sized.size} pods are there`));
      if (now() < group.pausedUntilMs) return err(waitText(sized, PAUSED));
      // In the same order, whichever pod of a kind is asked for.
      const [first, ...rest] = lacking.slice(0, needed);
      const wanted = [first ?? pod, ...rest.toSorted(byKind)];
      const kinds = new Set(wanted.map(({ request }) => request.key)).size;
      if (kinds > MOST_KINDS)
        return err(
          waitText(sized, `its pods ask for ${kinds} different shares; at most ${MOST_KINDS} are placed at once`),
        );
      // Each of a thousand pods is asked for whenever something changes.
      const refused = group.refused.get(pod.request.key);
      const state = stateOf(wanted, nodes);
      if (refused?.state === state) return err(refused.because);
      const { version } = allocations;
      const held = hold(parts, group, wanted, nodes);
      if (!held.ok) {
        tries += allocations.version - version;
        const { count, lacks } = held.error;
        const because = waitText(
          sized,
          `${there + count} of its ${sized.size} pods fit at once; the next one: ${lacks}`,
        );
        if (group.refused.size > MOST_KINDS) group.refused.clear();
        group.refused.set(pod.request.key, { state, because });
        return err(because);
      }
      group.refused.clear();
      prolong(group);
      group.isConfirmed = false;
      return ok(allocations.allocationOf(pod.podUid)?.nodeName ?? '');
    },
    async confirm(podUid) {
      const [key, group] = [...groups].find(([, { held }]) => held.has(podUid)) ?? [];
      if (key === undefined || !group || group.isConfirmed) return true;
      group.isConfirmed = true;
      const there = await parts.unboundPods(key.split('/')[0] ?? '');
      const gone = [...group.held].filter((uid) => !there?.has(uid));
      if (there && gone.length === 0) return true;
      for (const uid of group.held) free(parts, group, uid);
      if (!there) {
        pause(group, now());
        return false;
      }
      for (const uid of gone) group.seen.delete(uid);
      group.idleHolds = 0;
      return false;
    },
    release(podUid) {
      for (const group of groups.values()) {
        if (!group.held.has(podUid)) continue;
        free(parts, group, podUid);
        group.seen.delete(podUid);
        prolong(group);
        group.idleHolds = 0;
      }
    },
    expire,
  };
}

const byKind = ({ request: { key } }: GangPod, { request: other }: GangPod): number =>
  key === other.key ? 0 : key < other.key ? -1 : 1;

function pause(group: Group, nowMs: number): void {
  group.idleHolds += 1;
  group.pausedUntilMs = nowMs + pauseMs(group.idleHolds);
}

function free({ allocations, inFlight }: GangParts, group: Group, podUid: string): void {
  // What is in flight no more, the watch has shown: another replica has bound the pod, and it keeps what it has.
  if (!group.held.delete(podUid) || !inFlight.of(podUid)) return;
  inFlight.settle(podUid);
  allocations.release(podUid);
}

/**
 * Allocates for all of these pods or for none; an error says how many fit and what the next one lacks. `nodes`: for the
 * first pod; the others may get any.
 */
function hold(
  parts: GangParts,
  group: Group,
  pods: readonly GangPod[],
  nodes: readonly string[],
): Result<void, { readonly count: number; readonly lacks: string }> {
  const { allocations, inFlight, decider } = parts;
  const all = [...allocations.nodeNames()];
  const [bestForFirst, bestOfAll] = [decider.bestOf(nodes), decider.bestOf(all)];
  for (const [count, { podUid, request, aspects }] of pods.entries()) {
    const node = (count === 0 ? bestForFirst : bestOfAll)(request);
    const placed = node === undefined ? undefined : decider.on(request, node);
    if (node === undefined || !placed?.ok) {
      const lacks = nearestMiss(request, count === 0 ? nodes : all, decider);
      for (const before of pods.slice(0, count)) free(parts, group, before.podUid);
      return err({ count, lacks });
    }
    const { gpuModels } = request.request;
    allocations.allocate({ podUid, nodeName: node, demand: demandOf(placed.containers), gpuModels, ...aspects });
    inFlight.add(podUid, node);
    group.held.add(podUid);
  }
  return ok(undefined);
}

/** How many pods of the group are bound, or being bound; they need not be seen any more. */
function boundOf(allocations: Allocations, key: string, group: Group): number {
  let bound = 0;
  for (const { gang, podUid } of allocations.all()) {
    if (gang?.key !== key || group.held.has(podUid)) continue;
    group.seen.delete(podUid);
    bound += 1;
  }
  return bound;
}

const newGroup = (): Group => ({
  ...{
    seen: new Map(),
    held: new Set(),
    refused: new Map(),
    heldUntilMs: 0,
    isConfirmed: true,
    idleHolds: 0,
    pausedUntilMs: 0,
  },
});

const PAUSED = 'it held GPUs and none of its pods could be bound; it is tried again within 5 minutes';
const waitText = ({ key }: SizedGang, text: string): string => `pod group ${key} waits: ${text}`;
