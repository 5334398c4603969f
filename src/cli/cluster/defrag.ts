// What `cotenant defrag` decides by: which pods of a cluster may move, and the plan in words. Pure; move-pods.ts evicts.
import type { V1PodDisruptionBudget } from '@kubernetes/client-node';
import { REQUEST_ANNOTATION } from '../../api/names.ts';
import type { GpuShare, Placement } from '../../api/request.ts';
import { formatPodRequest } from '../../api/request-annotation.ts';
import { readBoundPod } from '../../scheduler/allocations/bound-pod.ts';
import type { DefragPlan, DefragSituation, Movable, NoPlan } from '../../scheduler/decisions/defrag.ts';
import { createDecider } from '../../scheduler/decisions/filter-and-score.ts';
import { nearestMiss } from '../../scheduler/decisions/fits.ts';
import { aspectsOf } from '../../scheduler/decisions/pod-aspects.ts';
import { budgetsOf } from '../../scheduler/evictions/disruption-budgets.ts';
import { askedBy } from '../lib/text.ts';
import { allocationsOf, asApiPod, nodesFor, openNodes } from './granted.ts';
import { type Node, nameOf, type Pod } from './objects.ts';

export type DefragObjects = {
  readonly nodes: readonly Node[];
  readonly pods: readonly Pod[];
  readonly budgets: readonly V1PodDisruptionBudget[];
};

type WantedShare = {
  readonly shares: readonly GpuShare[];
  readonly placement: Placement;
  /** Only pods of this priority or a lower one move. */
  readonly priority: number;
};

/** Annotations with which pods say that they must not be evicted for others' sake. */
const STAYS: readonly (readonly [key: string, value: string])[] = [
  ['cluster-autoscaler.kubernetes.io/safe-to-evict', 'false'],
  ['karpenter.sh/do-not-disrupt', 'true'],
];

export function situationOf(objects: DefragObjects, { shares, placement, priority }: WantedShare): DefragSituation {
  const { nodes, pods } = objects;
  const allocations = allocationsOf(nodes, pods);
  const { read } = createDecider(allocations, placement);
  const open = openNodes(nodes);
  const budgets = budgetsOf(objects.budgets);
  const container = { name: 'main', kind: 'app', dialect: 'cotenant', asked: {}, memoryIsolation: 'on' } as const;
  const containers = [{ ...container, gpus: [...shares] }];
  const wanted = read(formatPodRequest({ priority: 'normal', gpuModels: [], gpuUuids: [], containers }));
  if (!wanted.ok) throw new Error(wanted.error);
  const movable = pods.flatMap((pod): readonly Movable[] => {
    const { annotations = {}, ownerReferences = [] } = pod.metadata;
    const bound = readBoundPod(asApiPod(pod));
    const request = read(annotations[REQUEST_ANNOTATION], aspectsOf(pod.metadata, pod.spec));
    if (bound.kind !== 'granted' || !request.ok) return [];
    const { facts, allocation } = bound;
    // A DaemonSet makes the pod anew on the same node.
    const comesBack = ownerReferences.some(({ kind, controller }) => controller && kind === 'DaemonSet');
    const stays = STAYS.some(([key, value]) => annotations[key] === value);
    if (!facts.isRecreated || facts.isTerminating || comesBack || stays || facts.priority > priority) return [];
    return [
      {
        ...{ podUid: allocation.podUid, demand: allocation.demand, request: request.value },
        ...{ priority: facts.priority, createdMs: facts.createdMs, budgets: budgets.of(facts) },
        nodes: nodesFor(pod.spec, open),
      },
    ];
  });
  const names = open.map(({ metadata }) => metadata.name);
  return { allocations, placement, wanted: wanted.value, nodes: names, movable, allowed: budgets.allowed };
}

/** A plan with the pods' names, for people and programs. */
export type ShownPlan = {
  /** `4096 MiB of one GPU` */
  readonly wanted: string;
  readonly outcome: 'fits' | 'moves' | 'no plan';
  readonly node?: string;
  readonly gpus?: readonly string[];
  readonly moves: readonly ShownMove[];
  /** Without a plan: the node that misses by least as it is, and why. */
  readonly nearest?: string;
  /** Not all sets of pods were tried. */
  readonly exhausted?: true;
};
export type ShownMove = {
  readonly pod: string;
  readonly uid: string;
  readonly controller: string;
  readonly priority: number;
  readonly from: DefragPlan['moves'][number]['from'];
  readonly to: DefragPlan['moves'][number]['to'];
};

export function shownPlan(plan: DefragPlan | NoPlan, situation: DefragSituation, pods: readonly Pod[]): ShownPlan {
  const { wanted: request, nodes, allocations, placement, movable } = situation;
  const wanted = (request.request.containers ?? []).map(askedBy).join(', ');
  if (!plan.moves) {
    const nearest = nearestMiss(request, nodes, createDecider(allocations, placement));
    return { wanted, outcome: 'no plan', moves: [], nearest, ...(plan.exhausted && { exhausted: true }) };
  }
  const byUid = new Map(pods.map((pod) => [pod.metadata.uid, pod]));
  const moves = plan.moves.flatMap(({ podUid, from, to }) => {
    const pod = byUid.get(podUid);
    const priority = movable.find((one) => one.podUid === podUid)?.priority ?? 0;
    return pod ? [{ pod: nameOf(pod), uid: podUid, controller: controllerOf(pod), priority, from, to }] : [];
  });
  const outcome = moves.length === 0 ? 'fits' : 'moves';
  return { wanted, outcome, node: plan.node, gpus: plan.gpus, moves };
}

const controllerOf = ({ metadata }: Pod): string => {
  const owner = metadata.ownerReferences?.find(({ controller }) => controller);
  return owner ? `${owner.kind}/${owner.name}` : '';
};

export function planLines({
  wanted,
  outcome,
  node,
  gpus = [],
  moves,
  nearest,
  exhausted,
}: ShownPlan): readonly string[] {
  if (outcome === 'fits') return [`${wanted} fit node ${node} as it is: ${gpus.join(', ')}`];
  if (outcome === 'no plan') {
    const most = exhausted ? ' (not all sets of pods were tried)' : '';
    return [`No pods can be moved so that ${wanted} fit${most}. Nearest as it is: ${nearest}`];
  }
  return [
    `${wanted} fit node ${node}, ${gpus.join(', ')}, once ${moves.length === 1 ? '1 pod has' : `${moves.length} pods have`} moved:`,
    ...moves.map(moveText).map((line, index) => `  ${index + 1}. ${line}`),
  ];
}

export const moveText = ({ pod, controller, priority, from, to }: ShownMove): string =>
  `${pod} (${controller}, priority ${priority}) from ${spotText(from)} to ${spotText(to)}`;

export const spotText = ({ node, gpus }: ShownMove['from']): string => `node ${node}, ${gpus.join(', ')}`;
