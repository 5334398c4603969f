// Asks the API server to evict a pod: it honors disruption budgets and the pod's time to end. Owns the call.
import { CoreV1Api, type KubeConfig } from '@kubernetes/client-node';
import type { EvictCall } from '../agent/enforcement/evictions.ts';
import { problemOf } from './api-error.ts';
import { clientOf } from './client.ts';

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
