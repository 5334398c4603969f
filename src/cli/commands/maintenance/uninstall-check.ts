// `cotenant uninstall-check`: fails if pods exist that need Cotenant's CSI driver to end. The chart runs it before it
// is uninstalled, so its output must fit into a termination message.
import { CSI_DRIVER } from '../../../api/csi-volume.ts';
import { COMPONENT_LABEL } from '../../../api/names.ts';
import { conditionOf, hasEnded, nameOf, type Pod, statusesOf } from '../../cluster/objects.ts';
import { type Command, text } from '../../lib/command.ts';
import { KUBECONFIG_OPTIONS, namedCluster } from '../../options/target.ts';

/** Kubernetes keeps the last 2048 bytes of a message; a longer one would lose its first sentence. */
const MOST_BYTES = 2000;
/** Kubelets unmount the volumes of an ended pod within seconds. */
const UNMOUNTED_AFTER_MS = 60_000;
/** Of pods whose owners give them annotations as large as Kubernetes takes them, 25 MiB. */
const PAGE = '100';

export const uninstallCheck: Command = {
  name: 'uninstall-check',
  summary: 'Fails with a list while pods with a volume of Cotenant are left, which could not end without the agent.',
  usage: '[--kubeconfig FILE] [--context NAME]',
  options: {
    ...KUBECONFIG_OPTIONS,
    'system-namespace': {
      value: 'NAMESPACE',
      help: "where Cotenant is installed (default the context's, or that of the pod that asks)",
    },
  },
  async run(parsed) {
    const cluster = await namedCluster(parsed);
    const system = text(parsed, 'system-namespace') ?? cluster.namespace;
    const served = new Set<string>();
    const left: Pod[] = [];
    const agents = { limit: PAGE, labelSelector: `${COMPONENT_LABEL}=agent` };
    let pods = await cluster.each<Pod>(`/api/v1/namespaces/${encodeURIComponent(system)}/pods`, agents, (pod) => {
      if (isServing(pod, system)) served.add(pod.spec.nodeName ?? '');
    });
    if (pods.ok)
      pods = await cluster.each<Pod>('/api/v1/pods', { limit: PAGE }, (pod) => {
        if (needsUs(pod, served, Date.now())) left.push(withoutDetails(pod));
      });
    if (!pods.ok) {
      console.log(`cotenant: whether pods with a volume of Cotenant are left cannot be seen: ${pods.message}`);
      return 1;
    }
    console.log(listed(left).join('\n'));
    return left.length === 0 ? 0 : 1;
  },
};

/**
 * Whether the pod is a ready agent of its node. Any user can write labels, so only pods in the namespace of the release
 * count.
 */
export const isServing = (pod: Pod, system: string): boolean =>
  pod.spec.nodeName !== undefined &&
  pod.metadata.namespace === system &&
  pod.metadata.labels?.[COMPONENT_LABEL] === 'agent' &&
  conditionOf(pod, 'Ready')?.status === 'True';

/** What `listed` reads: a hundred thousand whole pods would not fit into the hook's memory. */
const withoutDetails = ({ metadata: { name, namespace }, spec: { nodeName }, status }: Pod): Pod => ({
  metadata: { name, ...(namespace !== undefined && { namespace }) },
  spec: { containers: [], ...(nodeName !== undefined && { nodeName }) },
  status: { ...(status?.phase !== undefined && { phase: status.phase }) },
});

/**
 * Does the pod have the volume, and may its kubelet still have to unmount it? For an ended pod: while its node has no
 * agent, while the pod is being deleted, and for some seconds after its end.
 */
export function needsUs(pod: Pod, served: ReadonlySet<string>, nowMs: number): boolean {
  const { nodeName, volumes = [] } = pod.spec;
  if (!volumes.some(({ csi }) => csi?.driver === CSI_DRIVER)) return false;
  if (!hasEnded(pod)) return true;
  // The kubelet refused the pod, or it was never bound: it never had a volume.
  const ends = statusesOf(pod).map(({ state }) => Date.parse(state?.terminated?.finishedAt ?? ''));
  const endMs = Math.max(...ends.filter((ms) => !Number.isNaN(ms)));
  if (!nodeName || endMs === Number.NEGATIVE_INFINITY) return false;
  return pod.metadata.deletionTimestamp !== undefined || !served.has(nodeName) || nowMs - endMs < UNMOUNTED_AFTER_MS;
}

export function listed(left: readonly Pod[]): readonly string[] {
  if (left.length === 0) return ['no pod with a volume of Cotenant is left'];
  const lines = [
    `cotenant: not uninstalled, for ${left.length === 1 ? '1 pod has' : `${left.length} pods have`} a volume of Cotenant and cannot end without its agent. Delete these first:`,
  ];
  const named = left.map((pod) => `  ${nameOf(pod)} (${whereOf(pod)})`).toSorted();
  let bytes = Buffer.byteLength(`${lines[0]}\n  and ${left.length} more\n`);
  for (const [index, line] of named.entries()) {
    bytes += Buffer.byteLength(`${line}\n`);
    if (bytes > MOST_BYTES) return [...lines, `  and ${left.length - index} more`];
    lines.push(line);
  }
  return lines;
}

function whereOf(pod: Pod): string {
  if (!pod.spec.nodeName) return 'not bound yet';
  return `on ${pod.spec.nodeName}${hasEnded(pod) ? ', ended, its volume may still be mounted' : ''}`;
}
