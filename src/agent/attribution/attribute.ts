// Attributes a process to a grant or container, from the process, the grants and earlier results. Pure. Never guesses:
// a process without evidence stays unattributed.

import { isInGroup, knownOwnerOf } from '../os/cgroup.ts';
import type { SampledProcess } from '../sampling/sample.ts';
import { WHOLE_POD } from './container-index.ts';

export type Owner =
  | { readonly kind: 'grant'; readonly id: string }
  /** In a container without a grant; without an id: only its pod is known. */
  | { readonly kind: 'container'; readonly containerId: string; readonly podUid?: string }
  | { readonly kind: 'host' }
  /** Unknown; `reason` is a label of cotenant_exporter_attribution_failures_total. */
  | { readonly kind: 'unknown'; readonly reason: 'gone' | 'no_cgroup' | 'container_not_known' };

/** The owner of a process grant: its descendants, and the processes in the grant's cgroup, belong to the grant. */
export type GrantRoot = {
  readonly id: string;
  readonly pid: number;
  readonly startTicks: number;
  /** When it ends, its children get another parent: an ancestor with the PID of a dead root is another process. */
  readonly alive: boolean;
  readonly group?: string | undefined;
};

/** Containers of pods with a grant on this node. */
export type PodContainers = {
  /** Which container of its pod an id names; undefined while that is unknown. */
  nameOf(containerId: string): { readonly podUid: string; readonly container: string } | undefined;
  /** Its grant, if that container has one. */
  grantOf(podUid: string, container: string): string | undefined;
  /** The grants of the pod's containers. */
  grantsOf(podUid: string): readonly string[];
};
export const NO_PODS: PodContainers = {
  nameOf: () => undefined,
  grantOf: () => undefined,
  grantsOf: () => [],
};

/** Identifies a process, also after its PID is reused. */
export const processKey = (pid: number, startTicks: number): string => `${pid}@${startTicks}`;

/** Results of earlier samples. */
export type KnownOwners = {
  readonly byProcess: ReadonlyMap<string, Owner>;
  /** Processes with a grant, by PID alone: for ancestors, which are sampled without start times. */
  readonly grantByPid: ReadonlyMap<number, { readonly id: string; readonly startTicks: number }>;
};
export const NO_KNOWN_OWNERS: KnownOwners = { byProcess: new Map(), grantByPid: new Map() };

/**
 * A process of a grant stays with it, also after its parents have ended and its ancestry no longer shows the grant, and
 * so do its children. `isAlive`: the PID of an ancestor may have been reused by a process that has no part in the
 * grant.
 */
export function ownerOfProcess(
  process: SampledProcess,
  roots: readonly GrantRoot[],
  grantIds: ReadonlySet<string>,
  known: KnownOwners,
  pods: PodContainers,
  isAlive: (pid: number, startTicks: number) => boolean,
): Owner {
  if (process.startTicks === undefined) return { kind: 'unknown', reason: 'gone' };
  const before = known.byProcess.get(processKey(process.pid, process.startTicks));
  if (before?.kind === 'grant' && grantIds.has(before.id)) return before;
  if (process.cgroup === undefined || process.cgroup === '') return { kind: 'unknown', reason: 'no_cgroup' };
  for (const { id, group } of roots) {
    if (group !== undefined && isInGroup(process.cgroup, group)) return { kind: 'grant', id };
  }
  for (const root of roots) {
    // Another process of the root's pid is not the root, and a process cannot be older than its ancestor.
    const isRoot = process.pid === root.pid && process.startTicks === root.startTicks;
    // Liveness is checked last, because it reads /proc.
    const descends =
      (process.ancestors ?? []).includes(root.pid) && process.startTicks >= root.startTicks && root.alive;
    if (isRoot || descends) return { kind: 'grant', id: root.id };
  }
  for (const pid of process.ancestors ?? []) {
    const ancestor = known.grantByPid.get(pid);
    if (ancestor === undefined || !grantIds.has(ancestor.id)) continue;
    const { id, startTicks } = ancestor;
    if (process.startTicks >= startTicks && isAlive(pid, startTicks)) return { kind: 'grant', id };
  }
  const { containerId, podUid } = knownOwnerOf(process.cgroup, (id) => pods.nameOf(id)?.podUid);
  const named = containerId === undefined ? undefined : pods.nameOf(containerId);
  // The process of a sandboxed runtime belongs to its whole pod.
  if (
    podUid !== undefined &&
    (containerId === undefined || (named?.container === WHOLE_POD && named.podUid === podUid))
  )
    return ofPod(podUid, pods);
  if (containerId === undefined) return { kind: 'host' };
  // The cgroup path names the pod, the runtime the container; where they disagree, neither is used.
  const id = named && named.podUid === podUid ? pods.grantOf(named.podUid, named.container) : undefined;
  if (id !== undefined) return { kind: 'grant', id };
  // Just after its start the runtime has not named the container yet; it must not be reported as one without a grant.
  if (named === undefined && podUid !== undefined && pods.grantsOf(podUid).length > 0)
    return { kind: 'unknown', reason: 'container_not_known' };
  return { kind: 'container', containerId, ...(podUid === undefined ? {} : { podUid }) };
}

/** If only one container of a pod has a grant, no other one has a GPU. */
function ofPod(podUid: string, pods: PodContainers): Owner {
  const [id, ...others] = pods.grantsOf(podUid);
  if (others.length > 0) return { kind: 'unknown', reason: 'container_not_known' };
  return id === undefined ? { kind: 'container', containerId: '', podUid } : { kind: 'grant', id };
}

/** The results after a sample: only processes that were in it, so that a reused pid is forgotten with its first
 * owner. */
export function remember(
  processes: readonly SampledProcess[],
  ownerOf: (process: SampledProcess) => Owner,
): KnownOwners {
  const byProcess = new Map<string, Owner>();
  const grantByPid = new Map<number, { id: string; startTicks: number }>();
  for (const process of processes) {
    if (process.startTicks === undefined || process.gone) continue;
    const owner = ownerOf(process);
    byProcess.set(processKey(process.pid, process.startTicks), owner);
    if (owner.kind === 'grant') grantByPid.set(process.pid, { id: owner.id, startTicks: process.startTicks });
  }
  return { byProcess, grantByPid };
}

/**
 * The results after a sample, with earlier results for grants without data in it, as long as those processes live: a
 * process that is missing for a moment must not lose its grant.
 */
export function stillKnown(
  shown: KnownOwners,
  before: KnownOwners,
  hasNoData: (grantId: string) => boolean,
  isAlive: (pid: number, startTicks: number) => boolean,
): KnownOwners {
  const byProcess = new Map(shown.byProcess);
  const grantByPid = new Map(shown.grantByPid);
  for (const [key, owner] of before.byProcess) {
    if (owner.kind !== 'grant' || byProcess.has(key) || !hasNoData(owner.id)) continue;
    const [pid = Number.NaN, startTicks = Number.NaN] = key.split('@').map(Number);
    if (!isAlive(pid, startTicks)) continue;
    byProcess.set(key, owner);
    grantByPid.set(pid, { id: owner.id, startTicks });
  }
  return { byProcess, grantByPid };
}
