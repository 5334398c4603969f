// Names of this node's containers, by a watch of its pods: container id -> namespace, pod, container. One list at the start
// and a watch from then on, limited to the node by the API server; no look-up ever waits for it.
import { CoreV1Api, type KubeConfig, makeInformer, type V1Pod } from '@kubernetes/client-node';
import { problemOf } from './problem.ts';

export type ContainerName = {
  readonly namespace: string;
  readonly pod: string;
  readonly podUid: string;
  readonly container: string;
};

export type PodNames = {
  of(containerId: string): ContainerName | undefined;
  /** Resolves when the first list is in. */
  readonly ready: Promise<void>;
  close(): Promise<void>;
};

const RETRY_MS = 5000;

/** Every container of a pod that has an id, init and debug containers included. */
export function containersOfPod(pod: V1Pod): [string, ContainerName][] {
  const { status, metadata } = pod;
  const all = [
    ...(status?.containerStatuses ?? []),
    ...(status?.initContainerStatuses ?? []),
    ...(status?.ephemeralContainerStatuses ?? []),
  ];
  return all.flatMap(({ containerID, name }) => {
    // "containerd://<64 hexadecimal digits>"
    const id = /[0-9a-f]{64}$/.exec(containerID ?? '')?.[0];
    if (id === undefined) return [];
    const entry = {
      namespace: metadata?.namespace ?? '',
      pod: metadata?.name ?? '',
      podUid: metadata?.uid ?? '',
      container: name,
    };
    return [[id, entry] satisfies [string, ContainerName]];
  });
}

export function watchPods(config: KubeConfig, nodeName: string, onProblem: (text: string) => void): PodNames {
  const api = config.makeApiClient(CoreV1Api);
  const fieldSelector = `spec.nodeName=${nodeName}`;
  const byContainer = new Map<string, ContainerName>();
  const byPod = new Map<string, string[]>();
  const { promise: ready, resolve: listed } = Promise.withResolvers<void>();
  const list = async () => {
    const found = await api.listPodForAllNamespaces({ fieldSelector });
    setImmediate(listed); // the informer hands them out first
    return found;
  };
  const path = `/api/v1/pods?fieldSelector=${encodeURIComponent(fieldSelector)}`;
  const informer = makeInformer(config, path, list);
  const forget = (pod: V1Pod) => {
    const uid = pod.metadata?.uid ?? '';
    for (const id of byPod.get(uid) ?? []) byContainer.delete(id);
    byPod.delete(uid);
  };
  const learn = (pod: V1Pod) => {
    forget(pod);
    const containers = containersOfPod(pod);
    for (const [id, name] of containers) byContainer.set(id, name);
    byPod.set(
      pod.metadata?.uid ?? '',
      containers.map(([id]) => id),
    );
  };
  informer.on('add', learn);
  informer.on('update', learn);
  informer.on('delete', forget);
  let closing = false;
  let retry: NodeJS.Timeout | undefined;
  const again = (error: unknown) => {
    if (closing) return;
    onProblem(`the pods of this node cannot be followed, and are asked for again: ${problemOf(error)}`);
    retry = setTimeout(start, RETRY_MS);
  };
  const start = () => void informer.start().catch(again);
  // Lists that fail come here, too.
  informer.on('error', again);
  start();
  return {
    of: (containerId) => byContainer.get(containerId),
    ready,
    async close() {
      closing = true;
      clearTimeout(retry);
      await informer.stop();
    },
  };
}
