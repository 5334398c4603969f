// The fields of the cluster's objects that the CLI reads, as in the API server's JSON. Everything
// may be missing, since least rights and old servers leave gaps.

export type Metadata = {
  readonly name: string;
  readonly namespace?: string;
  readonly uid?: string;
  readonly resourceVersion?: string;
  readonly labels?: Readonly<Record<string, string>>;
  readonly annotations?: Readonly<Record<string, string>>;
  readonly creationTimestamp?: string;
  /** When its grace is over, which lies ahead of the request. */
  readonly deletionTimestamp?: string;
  readonly deletionGracePeriodSeconds?: number;
  readonly finalizers?: readonly string[];
};

export type Condition = {
  readonly type: string;
  readonly status: string;
  readonly reason?: string;
  readonly message?: string;
  readonly lastTransitionTime?: string;
};

export type Terminated = {
  readonly exitCode: number;
  readonly signal?: number;
  readonly reason?: string;
  readonly message?: string;
  readonly finishedAt?: string;
};

export type ContainerState = {
  readonly running?: { readonly startedAt?: string };
  readonly waiting?: { readonly reason?: string; readonly message?: string };
  readonly terminated?: Terminated;
};

export type ContainerStatus = {
  readonly name: string;
  readonly state?: ContainerState;
  readonly lastState?: ContainerState;
  readonly restartCount: number;
};

export type Container = {
  readonly name: string;
  readonly ports?: readonly { readonly name?: string; readonly containerPort: number }[];
  readonly readinessProbe?: { readonly httpGet?: { readonly scheme?: string } };
  readonly resources?: {
    readonly limits?: Readonly<Record<string, string>>;
    readonly requests?: Readonly<Record<string, string>>;
  };
};

export type Pod = {
  readonly metadata: Metadata;
  readonly spec: {
    readonly nodeName?: string;
    readonly schedulerName?: string;
    readonly containers: readonly Container[];
    readonly initContainers?: readonly Container[];
    readonly volumes?: readonly { readonly name: string; readonly csi?: { readonly driver: string } }[];
  };
  readonly status?: {
    readonly phase?: string;
    readonly reason?: string;
    readonly message?: string;
    readonly startTime?: string;
    readonly conditions?: readonly Condition[];
    readonly containerStatuses?: readonly ContainerStatus[];
    readonly initContainerStatuses?: readonly ContainerStatus[];
  };
};

export type Node = {
  readonly metadata: Metadata;
  readonly status?: { readonly conditions?: readonly Condition[] };
};

export type CsiDriver = { readonly metadata: Metadata };

export type Event = {
  readonly metadata: Metadata;
  readonly involvedObject: {
    readonly kind?: string;
    readonly name?: string;
    readonly uid?: string;
    readonly fieldPath?: string;
  };
  readonly reason?: string;
  readonly message?: string;
  readonly source?: { readonly component?: string };
  readonly reportingComponent?: string;
  readonly count?: number;
  readonly firstTimestamp?: string | null;
  readonly lastTimestamp?: string | null;
  readonly eventTime?: string | null;
  readonly series?: { readonly count?: number; readonly lastObservedTime?: string } | null;
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
  ...(status?.initContainerStatuses ?? []),
  ...(status?.containerStatuses ?? []),
];

export const conditionOf = (
  of: { readonly status?: { readonly conditions?: readonly Condition[] } },
  type: string,
): Condition | undefined => of.status?.conditions?.find((condition) => condition.type === type);
