// Starts what serves pods: the CSI driver, the NRI plugin with CDI devices, the device plugin, and the node's
// advertised amounts. The failure of one does not stop the others.

import { join } from 'node:path';
import type { Logger } from '../../common/logger.ts';
import type { GpusReading } from '../../kube/node-gpus.ts';
import { type ContainerIndex, WHOLE_POD } from '../attribution/container-index.ts';
import type { Connections, PublishResult } from '../snapshot/snapshot.ts';
import { type Cdi, followCdi } from './cdi/watch.ts';
import { startCsi } from './csi/driver.ts';
import { createPublisher, type PodSource, type PodVolumes } from './csi/publish-pod.ts';
import { startDevicePlugin } from './device-plugin/plugin.ts';
import type { MissedContainer } from './missed-containers.ts';
import { startNri } from './nri/plugin.ts';
import { foldersOf, type KubernetesSettings } from './settings.ts';

/** The cluster as the agent uses it. */
export type Cluster = {
  readonly pods: PodSource;
  /** Keeps the Node object up to date with `gpus`; `changed` has it read again. */
  advertise(
    gpus: () => GpusReading | undefined,
    withSlots: boolean,
    onLabels: (labels: Readonly<Record<string, string>>) => void,
  ): { changed(): void; close(): Promise<void> };
  /** Calls the listener for each pod of this node, present and changed ones. */
  onPod(listener: (podUid: string, annotations: unknown) => void): void;
  problemOf(error: unknown): string;
};

export type PodServices = {
  connections(): Connections;
  /** After each sample: slots and amounts may have changed. */
  changed(): void;
  close(): Promise<void>;
};

/** Operations of the node half that the services use. */
export type PodNode = PodVolumes & {
  readonly containers: Pick<ContainerIndex, 'add' | 'remove'>;
  /** What the scheduler may choose from; undefined until the driver has been read. */
  gpus(): GpusReading | undefined;
  /** The runtime is about to create a container: its GPUs, with the usage ledger emptied; undefined without a grant. */
  containerStarts(podUid: string, container: string): readonly string[] | undefined;
  /** The runtime created a container without calling the agent. Without a grant that is correct. */
  containerMissed(container: MissedContainer): void;
  /** Counts how a NodePublishVolume call ended. */
  onPublish(result: PublishResult): void;
  onLabels(labels: Readonly<Record<string, string>>): void;
  onPod(podUid: string, annotations: unknown): void;
};

export async function startPodServices(
  { kubernetes, mostTenantsPerGpu }: { readonly kubernetes: KubernetesSettings; readonly mostTenantsPerGpu: number },
  node: PodNode,
  cluster: Cluster,
  log: Logger,
): Promise<PodServices> {
  const { kubeletRoot, nodeName, nriSocket, cdiKind } = kubernetes;
  const cdiFolders = foldersOf(kubernetes.cdiFolders);
  const slots = () => {
    const { gpus = [], numaNodes } = node.gpus() ?? {};
    const healthy = gpus.filter((gpu) => gpu.healthy && gpu.unfenced === undefined && gpu.mode !== 'none').length;
    return { healthy: healthy * mostTenantsPerGpu, unhealthy: (gpus.length - healthy) * mostTenantsPerGpu, numaNodes };
  };
  const cdi: Cdi | undefined =
    nriSocket === '' || cdiFolders.length === 0
      ? undefined
      : followCdi({ folders: cdiFolders, kind: cdiKind, log: log.component('cdi') });
  // NRI first: containers start as soon as their volume is published, and must get their GPUs then.
  const nri =
    nriSocket === ''
      ? undefined
      : startNri({
          socket: nriSocket,
          cdiKind,
          gpusOf: node.containerStarts,
          ...(cdi && { devicesFor: cdi.devicesFor }),
          onContainer: ({ containerId, ...name }) => node.containers.add(containerId, name),
          onMissed: node.containerMissed,
          onSandbox: (sandboxId, podUid) => node.containers.add(sandboxId, { podUid, container: WHOLE_POD }),
          onRemoved: node.containers.remove,
          log: log.component('nri'),
        });
  const csi = await startCsi({
    kubeletRoot,
    nodeName,
    publisher: createPublisher({
      node,
      nodeName,
      pods: cluster.pods,
      problemOf: cluster.problemOf,
      log: log.component('csi'),
    }),
    onResult: node.onPublish,
    log: log.component('csi'),
  });
  // While a device plugin is away the kubelet rejects pods that were just bound. Amounts in the Node's status stay, and
  // pods wait.
  const plugin =
    kubernetes.slots === 'device-plugin'
      ? startDevicePlugin({
          folder: join(kubeletRoot, 'device-plugins'),
          slots,
          log: log.component('device-plugin'),
        })
      : undefined;
  const advertising = cluster.advertise(node.gpus, plugin === undefined, node.onLabels);
  cluster.onPod(node.onPod);
  let advertised = '';
  return {
    connections: () => ({ csi: csi.connected(), ...(nri && { nri: nri.connected() }) }),
    changed() {
      const now = JSON.stringify(node.gpus());
      if (now === advertised) return;
      advertised = now;
      plugin?.changed();
      advertising.changed();
    },
    async close() {
      nri?.close();
      cdi?.close();
      await Promise.all([csi.close(), plugin?.close(), advertising.close()]);
    },
  };
}
