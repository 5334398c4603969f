// The allocations of a cluster from its Nodes and pods, as the scheduler extender counts them, and which nodes take new
// pods. Pure.
import type { V1Pod } from '@kubernetes/client-node';
import { GPUS_ANNOTATION } from '../../api/names.ts';
import { parseNodeGpus } from '../../api/node-annotation.ts';
import { type Allocations, createAllocations } from '../../placement/allocations.ts';
import { placementIn } from '../../placement/node.ts';
import { readBoundPod } from '../../scheduler/allocations/bound-pod.ts';
import { coresIn, coresOf } from '../../scheduler/decisions/pod-aspects.ts';
import { conditionOf, type Node, type Pod } from './objects.ts';

/** A pod as the API server's JSON has it. */
export const asApiPod = (pod: Pod): V1Pod => pod as unknown as V1Pod;

export function allocationsOf(nodes: readonly Node[], pods: readonly Pod[]): Allocations {
  const allocations = createAllocations();
  const cores = new Map(nodes.map(({ metadata, status }) => [metadata.name, coresIn(status?.allocatable)]));
  for (const pod of pods) {
    const { nodeName = '' } = pod.spec;
    cores.set(nodeName, (cores.get(nodeName) ?? 0) - coresOf(pod.spec));
    const bound = readBoundPod(asApiPod(pod));
    if (bound.kind !== 'no-grant') allocations.allocate(bound.allocation);
  }
  for (const { metadata } of nodes) {
    const gpus = parseNodeGpus(metadata.annotations?.[GPUS_ANNOTATION] ?? '');
    if (!gpus.ok) continue;
    const placement = placementIn(metadata.labels);
    allocations.setNode(metadata.name, { ...gpus.value, ...(placement && { placement }) });
    allocations.setFreeCores(metadata.name, cores.get(metadata.name));
  }
  return allocations;
}

/** Nodes with shared GPUs that are neither cordoned nor known not to be ready. */
export const openNodes = (nodes: readonly Node[]): readonly Node[] =>
  nodes.filter(
    (node) =>
      node.metadata.annotations?.[GPUS_ANNOTATION] !== undefined &&
      node.spec?.unschedulable !== true &&
      conditionOf(node, 'Ready')?.status !== 'False',
  );

/** Names of the nodes with all labels that a `nodeSelector` wants. */
export const nodesFor = (selector: Readonly<Record<string, unknown>>, nodes: readonly Node[]): readonly string[] =>
  nodes
    .filter(({ metadata }) => Object.entries(selector).every(([key, value]) => metadata.labels?.[key] === value))
    .map(({ metadata }) => metadata.name);
