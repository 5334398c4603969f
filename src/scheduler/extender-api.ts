// The scheduler extender protocol (k8s.io/kube-scheduler/extender/v1): what kube-scheduler sends, read without trust, and what
// it gets back. Pure. Its structures have no JSON names, so that keys are Go's own.

import { REQUEST_ANNOTATION } from '../api/names.ts';
import { field, textAt } from '../common/json.ts';
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

/** Arguments of filter and prioritize, or what is wrong with them. */
export function readNodesAsked(value: unknown): NodesAsked | { readonly wrong: string } {
  const metadata = field(field(value, 'Pod'), 'metadata');
  const podUid = textAt(metadata, 'uid');
  if (podUid === undefined) return { wrong: 'Pod.metadata.uid is missing' };
  const given = field(value, 'NodeNames');
  const objects = field(field(value, 'Nodes'), 'items');
  const request = textAt(field(metadata, 'annotations'), REQUEST_ANNOTATION);
  if (isTexts(given)) return { podUid, request, names: given, objects: undefined };
  if (!Array.isArray(objects)) return { wrong: 'there is neither NodeNames nor Nodes' };
  const names = objects.map((node) => textAt(field(node, 'metadata'), 'name') ?? '');
  return names.includes('') ? { wrong: 'a Node has no name' } : { podUid, request, names, objects };
}

export function readBindingRequest(value: unknown): BindingRequest | { readonly wrong: string } {
  const [podName, podNamespace] = [textAt(value, 'PodName'), textAt(value, 'PodNamespace')];
  const [podUid, node] = [textAt(value, 'PodUID'), textAt(value, 'Node')];
  if (!podName || !podNamespace || !podUid || !node)
    return { wrong: 'PodName, PodNamespace, PodUID or Node is missing' };
  return { podName, podNamespace, podUid, node };
}

/** In the form in which the nodes came. */
export function filterResult({ feasible, failed, unresolvable }: Filtered, { names, objects }: NodesAsked): object {
  const reasons = { FailedNodes: failed, FailedAndUnresolvableNodes: unresolvable };
  if (!objects) return { NodeNames: feasible, ...reasons };
  const fits = new Set(feasible);
  return { Nodes: { items: objects.filter((_, index) => fits.has(names[index] ?? '')) }, ...reasons };
}

function isTexts(value: unknown): value is readonly string[] {
  return Array.isArray(value) && value.every((entry) => typeof entry === 'string');
}
