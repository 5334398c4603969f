// The node half as other parts see it: its operations, the events that it emits, and what it needs from the process
// around it.

import type { EventEmitter } from 'node:events';
import type { Mode } from '../api/request.ts';
import type { Logger } from '../common/logger.ts';
import type { Result } from '../common/result.ts';
import type { EvictCall } from '../kube/eviction.ts';
import type { GpuFault } from '../policy/gpu-health.ts';
import type { GrantChange, ProcessAsk } from './allocation/process-grants.ts';
import type { ContainerIndex } from './attribution/container-index.ts';
import type { Assignments } from './attribution/other-allocations.ts';
import type { NodeCompute, RefusedChange } from './compute/node-policy.ts';
import type { Slices } from './containers/slices.ts';
import type { ActionRecord } from './enforcement/action-record.ts';
import type { NotFound } from './grants/by-name.ts';
import type { Volumes } from './grants/files.ts';
import type { Grant } from './grants/grant.ts';
import type { LiveGrant } from './grants/live-grant.ts';
import type { Refusal } from './grants/refusal.ts';
import type { MissedContainer } from './kubelet/missed-containers.ts';
import type { PodNode } from './kubelet/start.ts';
import type { Driver } from './os/driver-handle.ts';
import type { AbandonedCounts } from './os/helper-process.ts';
import type { Sample } from './sampling/sample.ts';
import type { Connections, NameOf, Snapshot } from './snapshot/snapshot.ts';

export type NodeEvents = {
  /** A new snapshot is published. */
  snapshot: [snapshot: Snapshot];
  /** Enforcement acted on containers. */
  actions: [records: readonly ActionRecord[]];
  /** When the next sample is wanted. */
  interval: [intervalMs: number];
  /** A change of a running pod's compute or memory is not applied; once for each text. */
  'change-refused': [change: RefusedChange];
  /** A container with a grant was created without its GPUs; once for each, across restarts of the agent. */
  'gpus-missing': [container: MissedContainer, message: string];
};

export type Node = PodNode & {
  readonly events: EventEmitter<NodeEvents>;
  onSample(sample: Sample, samplers?: AbandonedCounts): void;
  /** Marks the snapshot as stale or the driver as released; to be called every second or so. */
  checkAge(samplers?: AbandonedCounts): void;
  readonly snapshot: () => Snapshot | undefined;
  grant(ask: ProcessAsk): Result<LiveGrant, Refusal>;
  /** The id of the grant with this id, or with this name if no other has it. */
  find(name: string): Result<string, NotFound>;
  /** Changes amounts, compute or enforcement of a grant: all of it, or nothing. */
  change(id: string, change: GrantChange): Result<LiveGrant, Refusal>;
  readonly compute: NodeCompute;
  /** Of this node; an administrator's label takes precedence over the settings. */
  readonly mode: () => Mode;
  /** A grant that a container has mounted stays. */
  release(id: string): 'released' | 'in use' | 'unknown';
  /** Grants of containers without a pod. */
  readonly slices: Slices;
  readonly containers: ContainerIndex;
  grantFiles(id: string): LiveGrant | undefined;
  /** Offers a GPU again without proof of a reset; undefined: it had no fault. */
  clearFault(gpuUuid: string): GpuFault | undefined;
  /** Actions on a container, by grant id, pod name or namespace/pod; also after its end. */
  actionsOn(name: string): readonly ActionRecord[];
  close(): Promise<void>;
};

export type NodeInputs = {
  readonly log: Logger;
  /** Monotonic milliseconds. */
  readonly clock: () => number;
  readonly build: { readonly version: string; readonly revision: string };
  readonly driver: Pick<Driver, 'join' | 'releasedMs'>;
  /** Names of containers without a grant. */
  readonly nameOf: NameOf;
  /** Devices of this node that others allocated; absent: not known. */
  readonly assignments?: Assignments | undefined;
  /** Absent: no pod is evicted, whatever the settings say. */
  readonly evict?: EvictCall | undefined;
  readonly connections: () => Connections;
  /** Since when the pod is gone from the API server; undefined: it is not. */
  readonly podGoneSinceMs?: ((podUid: string) => number | undefined) | undefined;
  /** Volumes of pods; absent: this agent serves no pods. */
  readonly volumes?: Volumes | undefined;
  /** Writes the reason into the termination message of a container that is about to be stopped. */
  readonly writeReason?: (grant: Grant, message: string, terminationLog: string | undefined) => void;
};
