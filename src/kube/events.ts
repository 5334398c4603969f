// Tells a pod what was done to it, as an Event. Owns the shape; what happened and why comes from the enforcement record.
import { CoreV1Api, type CoreV1Event, type KubeConfig } from '@kubernetes/client-node';
import { problemOf } from './problem.ts';

export type PodEvent = {
  readonly namespace: string;
  readonly pod: string;
  readonly podUid: string;
  readonly container: string;
  readonly reason: string;
  readonly type: 'Warning' | 'Normal';
  readonly message: string;
  readonly atMs: number;
  readonly nodeName: string;
};

/** Kubernetes cuts nothing: longer messages are refused. */
const LONGEST_MESSAGE = 1024;

export function eventOf(event: PodEvent): CoreV1Event {
  const at = new Date(event.atMs);
  return {
    metadata: { generateName: `${event.pod.slice(0, 200)}.cotenant-`, namespace: event.namespace },
    involvedObject: {
      apiVersion: 'v1',
      kind: 'Pod',
      namespace: event.namespace,
      name: event.pod,
      uid: event.podUid,
      fieldPath: `spec.containers{${event.container}}`,
    },
    reason: event.reason,
    message: event.message.slice(0, LONGEST_MESSAGE),
    type: event.type,
    count: 1,
    firstTimestamp: at,
    lastTimestamp: at,
    source: { component: 'cotenant-agent', host: event.nodeName },
    reportingComponent: 'cotenant.io/agent',
    reportingInstance: event.nodeName,
  };
}

/** Writes the event; a cluster that cannot be reached costs the event, never the action that it tells of. */
export function createReporter(
  config: KubeConfig,
  onProblem: (text: string) => void,
): (event: PodEvent) => Promise<void> {
  const api = config.makeApiClient(CoreV1Api);
  return async (event) => {
    try {
      await api.createNamespacedEvent({ namespace: event.namespace, body: eventOf(event) });
    } catch (error) {
      onProblem(`the Event for ${event.namespace}/${event.pod} could not be written: ${problemOf(error)}`);
    }
  };
}
