// Handles NodePublishVolume and NodeUnpublishVolume: finds the pod, has its grant verified and its files made, or
// refuses with a sentence for the pod's Events.

import { CSI_DRIVER } from '../../../api/csi-volume.ts';
import type { PodGrant } from '../../../api/grant-annotation.ts';
import type { Logger } from '../../../common/logger.ts';
import type { Result } from '../../../common/result.ts';
import type { PodVolume } from '../../allocation/pod-grants.ts';
import type { Refusal } from '../../grants/refusal.ts';
import { type Publisher, type RequestedVolume, VolumeRefused } from './driver.ts';

/** A pod as the API server has it; only what is read here. */
export type KubePod = {
  readonly metadata?: { readonly uid?: string; readonly annotations?: Readonly<Record<string, string>> };
  readonly spec?: { readonly nodeName?: string };
};

export type PodSource = {
  /** The pod from the watch, which may lag behind the kubelet: absence proves nothing. */
  cached(podUid: string): KubePod | undefined;
  /** Reads the pod from the API server; undefined: it does not exist. Throws if the server does not answer. */
  read(namespace: string, pod: string): Promise<KubePod | undefined>;
};

/** What the publisher needs from the node half. */
export type PodVolumes = {
  /** Creates the files of all containers of the pod that have a grant, or returns a refusal. */
  publish(volume: PodVolume): Result<PodGrant, Refusal>;
  /** The same for a volume that is mounted already, where the agent has lost its grants. */
  adopt(volume: PodVolume): Result<PodGrant, Refusal>;
  /** Ends the grants of that volume. */
  unpublish(podUid: string, target: string): void;
  /** Does each container of the volume have its grant? */
  holds(podUid: string, target: string): boolean;
};

type PublisherOptions = {
  readonly node: PodVolumes;
  readonly nodeName: string;
  readonly pods: PodSource;
  readonly problemOf: (error: unknown) => string;
  readonly log: Pick<Logger, 'warn'>;
};

export function createPublisher({ node, nodeName, pods, problemOf, log }: PublisherOptions): Publisher {
  const podOf = async ({ podUid, namespace, pod }: RequestedVolume): Promise<KubePod> => {
    const known = pods.cached(podUid);
    // Bound by one write, so a pod that is seen with its node is seen with its grant.
    if (known?.spec?.nodeName === nodeName) return known;
    let read: KubePod | undefined;
    try {
      read = await pods.read(namespace, pod);
    } catch (error) {
      const why = problemOf(error);
      throw new VolumeRefused(`the API server did not answer a request for the pod: ${why}`, { later: true });
    }
    if (read?.metadata?.uid !== podUid)
      throw new VolumeRefused(`pod ${namespace}/${pod} has another UID: it was deleted and created again`);
    if (read.spec?.nodeName !== nodeName) throw new VolumeRefused(`pod ${namespace}/${pod} is not bound to this node`);
    return read;
  };

  const publishFiles = async (volume: RequestedVolume & { readonly mounted: boolean }): Promise<void> => {
    const { podUid, namespace, pod, target, mounted } = volume;
    const found = await podOf(volume);
    const request = { podUid, namespace, pod, target, object: found };
    const published = mounted ? node.adopt(request) : node.publish(request);
    if (published.ok) return;
    const { refused, later = false } = published.error;
    throw new VolumeRefused(refused, { later });
  };

  return {
    async publish(volume) {
      if (!volume.mounted) return publishFiles(volume);
      // A restarted kubelet publishes mounted volumes again: a pod that is refused then could never end.
      if (node.holds(volume.podUid, volume.target)) return;
      try {
        await publishFiles(volume);
      } catch (error) {
        log.warn(
          `pod ${volume.namespace}/${volume.pod} keeps its volume of ${CSI_DRIVER}, but ${(error as Error).message}`,
        );
      }
    },
    unpublish: ({ podUid, target }) => node.unpublish(podUid, target),
  };
}
