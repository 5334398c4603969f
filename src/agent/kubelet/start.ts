// The agent's faces to the kubelet, the runtime and the cluster: pods' volumes, slots, devices, and what this node has to give.
// Owns their start, what each is told of the node half, and their end; none of them may take the others down.

import { join } from 'node:path';
import type { Logger } from '../../common/logger.ts';
import type { GpusReading } from '../../kube/node-gpus.ts';
import { WHOLE_POD } from '../attribution/container-index.ts';
import type { Volumes } from '../grants/files.ts';
import type { Node } from '../node-api.ts';
import type { Native } from '../os/addon.ts';
import { type Cdi, followCdi } from './cdi/watch.ts';
import { startCsi } from './csi/driver.ts';
import { createPublisher, type PodSource } from './csi/publish-pod.ts';
import {
  containersOf,
  isMounted,
  ledgerPath,
  libraryFolder,
  mountVolume,
  pagePath,
  withWritable,
} from './csi/volume.ts';
import { startDevicePlugin } from './device-plugin/plugin.ts';
import { startNri } from './nri/plugin.ts';
import { foldersOf, type KubernetesSettings } from './settings.ts';

/** What the agent asks of a cluster. */
export type Cluster = {
  readonly pods: PodSource;
  /** Keeps the Node object as `gpus` has it; `changed` says that it may have another answer. */
  advertise(
    gpus: () => GpusReading | undefined,
    withSlots: boolean,
    onLabels: (labels: Readonly<Record<string, string>>) => void,
  ): { changed(): void; close(): Promise<void> };
  /** Tells of each pod of this node, those that are there and those that change. */
  onPod(listener: (podUid: string, annotations: unknown) => void): void;
  problemOf(error: unknown): string;
};

export type PodServices = {
  /** After each sample: slots and amounts may have changed. */
  changed(): void;
  close(): Promise<void>;
};

export const volumesOf = (native: Native): Volumes => ({
  mount: (target, containers, ledgerBytes, libraries) =>
    mountVolume(native, { target, containers, ledgerBytes, libraries }),
  isMounted,
  containers: containersOf,
  withWritable: (target, write) => withWritable(native, target, write),
  libraryFolder,
  pagePath,
  ledgerPath,
});

export async function startPodServices(
  { kubernetes, mostTenantsPerGpu }: { readonly kubernetes: KubernetesSettings; readonly mostTenantsPerGpu: number },
  node: Node,
  cluster: Cluster,
  log: Logger,
): Promise<PodServices> {
  const { kubeletRoot, nodeName, nriSocket, cdiKind } = kubernetes;
  const cdiFolders = foldersOf(kubernetes.cdiFolders);
  const slots = () => {
    const gpus = node.gpus()?.gpus ?? [];
    const healthy = gpus.filter((gpu) => gpu.healthy && gpu.unfenced === undefined).length;
    return { healthy: healthy * mostTenantsPerGpu, unhealthy: (gpus.length - healthy) * mostTenantsPerGpu };
  };
  const cdi: Cdi | undefined =
    nriSocket === '' || cdiFolders.length === 0
      ? undefined
      : followCdi({ folders: cdiFolders, kind: cdiKind, onProblem: log.component('cdi').warn });
  // The runtime first: containers that start once their volume is there must get their GPUs.
  const nri =
    nriSocket === ''
      ? undefined
      : startNri({
          socket: nriSocket,
          cdiKind,
          gpusOf: node.containerStarts,
          ...(cdi && { devicesFor: cdi.devicesFor }),
          onContainer: ({ containerId, ...name }) => node.containers.tell(containerId, name),
          onPassedBy: node.containerPassedBy,
          onSandbox: (sandboxId, podUid) => node.containers.tell(sandboxId, { podUid, container: WHOLE_POD }),
          onRemoved: node.containers.forget,
          onProblem: log.component('nri').warn,
        });
  const csi = await startCsi({
    kubeletRoot,
    nodeName,
    publisher: createPublisher({
      node,
      nodeName,
      pods: cluster.pods,
      problemOf: cluster.problemOf,
      onProblem: log.component('csi').warn,
    }),
    onResult: node.onPublish,
    onProblem: log.component('csi').warn,
  });
  // A plugin's devices go with it: pods that are bound just then fail at the kubelet. Amounts in the status stay, and pods wait.
  const plugin =
    kubernetes.slots === 'device-plugin'
      ? startDevicePlugin({
          folder: join(kubeletRoot, 'device-plugins'),
          slots,
          onProblem: log.component('device-plugin').warn,
        })
      : undefined;
  const advertising = cluster.advertise(node.gpus, plugin === undefined, node.onLabels);
  cluster.onPod(node.onPod);
  let told = '';
  return {
    changed() {
      const now = JSON.stringify(node.gpus());
      if (now === told) return;
      told = now;
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
