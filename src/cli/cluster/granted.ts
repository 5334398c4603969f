// The allocations of a cluster from its Nodes and pods, as the scheduler extender counts them, and which nodes take new
// pods. Pure.
import type { V1Pod } from '@kubernetes/client-node';
import { GPUS_ANNOTATION } from '../../api/names.ts';
import { parseNodeGpus } from '../../api/node-annotation.ts';
import { field, listAt, objectAt, textAt } from '../../common/json.ts';
import { selectsLabels } from '../../kube/label-selector.ts';
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

/** Names of the nodes that a pod's `nodeSelector` and its required node affinity select. */
export function nodesFor(spec: unknown, nodes: readonly Node[]): readonly string[] {
  const selector = Object.entries(objectAt(spec, 'nodeSelector'));
  const affinity = objectAt(objectAt(spec, 'affinity'), 'nodeAffinity');
  const required = field(affinity, 'requiredDuringSchedulingIgnoredDuringExecution');
  return nodes
    .filter(({ metadata: { name, labels = {} } }) => {
      const holds = (term: unknown) => {
        const expressions = [
          ...listAt(term, 'matchExpressions').map((one) => meets(one, labels)),
          ...listAt(term, 'matchFields').map((one) => meets(one, { 'metadata.name': name })),
        ];
        // A term without a condition selects nothing.
        return expressions.length > 0 && expressions.every(Boolean);
      };
      return (
        selector.every(([key, value]) => labels[key] === value) &&
        (required === undefined || listAt(required, 'nodeSelectorTerms').some(holds))
      );
    })
    .map(({ metadata }) => metadata.name);
}

/** One condition of a node selector's term. */
function meets(condition: unknown, labels: Readonly<Record<string, string>>): boolean {
  const [key = '', operator = ''] = [textAt(condition, 'key'), textAt(condition, 'operator')];
  const values = listAt(condition, 'values').map(String);
  if (operator !== 'Gt' && operator !== 'Lt')
    return selectsLabels({ matchExpressions: [{ key, operator, values }] }, labels);
  const difference = Number(labels[key] ?? Number.NaN) - Number(values[0]);
  return operator === 'Gt' ? difference > 0 : difference < 0;
}
