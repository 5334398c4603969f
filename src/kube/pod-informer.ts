// Informer of one node's pods: the pods, and the names of their containers by container ID. Look-ups never wait; a pod
// that has just been bound may be missing.
import type { V1Pod } from '@kubernetes/client-node';
import { unlessMissing } from './api-error.ts';
import { callApi, pathOf } from './call.ts';
import type { ApiConfig } from './config.ts';
import { listAndWatch } from './list-watch.ts';

export type ContainerName = {
  readonly namespace: string;
  readonly pod: string;
  readonly podUid: string;
  readonly container: string;
};

export type NodePods = {
  of(containerId: string): ContainerName | undefined;
  cached(podUid: string): V1Pod | undefined;
  named(namespace: string, pod: string): V1Pod | undefined;
  /** Calls the listener with each pod, now and whenever it changes. */
  listen(listener: (pod: V1Pod) => void): void;
  /** Calls the listener when a pod was deleted, or is missing in a new list. */
  listenGone(listener: () => void): void;
  /** Reads the pod from the API server; undefined: it does not exist. Rejects where there is no answer within 3 s. */
  read(namespace: string, pod: string): Promise<V1Pod | undefined>;
  /** Resolves when the first list is complete. */
  readonly ready: Promise<void>;
  /** The API server answered the last list or watch. */
  connected(): boolean;
  close(): Promise<void>;
};

const READ_MS = 3000;

/** Every container of a pod that has an ID, init and ephemeral containers included. */
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

/** `spreadMs`: within which the informers of all nodes come back after the API server was away. */
export function startPodInformer(
  config: ApiConfig,
  nodeName: string,
  onProblem: (text: string) => void,
  spreadMs = 0,
): NodePods {
  const fieldSelector = `spec.nodeName=${nodeName}`;
  const byContainer = new Map<string, ContainerName>();
  const byPod = new Map<string, V1Pod>();
  const listeners: ((pod: V1Pod) => void)[] = [];
  const goneListeners: (() => void)[] = [];
  const tellGone = () => {
    for (const listener of goneListeners) listener();
  };
  const forget = (pod: V1Pod) => {
    const uid = pod.metadata?.uid ?? '';
    const before = byPod.get(uid);
    for (const [id] of before ? containersOfPod(before) : []) byContainer.delete(id);
    byPod.delete(uid);
  };
  const learn = (pod: V1Pod) => {
    forget(pod);
    for (const [id, name] of containersOfPod(pod)) byContainer.set(id, name);
    byPod.set(pod.metadata?.uid ?? '', pod);
    for (const listener of listeners) listener(pod);
  };
  const following = listAndWatch(config, {
    path: '/api/v1/pods',
    query: { fieldSelector },
    // The pods of one node are few, and their readers need them whole.
    keep: (pod: V1Pod) => pod,
    onList(items) {
      byPod.clear();
      byContainer.clear();
      for (const pod of items) learn(pod);
      tellGone();
    },
    onChange: learn,
    onGone(pod) {
      forget(pod);
      tellGone();
    },
    onProblem: (text) => onProblem(`the watch of this node's pods failed and is retried: ${text}`),
    spreadMs,
  });
  return {
    of: (containerId) => byContainer.get(containerId),
    cached: (podUid) => byPod.get(podUid),
    named: (namespace, name) =>
      [...byPod.values()].find(({ metadata }) => metadata?.name === name && metadata.namespace === namespace),
    listen(listener) {
      listeners.push(listener);
      for (const pod of byPod.values()) listener(pod);
    },
    listenGone: (listener) => void goneListeners.push(listener),
    read: (namespace, pod) =>
      unlessMissing(callApi<V1Pod>(config, { method: 'GET', path: pathOf(namespace, 'pods', pod), withinMs: READ_MS })),
    ready: following.ready,
    connected: following.connected,
    close: following.close,
  };
}
