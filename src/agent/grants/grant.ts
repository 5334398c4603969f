// A grant as the agent keeps it, and the text it is stored as. Pure; where the files lie is the registry's.
import { createHash } from 'node:crypto';
import { posix } from 'node:path';
import type { GpuGrant } from '../../api/gpu.ts';
import {
  COMPUTE_POLICIES,
  type ComputeChoice,
  type ContainerKind,
  MOST_WEIGHT,
  PRIORITIES,
} from '../../api/request.ts';
import { isObject, isWithin } from '../../common/json.ts';
import { modeNamed, SAYERS, type SaidMode } from '../../policy/mode.ts';
import { tenantGroup } from '../os/cgroup.ts';

/** Process that a plain grant was given to; the grant ends with it. */
export type ProcessOwner = {
  readonly pid: number;
  readonly startTicks: number;
  /** Its path in the unified hierarchy when the grant was made; empty: there is none. */
  readonly cgroup: string;
};

/** Pod whose container holds the grant; the grant ends when the kubelet gives the pod's volume back. */
export type PodOwner = {
  readonly podUid: string;
  /** Where the kubelet wants the volume: page and ledger lie below. */
  readonly target: string;
  readonly kind: ContainerKind;
};

export type Grant = {
  readonly id: string;
  /** Labels of its metrics: a pod's names, or for plain processes `local`, the grant's name and the command. */
  readonly namespace: string;
  readonly pod: string;
  readonly container: string;
  readonly createdMs: number;
  readonly gpus: readonly GpuGrant[];
  /** Off: nothing is refused; use is still counted and shown. */
  readonly isolateMemory: boolean;
  /** Absent: nothing was chosen. */
  readonly compute?: ComputeChoice;
  /** The pod's annotation that its compute was last changed by. */
  readonly computeOverride?: string;
  /** What was said of how far the agent goes when it is over; absent: nothing, so the node's mode holds. */
  readonly enforcement?: SaidMode | undefined;
  readonly owner: ProcessOwner | PodOwner;
};

export const isOfPod = (owner: Grant['owner']): owner is PodOwner => 'podUid' in owner;
export const podUidOf = ({ owner }: Pick<Grant, 'owner'>): string => (isOfPod(owner) ? owner.podUid : '');

const POD_GRANT_ID_LENGTH = 24;
/** A container of a pod has one grant, also after a restart of the agent. */
export const podGrantId = (podUid: string, container: string): string =>
  createHash('sha256').update(`${podUid}/${container}`).digest('hex').slice(0, POD_GRANT_ID_LENGTH);
/** By its form: those of plain processes are shorter. */
export const isPodGrantId = (id: string): boolean => id.length === POD_GRANT_ID_LENGTH;

/** Where its processes are if they have a group of their own; `cotenant run` makes it where that is permitted. */
export const groupOfGrant = ({ id, owner }: Pick<Grant, 'id' | 'owner'>): string | undefined =>
  isOfPod(owner) || owner.cgroup === '' ? undefined : posix.join(owner.cgroup, tenantGroup(id));

export const GRANT_ID = /^[a-z0-9]{6,32}$/;

/** Text that may stand in labels, file names and messages as it is. */
export function plainName(text: string): string {
  return text.replace(/[^A-Za-z0-9._-]+/g, '-').slice(0, 63) || 'unnamed';
}

/** `name`, or with a number behind it where that is taken: two tenants under one name would share their series. */
export function freeName(name: string, taken: (name: string) => boolean): string {
  if (!taken(name)) return name;
  for (let number = 2; ; number++) {
    const next = `${name.slice(0, 58)}-${number}`;
    if (!taken(next)) return next;
  }
}

export function formatGrant(grant: Grant): string {
  return `${JSON.stringify({ version: 1, ...grant }, null, 2)}\n`;
}

const isCount = (value: unknown): boolean => Number.isSafeInteger(value) && Number(value) >= 0;

const POD_UID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

function isOwner(owner: Partial<ProcessOwner & PodOwner> | undefined): boolean {
  if (owner?.podUid === undefined)
    return isCount(owner?.pid) && isCount(owner?.startTicks) && typeof owner?.cgroup === 'string';
  const { podUid, target, kind } = owner;
  if (!POD_UID.test(podUid) || !['init', 'sidecar', 'app'].includes(kind ?? '')) return false;
  return typeof target === 'string' && posix.isAbsolute(target) && posix.normalize(target) === target;
}

export function isChoice(value: unknown): value is ComputeChoice {
  if (!isObject(value)) return false;
  const { policy, priority, weight, ...others } = value;
  return (
    Object.keys(others).length === 0 &&
    (policy === undefined || COMPUTE_POLICIES.some((name) => name === policy)) &&
    (priority === undefined || PRIORITIES.some((name) => name === priority)) &&
    (weight === undefined || isWithin(weight, 1, MOST_WEIGHT))
  );
}

function isSaid(value: unknown): boolean {
  if (value === undefined) return true;
  return isObject(value) && modeNamed(value.mode) !== undefined && SAYERS.some((by) => by === value.by);
}

/** The stored grant, or what is wrong with the text (a file cut short by a crash must not stop the agent). */
export function parseGrant(text: string): Grant | { readonly wrong: string } {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    return { wrong: String(error) };
  }
  const grant = value as (Partial<Grant> & { version?: unknown }) | null;
  if (typeof grant !== 'object' || grant === null || grant.version !== 1) return { wrong: 'not a grant of version 1' };
  const texts = [grant.id, grant.namespace, grant.pod, grant.container];
  if (!texts.every((text) => typeof text === 'string') || !GRANT_ID.test(grant.id ?? ''))
    return { wrong: 'a name is missing' };
  const gpuGood = (gpu: Partial<GpuGrant>) =>
    typeof gpu?.gpuUuid === 'string' &&
    [gpu.memoryBytes, gpu.limitBytes, gpu.coresPercent, gpu.heldBytes ?? 0, gpu.coresLimitPercent ?? 0].every(
      (number) => isCount(number),
    );
  if (!Array.isArray(grant.gpus) || grant.gpus.length === 0 || !grant.gpus.every(gpuGood))
    return { wrong: 'its GPUs are not GPUs' };
  // Read as false it would be a grant that limits nothing.
  if (typeof grant.isolateMemory !== 'boolean') return { wrong: 'isolateMemory is missing' };
  if (!isChoice(grant.compute ?? {}) || typeof (grant.computeOverride ?? '') !== 'string')
    return { wrong: 'its compute is no choice' };
  if (!isSaid(grant.enforcement)) return { wrong: 'its enforcement is no mode' };
  if (!isCount(grant.createdMs)) return { wrong: 'its time is missing' };
  const { owner } = grant;
  if (!isOwner(owner)) return { wrong: 'its owner is missing' };
  const { version: _, ...rest } = grant;
  return rest as Grant;
}
