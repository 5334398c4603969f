// Reads from the kubelet's PodResources API which devices other device plugins allocated to containers of this node:
// every 10 seconds and when a sample shows a new container without a grant, never during a scrape. Keeps the connection
// and the last answer.
import { join } from 'node:path';
import type { ServiceDefinition, ServiceError } from '@grpc/grpc-js';
import { loadSync } from '@grpc/proto-loader';
import type { Logger } from '../../common/logger.ts';
import { createSingleFlight } from '../../common/single-flight.ts';
import { callOnce, connectTo } from '../os/grpc.ts';
import { type Assignments, assignedOf, type PodResources } from './other-allocations.ts';
import type { DeviceUuids } from './resource-slices.ts';

export type AssignmentsOptions = {
  /** Path of the kubelet's PodResources socket. */
  readonly socket: string;
  /** Has the pod ended, according to the API server? */
  readonly isOver: (namespace: string, pod: string) => boolean;
  /** What DRA drivers publish of their devices; none: devices are identified by their names. */
  readonly uuids?: (() => DeviceUuids) | undefined;
  readonly log: Pick<Logger, 'warn'>;
  readonly everyMs?: number;
};

const EVERY_MS = 10_000;
const ANSWER_MS = 5000;

const definitions = loadSync(join(import.meta.dirname, 'podresources.proto'), { keepCase: true, defaults: true });
export const POD_RESOURCES = definitions['v1.PodResourcesLister'] as unknown as ServiceDefinition;

export function followAssignments(options: AssignmentsOptions): Assignments {
  const client = connectTo(options.socket);
  const { List: method } = POD_RESOURCES;
  if (!method) throw new Error('podresources.proto has no List');
  let pods: readonly PodResources[] = [];
  let known: ReadonlySet<string> = new Set();

  const list = async () => {
    try {
      const answer = await callOnce(client, method, {}, { withinMs: ANSWER_MS });
      pods = (answer as { pod_resources: readonly PodResources[] }).pod_resources;
    } catch (error) {
      // The last answer stays valid: containers keep their GPUs while the kubelet is away.
      options.log.warn(
        `the kubelet does not list its allocated devices at ${options.socket}, so use of whole GPUs may be reported as use without a grant: ${(error as ServiceError).details}`,
      );
    }
  };
  const asking = createSingleFlight(list);
  asking.ask();
  const timer = setInterval(asking.ask, options.everyMs ?? EVERY_MS).unref();

  return {
    of: (gpus) => assignedOf(pods, gpus, options.isOver, options.uuids?.()),
    met(containerIds) {
      if ([...containerIds].some((id) => !known.has(id))) asking.ask();
      known = new Set(containerIds);
    },
    async close() {
      clearInterval(timer);
      client.close();
      await asking.close();
    },
  };
}
