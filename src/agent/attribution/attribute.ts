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

/** Processes that earlier samples attributed to a grant, by PID. */
export type KnownOwners = ReadonlyMap<number, { readonly id: string; readonly startTicks: number }>;

type AttributionFacts = {
  readonly roots: readonly GrantRoot[];
  readonly grantIds: ReadonlySet<string>;
  readonly known: KnownOwners;
  readonly pods: PodContainers;
  /** The grant whose folder is mounted in the container of this process; asked only where no pod is known. */
  readonly mountedIn?: (pid: number) => string | undefined;
  /** The PID of an ancestor may have been reused by a process that has no part in the grant. */
  readonly isAlive: (pid: number, startTicks: number) => boolean;
};

/**
 * A process of a grant stays with it, also after its parents have ended and its ancestry no longer shows the grant, and
 * so do its children.
 */
export function ownerOfProcess(process: SampledProcess, facts: AttributionFacts): Owner {
  const { roots, grantIds, known, pods, mountedIn, isAlive } = facts;
  if (process.startTicks === undefined) return { kind: 'unknown', reason: 'gone' };
  const before = known.get(process.pid);
  if (before?.startTicks === process.startTicks && grantIds.has(before.id)) return { kind: 'grant', id: before.id };
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
    const ancestor = known.get(pid);
    if (ancestor === undefined || !grantIds.has(ancestor.id)) continue;
    const { id, startTicks } = ancestor;
    if (process.startTicks >= startTicks && isAlive(pid, startTicks)) return { kind: 'grant', id };
  }
  const { containerId, podUid } = knownOwnerOf(process.cgroup, (id) => pods.nameOf(id)?.podUid);
  if (podUid === undefined && mountedIn !== undefined) {
    // A process may leave its mounts in namespaces of its own; the first process of its container cannot.
    for (const pid of [process.pid, ...(process.ancestors ?? [])]) {
      const id = mountedIn(pid);
      if (id !== undefined) return { kind: 'grant', id };
    }
  }
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

/**
 * The results after a sample: its processes, so that a reused PID is forgotten with its first owner; and earlier ones
 * of grants without data in it, as long as they live: a process that is missing for a moment must not lose its grant.
 */
export function remember(
  owners: ReadonlyMap<SampledProcess, Owner>,
  before: KnownOwners,
  hasNoData: (grantId: string) => boolean,
  isAlive: AttributionFacts['isAlive'],
): KnownOwners {
  const known = new Map<number, { readonly id: string; readonly startTicks: number }>();
  for (const [{ pid, startTicks }, owner] of owners) {
    if (owner.kind !== 'grant' || startTicks === undefined) continue;
    const last = before.get(pid);
    known.set(pid, last?.id === owner.id && last.startTicks === startTicks ? last : { id: owner.id, startTicks });
  }
  for (const [pid, entry] of before) {
    if (known.has(pid) || !hasNoData(entry.id)) continue;
    if (!owners.keys().some((process) => process.pid === pid) && isAlive(pid, entry.startTicks)) known.set(pid, entry);
  }
  return known;
}
