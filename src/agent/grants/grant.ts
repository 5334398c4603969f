// A grant as the agent keeps it, and the format of grant.json. Pure.
import { createHash } from 'node:crypto';
import { posix } from 'node:path';
import * as v from 'valibot';
import type { GpuGrant } from '../../api/gpu.ts';
import {
  COMPUTE_POLICIES,
  CONTAINER_KINDS,
  type ComputeChoice,
  type ContainerKind,
  initIndex,
  MODES,
  MOST_WEIGHT,
  PRIORITIES,
} from '../../api/request.ts';
import { field } from '../../common/json.ts';
import type { Result } from '../../common/result.ts';
import { listOf, oneOf, parseVersionedJson, settings, whole } from '../../common/schema.ts';
import { MODE_SOURCES, type RequestedMode } from '../../policy/mode.ts';
import { tenantGroup } from '../os/cgroup.ts';

/** The process that a process grant was made for; the grant ends with it. */
export type ProcessOwner = {
  readonly pid: number;
  readonly startTicks: number;
  /** Its cgroup in the unified hierarchy when the grant was made; empty: none. */
  readonly cgroup: string;
};

/** Containers of Docker, Podman or containerd that mount the grant's folder, as its CDI device has it. */
export type ContainerOwner = {
  /** The name of the CDI device. */
  readonly device: string;
  /** The process that starts the one container; absent: a slice, which lasts until it leaves the slices file. */
  readonly starter?: { readonly pid: number; readonly startTicks: number };
};

/** The pod whose container has the grant; the grant ends when the kubelet unpublishes the pod's volume. */
export type PodOwner = {
  readonly podUid: string;
  /** The kubelet's target of the volume, with limits page and ledger below. */
  readonly target: string;
  readonly kind: ContainerKind;
  /** As in the request. */
  readonly initIndex?: number;
};

export type Grant = {
  readonly id: string;
  /** Labels of its metrics: a pod's names, or for processes `local`, the grant's name and the command. */
  readonly namespace: string;
  readonly pod: string;
  readonly container: string;
  readonly createdMs: number;
  readonly gpus: readonly GpuGrant[];
  /** False: no request is refused; use is still counted and shown. */
  readonly isolateMemory: boolean;
  /** Absent: the defaults hold. */
  readonly compute?: ComputeChoice;
  /** The text of the pod's annotation that last changed its compute. */
  readonly computeOverride?: string;
  /** The enforcement mode that was requested; absent: the node's mode holds. */
  readonly enforcement?: RequestedMode | undefined;
  readonly owner: ProcessOwner | PodOwner | ContainerOwner;
};

export const isOfPod = (owner: Grant['owner']): owner is PodOwner => 'podUid' in owner;
export const isOfContainers = (owner: Grant['owner']): owner is ContainerOwner => 'device' in owner;
export const isOfProcess = (owner: Grant['owner']): owner is ProcessOwner => 'cgroup' in owner;
export const podUidOf = ({ owner }: Pick<Grant, 'owner'>): string => (isOfPod(owner) ? owner.podUid : '');

/** What a message of the log is about. */
export const logKeys = ({ id, namespace, pod, container }: Pick<Grant, 'id' | 'namespace' | 'pod' | 'container'>) => ({
  pod: `${namespace}/${pod}`,
  container,
  grant: id,
});

const POD_GRANT_ID_LENGTH = 24;
/** A container of a pod has one grant, also after a restart of the agent. */
export const podGrantId = (podUid: string, container: string): string =>
  createHash('sha256').update(`${podUid}/${container}`).digest('hex').slice(0, POD_GRANT_ID_LENGTH);
/** By its length: ids of process grants are shorter. */
export const isPodGrantId = (id: string): boolean => id.length === POD_GRANT_ID_LENGTH;

/** The cgroup of its processes, if they have one of their own; `cotenant run` makes it where that is permitted. */
export const groupOfGrant = ({ id, owner }: Pick<Grant, 'id' | 'owner'>): string | undefined =>
  isOfProcess(owner) && owner.cgroup !== '' ? posix.join(owner.cgroup, tenantGroup(id)) : undefined;

export const GRANT_ID = /^[a-z0-9]{6,32}$/;

/** A text that needs no escaping in labels, file names and messages. */
export function plainName(text: string): string {
  return text.replace(/[^A-Za-z0-9._-]+/g, '-').slice(0, 63) || 'unnamed';
}

/** `name`, with a number where it is taken: two tenants of one name would share their metrics. */
export function freeName(name: string, taken: (name: string) => boolean): string {
  if (!taken(name)) return name;
  for (let number = 2; ; number++) {
    const next = `${name.slice(0, 58)}-${number}`;
    if (!taken(next)) return next;
  }
}

const VERSION = 1;

export function formatGrant(grant: Grant): string {
  return `${JSON.stringify({ version: VERSION, ...grant }, null, 2)}\n`;
}

const count = whole(0, Number.MAX_SAFE_INTEGER);
const POD_UID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;
const isCleanPath = (path: string): boolean => posix.isAbsolute(path) && posix.normalize(path) === path;

const processOwner = v.object({ pid: count, startTicks: count, cgroup: v.string() });
const containerOwner = v.object({
  device: v.pipe(v.string(), v.nonEmpty('a name')),
  starter: v.exactOptional(v.object({ pid: count, startTicks: count })),
});
const podOwner = v.object({
  podUid: v.pipe(v.string(), v.regex(POD_UID, 'the UID of a pod')),
  target: v.pipe(v.string(), v.check(isCleanPath, 'an absolute path')),
  kind: oneOf(CONTAINER_KINDS),
  initIndex,
});
const gpuGrant = v.object({
  gpuUuid: v.string(),
  memoryBytes: count,
  limitBytes: count,
  coresPercent: count,
  heldBytes: v.exactOptional(count),
  coresLimitPercent: v.exactOptional(count),
});
export const computeChoice = settings({
  policy: v.exactOptional(oneOf(COMPUTE_POLICIES)),
  priority: v.exactOptional(oneOf(PRIORITIES)),
  weight: v.exactOptional(whole(1, MOST_WEIGHT)),
});
const storedGrant = v.object({
  id: v.pipe(v.string(), v.regex(GRANT_ID, 'the id of a grant')),
  namespace: v.string(),
  pod: v.string(),
  container: v.string(),
  createdMs: count,
  gpus: listOf(gpuGrant, 1),
  // Read as false it would be a grant that limits nothing.
  isolateMemory: v.boolean(),
  compute: v.exactOptional(computeChoice),
  computeOverride: v.exactOptional(v.string()),
  enforcement: v.exactOptional(v.object({ mode: oneOf(MODES), by: oneOf(MODE_SOURCES) })),
  owner: v.lazy((owner) => {
    if (field(owner, 'podUid') !== undefined) return podOwner;
    return field(owner, 'device') === undefined ? processOwner : containerOwner;
  }),
});

/** The stored grant, or what is wrong with the text, which a crash may have cut short. */
export const parseGrant = (text: string): Result<Grant> => parseVersionedJson(storedGrant, VERSION, text);
