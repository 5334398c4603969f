// Evicts a pod through the API server, which honors disruption budgets and the pod's grace period.
import { describeApiError, statusOf } from './api-error.ts';
import { callApi, pathOf } from './call.ts';
import type { ApiConfig } from './config.ts';

/** Resolves when the API server has accepted the eviction, or the pod is gone; else rejects with its answer. */
export type EvictCall = (pod: {
  readonly namespace: string;
  readonly name: string;
  readonly uid: string;
}) => Promise<void>;

export function createEvictCall(config: ApiConfig): EvictCall {
  return async ({ namespace, name, uid }) => {
    // By UID: not a successor of the same name.
    const body = { metadata: { name, namespace }, deleteOptions: { preconditions: { uid } } };
    try {
      await callApi(config, { method: 'POST', path: `${pathOf(namespace, 'pods', name)}/eviction`, body });
    } catch (error) {
      // The pod is gone, or its UID is another one by now.
      if ([404, 409].some((status) => status === statusOf(error))) return;
      throw new Error(describeApiError(error));
    }
  };
}
