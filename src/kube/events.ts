// Writes Events about pods: what the agent or the scheduler did to them.
import { CoreV1Api, type CoreV1Event, type KubeConfig } from '@kubernetes/client-node';
import { ACTION_ANNOTATION } from '../api/names.ts';
import { describeApiError } from './api-error.ts';
import { createApiClient } from './client.ts';

export type PodEvent = {
  readonly namespace: string;
  readonly pod: string;
  readonly podUid: string;
  /** Absent: the Event is about the whole pod. */
  readonly container?: string;
  readonly reason: string;
  /** What the agent did, for programs that read the Event. */
  readonly action?: string;
  readonly type: 'Warning' | 'Normal';
  readonly message: string;
  readonly atMs: number;
  /** The agent of a node, or a replica of another component. */
  readonly by: { readonly component: keyof typeof REPORTERS; readonly instance: string };
};

const REPORTERS = { agent: 'cotenant.io/agent', scheduler: 'cotenant.io/scheduler' } as const;
/** The API server refuses longer messages. */
const LONGEST_MESSAGE = 1024;

export function buildEvent(event: PodEvent): CoreV1Event {
  const at = new Date(event.atMs);
  return {
    metadata: {
      generateName: `${event.pod.slice(0, 200)}.cotenant-`,
      namespace: event.namespace,
      ...(event.action !== undefined && { annotations: { [ACTION_ANNOTATION]: event.action } }),
    },
    involvedObject: {
      apiVersion: 'v1',
      kind: 'Pod',
      namespace: event.namespace,
      name: event.pod,
      uid: event.podUid,
      ...(event.container !== undefined && { fieldPath: `spec.containers{${event.container}}` }),
    },
    reason: event.reason,
    message: event.message.slice(0, LONGEST_MESSAGE),
    type: event.type,
    count: 1,
    firstTimestamp: at,
    lastTimestamp: at,
    source: { component: `cotenant-${event.by.component}`, host: event.by.instance },
    reportingComponent: REPORTERS[event.by.component],
    reportingInstance: event.by.instance,
  };
}

/** An Event that cannot be written is dropped: the action that it is about goes on. */
export function createEventWriter(
  config: KubeConfig,
  onProblem: (text: string) => void,
): (event: PodEvent) => Promise<void> {
  const api = createApiClient(config, CoreV1Api);
  return async (event) => {
    try {
      await api.createNamespacedEvent({ namespace: event.namespace, body: buildEvent(event) });
    } catch (error) {
      onProblem(`cannot write the Event for ${event.namespace}/${event.pod}: ${describeApiError(error)}`);
    }
  };
}
