// What the kubelet's word is answered with: which pod it is, what it was granted, its files, or a sentence for its events.
// Owns the order of these questions; the ruling is the referee's, files and mounts are the registry's and the volume's.
import { CSI_DRIVER, wrongMounts } from '../../../api/csi-volume.ts';
import type { Node } from '../../node-api.ts';
import { type Publisher, type VolumeAsk, VolumeRefused } from './driver.ts';

/** A pod as the API server has it; only what is read here. */
export type KubePod = {
  readonly metadata?: { readonly uid?: string; readonly annotations?: Readonly<Record<string, string>> };
  readonly spec?: { readonly nodeName?: string };
};

export type PodSource = {
  /** What a watch knows, which may lag behind the kubelet: absence proves nothing. */
  cached(podUid: string): KubePod | undefined;
  /** Asks the API server; undefined: there is no such pod. Throws where it does not answer. */
  read(namespace: string, pod: string): Promise<KubePod | undefined>;
};

export type PublisherOptions = {
  readonly node: Pick<Node, 'publish' | 'unpublish' | 'holds'>;
  readonly nodeName: string;
  readonly pods: PodSource;
  readonly problemOf: (error: unknown) => string;
  readonly onProblem: (text: string) => void;
};

export function createPublisher({ node, nodeName, pods, problemOf, onProblem }: PublisherOptions): Publisher {
  const podOf = async ({ podUid, namespace, pod }: VolumeAsk): Promise<KubePod> => {
    const known = pods.cached(podUid);
    // Bound by one write, so a pod that is seen with its node is seen with its grant.
    if (known?.spec?.nodeName === nodeName) return known;
    let read: KubePod | undefined;
    try {
      read = await pods.read(namespace, pod);
    } catch (error) {
      const why = problemOf(error);
      throw new VolumeRefused(`the API server was asked for the pod and did not answer: ${why}`, { later: true });
    }
    if (read?.metadata?.uid !== podUid) throw new VolumeRefused(`pod ${namespace}/${pod} is another one by now`);
    if (read.spec?.nodeName !== nodeName) throw new VolumeRefused(`pod ${namespace}/${pod} is not bound to this node`);
    return read;
  };

  const give = async (ask: VolumeAsk & { readonly mounted: boolean }): Promise<void> => {
    const { podUid, namespace, pod, target, mounted } = ask;
    const found = await podOf(ask);
    const given = node.publish({
      podUid,
      namespace,
      pod,
      target,
      mounted,
      annotations: found.metadata?.annotations,
      wrongMounts: (shares) => wrongMounts(found, shares),
    });
    if ('refused' in given) throw new VolumeRefused(given.refused, { later: given.later ?? false });
  };

  return {
    async publish(ask) {
      if (!ask.mounted) return give(ask);
      // A kubelet that was restarted asks again for what is mounted: a pod that is refused then could never end.
      if (node.holds(ask.podUid, ask.target)) return;
      try {
        await give(ask);
      } catch (error) {
        onProblem(
          `pod ${ask.namespace}/${ask.pod} has its volume of ${CSI_DRIVER} and keeps it, but ${(error as Error).message}`,
        );
      }
    },
    unpublish: ({ podUid, target }) => node.unpublish(podUid, target),
  };
}
