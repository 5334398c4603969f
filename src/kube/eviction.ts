// Evicts a pod through the API server, which honors disruption budgets and the pod's grace period.
import { CoreV1Api, type KubeConfig } from '@kubernetes/client-node';
import { describeApiError, statusOf } from './api-error.ts';
import { createApiClient } from './client.ts';

/** Resolves when the API server has accepted the eviction, or the pod is gone; else rejects with its answer. */
export type EvictCall = (pod: {
  readonly namespace: string;
  readonly name: string;
  readonly uid: string;
}) => Promise<void>;

export function createEvictCall(config: KubeConfig): EvictCall {
  const api = createApiClient(config, CoreV1Api);
  return async ({ namespace, name, uid }) => {
    // By UID: not a successor of the same name.
    const body = { metadata: { name, namespace }, deleteOptions: { preconditions: { uid } } };
    try {
      await api.createNamespacedPodEviction({ name, namespace, body });
    } catch (error) {
      // The pod is gone, or its UID is another one by now.
      if ([404, 409].some((status) => status === statusOf(error))) return;
      throw new Error(describeApiError(error));
    }
  };
}
