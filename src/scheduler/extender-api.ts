// The scheduler extender protocol (k8s.io/kube-scheduler/extender/v1): checks what kube-scheduler sends and builds the
// answers. Pure. Its Go structures have no JSON tags, so keys are Go's field names.
import { REQUEST_ANNOTATION } from '../api/names.ts';
import { field, textAt } from '../common/json.ts';
import { err, ok, type Result } from '../common/result.ts';
import type { BindingRequest } from './binding-writer.ts';
import type { Filtered } from './filter-and-score.ts';

export type NodesAsked = {
  readonly podUid: string;
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
  if (isTexts(given)) return ok({ podUid, request, names: given, objects: undefined });
  if (!Array.isArray(objects)) return err('NodeNames and Nodes are both missing');
  const names = objects.map((node) => textAt(field(node, 'metadata'), 'name') ?? '');
  return names.includes('') ? err('a Node has no metadata.name') : ok({ podUid, request, names, objects });
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

function isTexts(value: unknown): value is readonly string[] {
  return Array.isArray(value) && value.every((entry) => typeof entry === 'string');
}
