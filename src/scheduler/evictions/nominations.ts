// Keeps for a pod what its victims leave: the share that it gets on the node that kube-scheduler nominated for it. As
// kube-scheduler does with what it counts itself, that is not there for pods of the same or a lower priority, and is for
// those of a higher one. What the extender's own preemption holds is in make-room.ts, by the same rule.
import type { V1Pod } from '@kubernetes/client-node';
import { REQUEST_ANNOTATION } from '../../api/names.ts';
import type { ApiConfig } from '../../kube/config.ts';
import { listAndWatch } from '../../kube/list-watch.ts';
import type { Allocation, Allocations } from '../../placement/allocations.ts';
import { demandOf } from '../../placement/demand.ts';
import type { Decider } from '../decisions/filter-and-score.ts';
import { aspectsOf } from '../decisions/pod-aspects.ts';
import type { CachedRequest } from '../decisions/request-cache.ts';
import type { RoomMaker } from './make-room.ts';
import type { PreemptingPod, PreemptionPlanner } from './preemption.ts';

type NominatedPod = Omit<CachedRequest, 'priority'> & { readonly pod: PreemptingPod; readonly node: string };

export type Nominations = {
  /** Replaces what was known of the pod. */
  set(nominated: NominatedPod): void;
  /** Replaces what was known of all pods. */
  setAll(nominated: readonly NominatedPod[]): void;
  forget(podUid: string): void;
  /** What `decide` returns while nothing is kept for this pod, nor for those of a lower priority. */
  without<T>(pod: Pick<PreemptingPod, 'podUid' | 'priority'>, decide: () => T): T;
};

type NominationParts = {
  readonly allocations: Allocations;
  readonly decider: Decider;
  readonly planner: PreemptionPlanner;
  readonly roomMaker: Pick<RoomMaker, 'without'>;
};

type Known = NominatedPod & { kept?: Allocation };

export function createNominations({ allocations, decider, planner, roomMaker }: NominationParts): Nominations {
  const nominated = new Map<string, Known>();
  const byNode = new Map<string, Set<Known>>();
  /** Nodes where pods may be kept that are not; with those that changed since `version`. */
  const unsettled = new Set<string>();
  let version = allocations.version;

  /** What was kept for it and is no longer; undefined: nothing was. */
  const lift = (one: Known): Allocation | undefined => {
    const { kept } = one;
    delete one.kept;
    if (!kept || allocations.allocationOf(one.pod.podUid) !== kept) return undefined;
    allocations.release(one.pod.podUid);
    return kept;
  };
  /** Where it would be placed once victims and what ends anyway have left. */
  const keep = (one: Known): void => {
    const { pod, node, text, aspects } = one;
    // It is bound or being bound, or its room is held already.
    if (allocations.allocationOf(pod.podUid) || !allocations.gpusOf(node)) return;
    const request = decider.read(text, aspects);
    const plan = request.ok ? planner.on(pod, request.value, node) : undefined;
    if (!request.ok || !plan) return;
    const { gpuModels } = request.value.request;
    const demand = demandOf(plan.containers);
    one.kept = { podUid: pod.podUid, nodeName: node, demand, gpuModels, ...aspects, reserved: true };
    allocations.allocate(one.kept);
  };
  const keepAll = (): void => {
    for (const node of allocations.changedSince(version) ?? byNode.keys()) unsettled.add(node);
    for (const node of unsettled)
      for (const one of [...(byNode.get(node) ?? [])].sort((a, b) => b.pod.priority - a.pod.priority)) keep(one);
    unsettled.clear();
    version = allocations.version;
  };
  const forget = (podUid: string): void => {
    const one = nominated.get(podUid);
    if (!one) return;
    lift(one);
    nominated.delete(podUid);
    const onNode = byNode.get(one.node);
    onNode?.delete(one);
    if (onNode?.size === 0) byNode.delete(one.node);
  };

  const add = (one: NominatedPod): void => {
    // All pods of a group are placed at once (gangs.ts).
    if (one.aspects.gang) return;
    const known = { ...one };
    nominated.set(one.pod.podUid, known);
    byNode.set(one.node, (byNode.get(one.node) ?? new Set<Known>()).add(known));
    unsettled.add(one.node);
  };

  return {
    set(one) {
      forget(one.pod.podUid);
      for (const other of byNode.get(one.node) ?? []) if (other.pod.priority < one.pod.priority) lift(other);
      add(one);
    },
    setAll(all) {
      for (const podUid of [...nominated.keys()]) forget(podUid);
      for (const one of all) add(one);
    },
    forget,
    without({ podUid, priority }, decide) {
      if (nominated.size === 0) return roomMaker.without(priority, decide);
      keepAll();
      const lifted: (readonly [Known, Allocation])[] = [];
      for (const one of nominated.values()) {
        const kept = one.pod.podUid === podUid || one.pod.priority < priority ? lift(one) : undefined;
        if (kept) lifted.push([one, kept]);
      }
      ({ version } = allocations);
      try {
        return roomMaker.without(priority, decide);
      } finally {
        const changed = allocations.changedSince(version) ?? new Set(byNode.keys());
        for (const [one, kept] of lifted) {
          if (changed.has(one.node)) continue;
          one.kept = kept;
          allocations.allocate(kept);
        }
        ({ version } = allocations);
        for (const node of changed) unsettled.add(node);
        // What it waits for may have changed without a change of the allocations: a budget, a victim that ends now.
        const own = nominated.get(podUid);
        if (own && !own.kept) unsettled.add(own.node);
        keepAll();
      }
    },
  };
}

function readNominated({ metadata, spec, status }: V1Pod): { podUid: string; nominated?: NominatedPod } {
  const podUid = metadata?.uid ?? '';
  const text = metadata?.annotations?.[REQUEST_ANNOTATION];
  const node = status?.nominatedNodeName;
  if (text === undefined || !node || spec?.nodeName || metadata?.deletionTimestamp !== undefined) return { podUid };
  const pod = { podUid, priority: spec?.priority ?? 0, mayPreempt: true };
  return { podUid, nominated: { pod, node, text, aspects: aspectsOf(metadata, spec) } };
}

/** Writes to `nominations` what the API server has. */
export function watchNominations(config: ApiConfig, nominations: Nominations, onProblem: (text: string) => void) {
  return listAndWatch(config, {
    path: '/api/v1/pods',
    query: { fieldSelector: 'spec.nodeName=,status.nominatedNodeName!=' },
    mentions: REQUEST_ANNOTATION,
    keep: readNominated,
    onList: (items) => nominations.setAll(items.flatMap(({ nominated }) => nominated ?? [])),
    onChange: ({ podUid, nominated }) => (nominated ? nominations.set(nominated) : nominations.forget(podUid)),
    onGone: ({ podUid }) => nominations.forget(podUid),
    onProblem,
  });
}
