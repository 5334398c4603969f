// What may be asked of the node half from outside, and what it is given to ask others with.

import type { PodGrant } from '../api/grant-annotation.ts';
import type { Mode } from '../api/request.ts';
import type { Logger } from '../common/logger.ts';
import type { EvictCall } from '../kube/eviction.ts';
import type { GpusReading } from '../kube/node-gpus.ts';
import type { GpuFault } from '../policy/gpu-health.ts';
import type { PodAsk } from './allocation/pod-grants.ts';
import type { GrantAsk, GrantChange, Refusal } from './allocation/process-grants.ts';
import type { ContainerBook } from './attribution/container-index.ts';
import type { Assignments } from './attribution/other-allocations.ts';
import type { NodeCompute, RefusedChange } from './compute/node-policy.ts';
import type { ActionRecord } from './enforcement/action-record.ts';
import type { Volumes } from './grants/files.ts';
import type { Grant } from './grants/grant.ts';
import type { LiveGrant } from './grants/registry.ts';
import type { Driver } from './os/driver-handle.ts';
import type { AbandonedCounts } from './os/helper-process.ts';
import type { Sample } from './sampling/sample.ts';
import type { NameOf, PublishResult, Snapshot } from './snapshot/snapshot.ts';

export type Node = {
  onSample(sample: Sample): void;
  /** To be asked every second or so: what is published must not outlive the samples that it tells of. */
  lookAtAge(): void;
  readonly snapshot: () => Snapshot | undefined;
  grant(ask: GrantAsk): LiveGrant | Refusal;
  /** Other amounts for a grant, another choice of compute, another mode: all of it, or nothing. */
  change(id: string, change: GrantChange, memoryBytesPerGpu?: number): LiveGrant | Refusal;
  readonly compute: NodeCompute;
  /** Of this node; an administrator's label goes before its settings. */
  readonly mode: () => Mode;
  /** Labels of the Node as they are now. */
  onLabels(labels: Readonly<Record<string, string>>): void;
  /** A pod of this node has these annotations now. */
  onPod(podUid: string, annotations: unknown): void;
  release(id: string): boolean;
  /** Files for all containers with a share, or why not. */
  publish(ask: PodAsk): PodGrant | Refusal;
  /** What the kubelet was told of a volume in the end. */
  onPublish(result: PublishResult): void;
  /** The grants of that volume end; another one of the pod is another matter. */
  unpublish(podUid: string, target: string): void;
  /** Has each container that the volume was made for its grant? */
  holds(podUid: string, target: string): boolean;
  /** The container with a share that the runtime is about to make: its GPUs, none left of who was in it before. */
  containerStarts(podUid: string, container: string): readonly string[] | undefined;
  /** The runtime has a container that it made without a GPU; of one without a share that is as it should be. */
  containerPassedBy(container: PassedBy): void;
  /** Container ids; fed by the runtime's events. */
  readonly containers: ContainerBook;
  /** What the scheduler may choose from; undefined until the driver has been read. */
  gpus(): GpusReading | undefined;
  grantFiles(id: string): LiveGrant | undefined;
  /** Offers a GPU again although nothing proves that it was reset; undefined: no Xid was held against it. */
  clearFault(gpuUuid: string): GpuFault | undefined;
  /** What was done to a container, by its id, its pod's name or namespace/pod; also after its end. */
  actionsOn(who: string): readonly ActionRecord[];
  close(): Promise<void>;
};

export type PassedBy = {
  readonly containerId: string;
  readonly podUid: string;
  readonly namespace: string;
  readonly pod: string;
  readonly container: string;
};

export type NodeHooks = {
  readonly onSnapshot: (snapshot: Snapshot) => void;
  readonly onActions: (records: readonly ActionRecord[]) => void;
  readonly log: Logger;
  /** What a pod's annotation says of its compute is not done; told once of each text. */
  readonly onRefused?: ((change: RefusedChange) => void) | undefined;
  /** A container with a share was made without its GPUs; told once of each, over restarts, with the sentence for its pod. */
  readonly onPassedBy?: ((container: PassedBy, message: string) => void) | undefined;
  /** None: no pod is evicted, whatever the settings say. */
  readonly evict?: EvictCall | undefined;
  readonly onInterval: (intervalMs: number) => void;
  readonly samplers: () => AbandonedCounts;
  readonly driver: Driver;
  readonly nameOf: NameOf;
  /** What others gave out on this node; none: nobody is asked. */
  readonly assignments?: Assignments | undefined;
  /** How volumes of pods are made; none: this agent serves no pods. */
  readonly volumes?: Volumes | undefined;
  /** Before a container of a pod is stopped: its last words. */
  readonly lastWords?: (grant: Grant, message: string, terminationLog: string | undefined) => void;
  readonly version: string;
  readonly revision: string;
  /** A clock that nobody sets, in milliseconds. */
  readonly clock: () => number;
};
