// Keeps for a pod what its victims leave: the share that it gets on the node that kube-scheduler nominated for it. As
// kube-scheduler does with what it counts itself, that is not there for pods of the same or a lower priority, and is for
// those of a higher one. What the extender's own preemption holds is in make-room.ts, by the same rule.
import type { V1Pod } from '@kubernetes/client-node';
import { REQUEST_ANNOTATION } from '../../api/names.ts';
import type { ApiConfig } from '../../kube/config.ts';
import { listAndWatch } from '../../kube/list-watch.ts';
import type { Allocation, Allocations } from '../../placement/allocations.ts';
import { demandOf } from '../../placement/demand.ts';
import type { PlaceableNode } from '../../placement/node.ts';
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

/** `triedOn`: the node as it was when there was nothing to keep. */
type Known = NominatedPod & { kept?: Allocation; triedOn?: PlaceableNode };

export function createNominations({ allocations, decider, planner, roomMaker }: NominationParts): Nominations {
  const nominated = new Map<string, Known>();

  const lift = (one: Known): void => {
    const { podUid } = one.pod;
    if (one.kept && allocations.allocationOf(podUid) === one.kept) allocations.release(podUid);
    delete one.kept;
  };
  /** Where it would be placed once victims and what ends anyway have left. */
  const keep = (one: Known): void => {
    const { pod, node, text, aspects } = one;
    const placeable = allocations.placeableNode(node);
    // It is bound or being bound, or its room is held already.
    if (allocations.allocationOf(pod.podUid) || !placeable || one.triedOn === placeable) return;
    one.triedOn = placeable;
    const request = decider.read(text, aspects);
    const plan = request.ok ? planner.on(pod, request.value, node) : undefined;
    if (!request.ok || !plan) return;
    const { gpuModels } = request.value.request;
    const demand = demandOf(plan.containers);
    one.kept = { podUid: pod.podUid, nodeName: node, demand, gpuModels, ...aspects, reserved: true };
    allocations.allocate(one.kept);
  };
  const keepAll = (): void => {
    for (const one of [...nominated.values()].sort((a, b) => b.pod.priority - a.pod.priority)) keep(one);
  };
  const forget = (podUid: string): void => {
    const one = nominated.get(podUid);
    if (one) lift(one);
    nominated.delete(podUid);
  };

  const set = (one: NominatedPod): void => {
    forget(one.pod.podUid);
    // All pods of a group are placed at once (gangs.ts).
    if (one.aspects.gang) return;
    nominated.set(one.pod.podUid, { ...one });
    for (const other of nominated.values())
      if (other.node === one.node && other.pod.priority < one.pod.priority) lift(other);
  };

  return {
    set,
    setAll(all) {
      for (const podUid of [...nominated.keys()]) forget(podUid);
      for (const one of all) set(one);
    },
    forget,
    without({ podUid, priority }, decide) {
      if (nominated.size === 0) return roomMaker.without(priority, decide);
      keepAll();
      for (const one of nominated.values()) if (one.pod.podUid === podUid || one.pod.priority < priority) lift(one);
      try {
        return roomMaker.without(priority, decide);
      } finally {
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
