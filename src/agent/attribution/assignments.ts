// Devices that others gave to containers of this node, as the kubelet tells: asked for every so often and when a container is
// met that nobody has named, never for a scrape. Owns the connection and the last answer; which card a device is, is devices.ts'.
import { join } from 'node:path';
import { Client, credentials, type ServiceDefinition, type ServiceError } from '@grpc/grpc-js';
import { loadSync } from '@grpc/proto-loader';
import { inTurn } from '../in-turn.ts';
import { claimedDevice, type NamedDevice, type NodeCard, pluginDevice, type ShareMode } from './devices.ts';
import { type DeviceUuids, NO_SLICES } from './slices.ts';

export type Assignment = {
  readonly namespace: string;
  readonly pod: string;
  readonly container: string;
  readonly mode: ShareMode;
  /** Undefined: which card it is cannot be told by the device's name. */
  readonly gpuUuid: string | undefined;
};

/** `unknown`: devices of GPUs that are no card of this node, or whose card their names do not tell. */
export type Assigned = { readonly list: readonly Assignment[]; readonly unknown: number };
export const NOTHING_ASSIGNED: Assigned = { list: [], unknown: 0 };

export type PodResources = {
  readonly name: string;
  readonly namespace: string;
  readonly containers: readonly {
    readonly name: string;
    readonly devices: readonly { readonly resource_name: string; readonly device_ids: readonly string[] }[];
    readonly dynamic_resources: readonly {
      readonly claim_resources: readonly {
        readonly driver_name: string;
        readonly pool_name: string;
        readonly device_name: string;
        readonly share_id: string;
      }[];
    }[];
  }[];
};

/** Each container once per card, however many devices of it it has: two replicas of a card are no whole card. */
export function assignedOf(
  pods: readonly PodResources[],
  cards: readonly NodeCard[],
  isOver: (namespace: string, pod: string) => boolean,
  uuids: DeviceUuids = NO_SLICES,
): Assigned {
  let unknown = 0;
  const list = pods
    .filter(({ namespace, name }) => !isOver(namespace, name)) // kubelets before 1.34 list what has ended, too
    .flatMap(({ namespace, name: pod, containers }) =>
      containers.flatMap(({ name: container, devices, dynamic_resources }): Assignment[] => {
        const named: NamedDevice[] = [
          ...devices.flatMap(({ device_ids }) => device_ids.flatMap((id) => pluginDevice(id, cards) ?? [])),
          ...dynamic_resources.flatMap(({ claim_resources }) =>
            claim_resources.flatMap(
              ({ driver_name: driver, pool_name: pool, device_name: device, share_id: share }) =>
                claimedDevice({ driver, pool, device, share }, cards, uuids) ?? [],
            ),
          ),
        ];
        unknown += named.filter(({ gpuUuid }) => gpuUuid === undefined).length;
        const byCard = new Map(named.map(({ gpuUuid, mode }) => [gpuUuid, mode]));
        return [...byCard].map(([gpuUuid, mode]) => ({ namespace, pod, container, mode, gpuUuid }));
      }),
    );
  return { list, unknown };
}

export type Assignments = {
  of(cards: readonly NodeCard[]): Assigned;
  /** Containers without a grant on a card: one that was not there before is a reason to ask. */
  met(containerIds: ReadonlySet<string>): void;
  close(): Promise<void>;
};

export type AssignmentsOptions = {
  /** The kubelet's. */
  readonly socket: string;
  /** Has the pod ended, by the cluster's word? */
  readonly isOver: (namespace: string, pod: string) => boolean;
  /** What DRA drivers tell of their devices; none: they are told by their names. */
  readonly uuids?: (() => DeviceUuids) | undefined;
  readonly onProblem: (text: string) => void;
  readonly everyMs?: number;
};

const EVERY_MS = 10_000;
const ANSWER_MS = 5000;
/** Of answers: a node of many pods passes the 4 MB that clients allow unless told otherwise. */
const MOST_BYTES = 64 << 20;

const definitions = loadSync(join(import.meta.dirname, 'podresources.proto'), { keepCase: true, defaults: true });
export const POD_RESOURCES = definitions['v1.PodResourcesLister'] as unknown as ServiceDefinition;

export function followAssignments(options: AssignmentsOptions): Assignments {
  // As Go's clients do at sockets.
  const client = new Client(`unix:${options.socket}`, credentials.createInsecure(), {
    'grpc.default_authority': 'localhost',
    'grpc.max_receive_message_length': MOST_BYTES,
  });
  const { List: method } = POD_RESOURCES;
  if (!method) throw new Error('podresources.proto has no List');
  let pods: readonly PodResources[] = [];
  let known: ReadonlySet<string> = new Set();
  let told = '';

  const list = () => {
    const { promise, resolve } = Promise.withResolvers<void>();
    client.makeUnaryRequest(
      method.path,
      method.requestSerialize,
      method.responseDeserialize,
      {},
      { deadline: Date.now() + ANSWER_MS },
      (error: ServiceError | null, answer?: unknown) => {
        if (error) {
          // What was told last stands: containers keep their cards while the kubelet is away.
          const text = `the kubelet does not tell at ${options.socket} which devices it gave out; whole cards may pass for use without a grant: ${error.details}`;
          if (text !== told) options.onProblem(text);
          told = text;
        } else {
          pods = (answer as { pod_resources: readonly PodResources[] }).pod_resources;
          told = '';
        }
        resolve();
      },
    );
    return promise;
  };
  const asking = inTurn(list);
  asking.ask();
  const timer = setInterval(asking.ask, options.everyMs ?? EVERY_MS).unref();

  return {
    of: (cards) => assignedOf(pods, cards, options.isOver, options.uuids?.()),
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
