// Asks the API server to evict a pod: it honors disruption budgets and the pod's time to end. Owns the call.
import { CoreV1Api, type KubeConfig } from '@kubernetes/client-node';
import { problemOf } from './api-error.ts';
import { clientOf } from './client.ts';

/** Resolves when the API server has accepted the eviction, or the pod is gone; else rejects with its answer. */
export type EvictCall = (pod: {
  readonly namespace: string;
  readonly name: string;
  readonly uid: string;
}) => Promise<void>;

export function evictor(config: KubeConfig): EvictCall {
  const api = clientOf(config, CoreV1Api);
  return async ({ namespace, name, uid }) => {
    // Not its successor of the same name.
    const body = { metadata: { name, namespace }, deleteOptions: { preconditions: { uid } } };
    try {
      await api.createNamespacedPodEviction({ name, namespace, body });
    } catch (error) {
      const { code } = error as { code?: unknown };
      // Gone, or another one by now.
      if (code === 404 || code === 409) return;
      throw new Error(problemOf(error));
    }
  };
}
