// The fields of the cluster's objects that the CLI reads, as in the API server's JSON. Everything
// may be missing, since least rights and old servers leave gaps.
import type {
  CoreV1Event,
  V1Container,
  V1ContainerStateTerminated,
  V1ContainerStatus,
  V1Node,
  V1ObjectMeta,
  V1ObjectReference,
  V1PodCondition,
  V1PodSpec,
  V1PodStatus,
} from '@kubernetes/client-node';

type Json<T> = T extends Date
  ? string
  : T extends readonly (infer E)[]
    ? readonly Json<E>[]
    : T extends object
      ? string extends keyof T
        ? Readonly<T>
        : { readonly [K in keyof T]?: Json<T[K]> }
      : T;
type Named = { readonly metadata: Json<V1ObjectMeta> & { readonly name: string } };

type Condition = Json<V1PodCondition>;
export type Terminated = Json<V1ContainerStateTerminated>;
type ContainerStatus = Json<V1ContainerStatus> & { readonly name: string; readonly restartCount: number };

export type Pod = Named & {
  readonly spec: Json<V1PodSpec> & { readonly containers: readonly Json<V1Container>[] };
  readonly status?: Json<V1PodStatus>;
};
export type Node = Named & Json<V1Node>;
export type CsiDriver = Named;
export type Event = Json<CoreV1Event> & {
  readonly metadata: Json<V1ObjectMeta>;
  readonly involvedObject: Json<V1ObjectReference>;
};

/** Both kinds of events, of the old API and of the new one. */
export const timeOfEvent = (event: Event): string | undefined =>
  event.series?.lastObservedTime ??
  event.lastTimestamp ??
  event.eventTime ??
  event.metadata.creationTimestamp ??
  undefined;

export const countOfEvent = (event: Event): number => event.series?.count ?? event.count ?? 1;

export const writerOfEvent = (event: Event): string => event.source?.component || event.reportingComponent || '';

export const nameOf = ({ metadata }: Pod): string => `${metadata.namespace ?? ''}/${metadata.name}`;

/** All of its containers are gone from the node for good. */
export const hasEnded = ({ status }: Pod): boolean => status?.phase === 'Succeeded' || status?.phase === 'Failed';

export const statusesOf = ({ status }: Pod): readonly ContainerStatus[] => [
  ...((status?.initContainerStatuses ?? []) as readonly ContainerStatus[]),
  ...((status?.containerStatuses ?? []) as readonly ContainerStatus[]),
];

export const conditionOf = (
  of: { readonly status?: { readonly conditions?: readonly Condition[] } },
  type: string,
): Condition | undefined => of.status?.conditions?.find((condition) => condition.type === type);
