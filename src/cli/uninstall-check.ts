// `cotenant uninstall-check`: whether pods are left that need us to end. The chart runs it before it is uninstalled, so what it
// says must fit a termination message.
import { CSI_DRIVER } from '../request/mounts.ts';
import { connect } from './cluster/api.ts';
import { hasEnded, nameOf, type Pod } from './cluster/objects.ts';
import { type Command, text } from './command.ts';

/** Kubernetes keeps 2048 bytes of a message: head, list and the count of the rest fit with names of ordinary length. */
const MOST_NAMED = 25;

export const uninstallCheck: Command = {
  name: 'uninstall-check',
  summary: 'Fails with a list while pods with a volume of Cotenant are left, which could not end without the agent.',
  usage: '[--kubeconfig FILE] [--context NAME]',
  options: {
    kubeconfig: {
      type: 'string',
      value: 'FILE',
      help: "of the cluster (default KUBECONFIG, ~/.kube/config, or a pod's service account)",
    },
    context: { type: 'string', value: 'NAME', help: 'in the kubeconfig (default its current one)' },
  },
  async run(parsed) {
    const cluster = await connect(text(parsed, 'kubeconfig'), text(parsed, 'context'));
    const pods = await cluster.list<Pod>('/api/v1/pods');
    if (!pods.ok) {
      console.log(`cotenant: whether pods with a volume of Cotenant are left cannot be seen: ${pods.message}`);
      return 1;
    }
    const left = pods.value.filter(needsUs);
    console.log(listed(left).join('\n'));
    return left.length === 0 ? 0 : 1;
  },
};

/** It has the volume, and its kubelet may still have to unmount it. */
export function needsUs(pod: Pod): boolean {
  return !hasEnded(pod) && (pod.spec.volumes ?? []).some(({ csi }) => csi?.driver === CSI_DRIVER);
}

export function listed(left: readonly Pod[]): readonly string[] {
  if (left.length === 0) return ['no pod with a volume of Cotenant is left'];
  const named = left.map(
    (pod) => `  ${nameOf(pod)} (${pod.spec.nodeName ? `on ${pod.spec.nodeName}` : 'not bound yet'})`,
  );
  const more = left.length - MOST_NAMED;
  return [
    `cotenant: not uninstalled, for ${left.length === 1 ? '1 pod has' : `${left.length} pods have`} a volume of Cotenant and cannot end without its agent. Delete these first:`,
    ...named.toSorted().slice(0, MOST_NAMED),
    ...(more > 0 ? [`  and ${more} more`] : []),
  ];
}
