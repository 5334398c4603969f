// Which pods make room for a pod of higher priority. Where a node lacks GPUs alone, kube-scheduler finds no victims, for
// it does not count shares: filter then names the node that costs least, and bind evicts there. Where a node lacks other
// things too, kube-scheduler chooses victims and asks here (verb preempt) whether they are enough.
import type { Placement } from '../../api/request.ts';
import type { Allocations } from '../../placement/allocations.ts';
import { choosePreemption, compareVictims, type Evictable, type Preemption, without } from '../../placement/preempt.ts';
import type { BoundPodFacts } from '../allocations/bound-pod.ts';
import type { ParsedRequest } from '../decisions/filter-and-score.ts';
import type { DisruptionBudgets } from './disruption-budgets.ts';

/** The pod that wants room. */
export type PreemptingPod = {
  readonly podUid: string;
  readonly priority: number;
  /** False with `preemptionPolicy: Never`. */
  readonly mayPreempt: boolean;
};

/** UIDs of victims, by node. */
export type Victims = Readonly<Record<string, readonly string[]>>;

type PreemptionParts = {
  readonly allocations: Allocations;
  readonly boundPods: ReadonlyMap<string, BoundPodFacts>;
  readonly budgets: DisruptionBudgets;
  readonly defaultPlacement: Placement;
};

/** What a node costs: the pods to evict, and the pods that are ending anyway and must be gone, too. */
export type Plan = Preemption & { readonly node: string; readonly ending: readonly string[] };

export type PreemptionPlanner = {
  /** On this node, after pods of `leaving` are gone; undefined where evictions do not help. */
  on(pod: PreemptingPod, request: ParsedRequest, node: string, leaving?: readonly string[]): Plan | undefined;
  /** The node that costs least. */
  best(pod: PreemptingPod, request: ParsedRequest, nodes: readonly string[]): Plan | undefined;
  /** kube-scheduler's victims by node with those that the GPUs need besides; without nodes where that does not help. */
  complete(pod: PreemptingPod, request: ParsedRequest, victims: Victims): Victims;
};

/** Nodes where evictions help that are compared; kube-scheduler compares as many. */
const MOST_CANDIDATES = 100;

export function createPreemptionPlanner(parts: PreemptionParts): PreemptionPlanner {
  const { allocations, boundPods, budgets, defaultPlacement } = parts;

  const evictableOn = (node: string, priority: number) => {
    const evictable: Evictable[] = [];
    const ending: Evictable[] = [];
    for (const { podUid, demand } of allocations.allocationsOn(node)) {
      const facts = boundPods.get(podUid);
      if (!facts || facts.priority >= priority) continue;
      const { createdMs } = facts;
      const one = { podUid, demand, createdMs, priority: facts.priority, budgets: budgets.of(facts) };
      (facts.isTerminating ? ending : evictable).push(one);
    }
    return { evictable, ending };
  };

  const on: PreemptionPlanner['on'] = (pod, { request }, node, leaving = []) => {
    const placeable = allocations.placeableNode(node);
    if (!placeable || !pod.mayPreempt || !budgets.areKnown) return undefined;
    const { evictable, ending } = evictableOn(node, pod.priority);
    const gone = evictable.filter(({ podUid }) => leaving.includes(podUid));
    const found = choosePreemption({
      request,
      defaultPlacement,
      node: without(placeable, [...ending, ...gone]),
      evictable: evictable.filter((one) => !gone.includes(one)),
      allowed: reduced(budgets.allowed, gone),
    });
    return found && { ...found, node, ending: ending.map(({ podUid }) => podUid) };
  };

  return {
    on,
    best(pod, request, nodes) {
      if (!pod.mayPreempt) return undefined;
      let best: Plan | undefined;
      let compared = 0;
      for (const node of nodes) {
        if (compared === MOST_CANDIDATES) break;
        const plan = on(pod, request, node);
        if (!plan) continue;
        compared += 1;
        if (!best || compareVictims(plan.victims, best.victims) < 0) best = plan;
      }
      return best;
    },
    complete(pod, request, victims) {
      const completed: Record<string, readonly string[]> = {};
      for (const [node, chosen] of Object.entries(victims)) {
        const plan = on(pod, request, node, chosen);
        // kube-scheduler takes the first for the most important one. What it chose without a share has no facts here.
        const priority = (podUid: string) => boundPods.get(podUid)?.priority ?? Number.POSITIVE_INFINITY;
        const all = [...chosen, ...(plan?.victims ?? []).map(({ podUid }) => podUid)];
        if (plan)
          completed[node] = all.toSorted((a, b) =>
            priority(a) < priority(b) ? 1 : priority(a) > priority(b) ? -1 : 0,
          );
      }
      return completed;
    },
  };
}

/** kube-scheduler's own victims use up the budgets, too. */
function reduced(allowed: ReadonlyMap<string, number>, gone: readonly Evictable[]): ReadonlyMap<string, number> {
  const left = new Map(allowed);
  for (const { budgets } of gone) for (const budget of budgets) left.set(budget, (left.get(budget) ?? 0) - 1);
  return left;
}
