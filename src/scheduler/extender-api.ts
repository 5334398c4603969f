// The scheduler extender protocol (k8s.io/kube-scheduler/extender/v1): checks what kube-scheduler sends and builds the
// answers. Pure. Its Go structures have no JSON tags, so keys are Go's field names.
import { REQUEST_ANNOTATION } from '../api/names.ts';
import { field, isObject, isWithin, textAt } from '../common/json.ts';
import { err, ok, type Result } from '../common/result.ts';
import type { BindingRequest } from './allocations/binding-writer.ts';
import type { Filtered, PodAspects } from './decisions/filter-and-score.ts';
import { MOST_REPLICAS } from './decisions/fits.ts';
import { aspectsOf } from './decisions/pod-aspects.ts';
import type { PreemptingPod, Victims } from './evictions/preemption.ts';

type NodesAsked = {
  readonly podUid: string;
  readonly preempting: PreemptingPod;
  readonly aspects: PodAspects;
  /** The pod's annotation with its request. */
  readonly request: string | undefined;
  readonly names: readonly string[];
  /** Whole Nodes, where the scheduler is configured without nodeCacheCapable. */
  readonly objects: readonly unknown[] | undefined;
};

/** Arguments of filter and prioritize. */
export function readNodesAsked(value: unknown): Result<NodesAsked> {
  const metadata = field(field(value, 'Pod'), 'metadata');
  const podUid = textAt(metadata, 'uid');
  if (podUid === undefined) return err('Pod.metadata.uid is missing');
  const given = field(value, 'NodeNames');
  const objects = field(field(value, 'Nodes'), 'items');
  const request = textAt(field(metadata, 'annotations'), REQUEST_ANNOTATION);
  const about = {
    ...{ podUid, request, preempting: readPreemptingPod(podUid, field(value, 'Pod')) },
    aspects: aspectsOf(metadata, field(field(value, 'Pod'), 'spec')),
  };
  if (isTexts(given)) return ok({ ...about, names: given, objects: undefined });
  if (!Array.isArray(objects)) return err('NodeNames and Nodes are both missing');
  const names = objects.map((node) => textAt(field(node, 'metadata'), 'name') ?? '');
  return names.includes('') ? err('a Node has no metadata.name') : ok({ ...about, names, objects });
}

function readPreemptingPod(podUid: string, pod: unknown): PreemptingPod {
  const spec = field(pod, 'spec');
  const priority = field(spec, 'priority');
  const mayPreempt = textAt(spec, 'preemptionPolicy') !== 'Never';
  return { podUid, priority: typeof priority === 'number' ? priority : 0, mayPreempt };
}

type PreemptionAsked = {
  readonly pod: PreemptingPod;
  readonly request: string | undefined;
  /** What kube-scheduler would evict on each node that it considers. */
  readonly victims: Victims;
  /** Of these, how many evictions violate a budget. */
  readonly violations: Readonly<Record<string, number>>;
};

/** Arguments of preempt: UIDs, or whole pods where the scheduler is configured without nodeCacheCapable. */
export function readPreemptionAsked(value: unknown): Result<PreemptionAsked> {
  const metadata = field(field(value, 'Pod'), 'metadata');
  const podUid = textAt(metadata, 'uid');
  if (podUid === undefined) return err('Pod.metadata.uid is missing');
  const byNode = field(value, 'NodeNameToMetaVictims') ?? field(value, 'NodeNameToVictims');
  if (!isObject(byNode)) return err('NodeNameToMetaVictims and NodeNameToVictims are both missing');
  const victims: Record<string, readonly string[]> = {};
  const violations: Record<string, number> = {};
  for (const [node, chosen] of Object.entries(byNode)) {
    const pods = field(chosen, 'Pods');
    const uids = (Array.isArray(pods) ? pods : []).map(
      (pod) => textAt(pod, 'UID') ?? textAt(field(pod, 'metadata'), 'uid'),
    );
    if (!isTexts(uids)) return err(`a victim on node ${node} has no UID`);
    victims[node] = uids;
    violations[node] = Number(field(chosen, 'NumPDBViolations') ?? 0);
  }
  const request = textAt(field(metadata, 'annotations'), REQUEST_ANNOTATION);
  return ok({ pod: readPreemptingPod(podUid, field(value, 'Pod')), request, victims, violations });
}

export function preemptionResult(victims: Victims, { violations }: PreemptionAsked): object {
  const metaVictims = Object.entries(victims).map(([node, uids]) => [
    node,
    { Pods: uids.map((UID) => ({ UID })), NumPDBViolations: violations[node] ?? 0 },
  ]);
  return { NodeNameToMetaVictims: Object.fromEntries(metaVictims) };
}

export function readBindingRequest(value: unknown): Result<BindingRequest> {
  const [podName, podNamespace] = [textAt(value, 'PodName'), textAt(value, 'PodNamespace')];
  const [podUid, node] = [textAt(value, 'PodUID'), textAt(value, 'Node')];
  if (!podName || !podNamespace || !podUid || !node) return err('PodName, PodNamespace, PodUID or Node is missing');
  return ok({ podName, podNamespace, podUid, node });
}

/** Names or whole Nodes, as they came. */
export function filterResult({ feasible, failed, unresolvable }: Filtered, { names, objects }: NodesAsked): object {
  const reasons = { FailedNodes: failed, FailedAndUnresolvableNodes: unresolvable };
  if (!objects) return { NodeNames: feasible, ...reasons };
  const fits = new Set(feasible);
  return { Nodes: { items: objects.filter((_, index) => fits.has(names[index] ?? '')) }, ...reasons };
}

type FitsAsked = {
  readonly request: string | undefined;
  readonly aspects: PodAspects;
  readonly replicas: number;
  readonly nodes: readonly string[] | undefined;
};

/** Arguments of fits, which is not part of the protocol: `{"pod": POD, "replicas": N, "nodes": [NAME, ...]}`. */
export function readFitsAsked(value: unknown): Result<FitsAsked> {
  const pod = field(value, 'pod');
  const [metadata, replicas, nodes] = [field(pod, 'metadata'), field(value, 'replicas') ?? 1, field(value, 'nodes')];
  if (!isObject(pod)) return err('pod is missing: want a pod as the API server has it');
  if (!isWithin(replicas, 1, MOST_REPLICAS)) return err(`replicas: want a whole number from 1 to ${MOST_REPLICAS}`);
  if (nodes !== undefined && !isTexts(nodes)) return err('nodes: want a list of names');
  const request = textAt(field(metadata, 'annotations'), REQUEST_ANNOTATION);
  return ok({ request, aspects: aspectsOf(metadata, field(pod, 'spec')), replicas, nodes });
}

function isTexts(value: unknown): value is readonly string[] {
  return Array.isArray(value) && value.every((entry) => typeof entry === 'string');
}
