// Finds and signals the processes of one grant at the moment of a stop, through /proc, pidfds and cgroups. Each process
// is identified by PID, start time and cgroup, and checked again when it is signaled.
import { existsSync, readdirSync, rmdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type ContainerIndex, type ContainerName, WHOLE_POD } from '../attribution/container-index.ts';
import type { GrantMounts } from '../attribution/grant-mounts.ts';
import {
  type Grant,
  groupOfGrant,
  isOfContainers,
  isOfPod,
  type PodOwner,
  type ProcessOwner,
} from '../grants/grant.ts';
import type { Native, ProcessFacts } from '../os/addon.ts';
import { containerGroup, isInGroup, knownOwnerOf } from '../os/cgroup.ts';

export type Target = {
  readonly pid: number;
  readonly startTicks: number;
  readonly command: string;
  readonly cgroup: string;
  /** Its first thread has ended and others run: killing its cgroup does not reach it. */
  readonly leaderless?: boolean;
};

const SIGKILL = 9;

export type Signaled = Target & { readonly result: string };

type Facts = ProcessFacts & { readonly pid: number };

function allProcesses(native: Native): Map<number, Facts> {
  const facts = new Map<number, Facts>();
  for (const entry of readdirSync('/proc')) {
    if (!/^\d+$/.test(entry)) continue;
    const process = native.readProcess(Number(entry));
    if (process && !process.ended) facts.set(Number(entry), { ...process, pid: Number(entry) });
  }
  return facts;
}

/** Identifies a process also after its PID is reused. */
export const keyOf = ({ pid, startTicks }: Pick<Target, 'pid' | 'startTicks'>): string => `${pid}@${startTicks}`;

/** The processes that a stop of the grant signals now. Never this process. */
export function findTargets(
  grant: Grant,
  native: Native,
  known: readonly Target[],
  containers?: Pick<ContainerIndex, 'nameOf'>,
  mounts?: Pick<GrantMounts, 'processesWith'>,
): Target[] {
  const facts = allProcesses(native);
  const knownKeys = new Set(known.map(keyOf));
  const { owner } = grant;
  let found: Facts[];
  if (isOfPod(owner))
    found = inContainer({ podUid: owner.podUid, container: grant.container }, facts, knownKeys, containers);
  else if (isOfContainers(owner)) found = belowMounts(new Set(mounts?.processesWith(grant.id)), facts, knownKeys);
  else found = inTree(grant, owner, facts, knownKeys);
  return found
    .filter(({ pid }) => pid !== process.pid)
    .map(({ pid, startTicks, command, cgroup, leaderless }) => ({ pid, startTicks, command, cgroup, leaderless }));
}

const order = ({ namespacePid = Number.MAX_SAFE_INTEGER }: Facts): number => namespacePid;

/** All processes of the container, its first one before the others: with that the kernel ends its whole PID
 * namespace. */
function inContainer(
  { podUid, container }: ContainerName,
  facts: ReadonlyMap<number, Facts>,
  known: ReadonlySet<string>,
  containers: Pick<ContainerIndex, 'nameOf'> | undefined,
): Facts[] {
  const podOf = (id: string) => containers?.nameOf(id)?.podUid;
  const belongs = (process: Facts): boolean => {
    const { containerId, podUid: ofPod } = knownOwnerOf(process.cgroup, podOf);
    if (ofPod !== podUid || containerId === undefined) return known.has(keyOf(process));
    const name = containers?.nameOf(containerId);
    if (name?.podUid !== podUid) return false;
    // The process of a sandboxed runtime belongs to its whole pod: the sample attributed it to a grant.
    return name.container === WHOLE_POD ? known.has(keyOf(process)) : name.container === container;
  };
  return [...facts.values()].filter(belongs).toSorted((a, b) => order(a) - order(b));
}

/** Processes with the grant's folder mounted and their descendants, the first of each container before the others. */
function belowMounts(
  holders: ReadonlySet<number>,
  facts: ReadonlyMap<number, Facts>,
  known: ReadonlySet<string>,
): Facts[] {
  const belongs = (pid: number, depth = 0): boolean => {
    const process = facts.get(pid);
    if (!process || depth > 64) return false;
    return holders.has(pid) || known.has(keyOf(process)) || (process.parent > 1 && belongs(process.parent, depth + 1));
  };
  return [...facts.values()].filter(({ pid }) => belongs(pid)).toSorted((a, b) => order(a) - order(b));
}

/** In the grant's own cgroup, or descended from its owner. Never the owner itself. */
function inTree(
  grant: Grant,
  owner: ProcessOwner,
  facts: ReadonlyMap<number, Facts>,
  knownKeys: ReadonlySet<string>,
): Facts[] {
  const root = facts.get(owner.pid);
  const rootLives = root?.startTicks === owner.startTicks;
  const group = groupOfGrant(grant);
  const belongs = (pid: number, depth = 0): boolean => {
    const process = facts.get(pid);
    if (!process || depth > 64) return false;
    if (group !== undefined && isInGroup(process.cgroup, group)) return true;
    if (knownKeys.has(keyOf(process))) return true;
    if (rootLives && process.parent === owner.pid) return true;
    return process.parent > 1 && belongs(process.parent, depth + 1);
  };
  return [...facts.values()].filter((process) => process.pid !== owner.pid && belongs(process.pid));
}

/** Never throws: a process that cannot be signaled must not hide the results of the others. */
function signaled(target: Target, native: Native, signal: number): Signaled {
  try {
    return { ...target, result: native.signalExact(target.pid, target.startTicks, target.cgroup, signal) };
  } catch (error) {
    return { ...target, result: `refused: ${(error as Error).message}` };
  }
}

export function signalTargets(targets: readonly Target[], native: Native, signal: number): Signaled[] {
  return targets.map((target) => signaled(target, native, signal));
}

type KillMeans = {
  readonly native: Native;
  /** Of the unified hierarchy. */
  readonly mount: string | undefined;
  readonly containers?: Pick<ContainerIndex, 'nameOf'> | undefined;
};

/**
 * Kills them: by the cgroup of the container or process grant, which leaves no gap for a fork, and each process outside
 * of it, or not reached by it, with its own signal. `whole`: the cgroup covered all of them.
 */
export function killTargets(
  grant: Grant,
  targets: readonly Target[],
  { native, mount, containers }: KillMeans,
): { readonly hit: Signaled[]; readonly whole: boolean } {
  const killed = new Map<string, string>();
  let whole = true;
  const hit = targets.map((target) => {
    const folder = groupOf(grant, target, mount, containers);
    if (folder !== undefined) {
      const result = killed.get(folder) ?? killGroup(folder);
      killed.set(folder, result);
      if (result === 'sent' && !target.leaderless) return { ...target, result };
    }
    whole = false;
    return signaled(target, native, SIGKILL);
  });
  return { hit, whole };
}

/** Folder of the cgroup that has only processes of the grant and that this process is in, if it can be killed as a
 * whole. */
export function groupOf(
  grant: Grant,
  { cgroup }: Target,
  mount: string | undefined,
  containers?: Pick<ContainerIndex, 'nameOf'>,
): string | undefined {
  const { owner, container } = grant;
  const group = isOfPod(owner) ? groupOfContainer(owner, container, cgroup, containers) : groupOfGrant(grant);
  if (mount === undefined || group === undefined || !isInGroup(cgroup, group)) return undefined;
  const folder = join(mount, group);
  return existsSync(join(folder, 'cgroup.kill')) ? folder : undefined;
}

/** A process that was sampled in the container may have moved to another one, whose cgroup must not be killed. */
function groupOfContainer(
  owner: PodOwner,
  container: string,
  cgroup: string,
  containers: Pick<ContainerIndex, 'nameOf'> | undefined,
): string | undefined {
  const { containerId } = knownOwnerOf(cgroup, (id) => containers?.nameOf(id)?.podUid);
  const name = containerId === undefined ? undefined : containers?.nameOf(containerId);
  const isIts = name?.podUid === owner.podUid && name.container === container;
  return isIts && containerId !== undefined ? containerGroup(cgroup, containerId) : undefined;
}

/** Removes the grant's empty cgroup, where its owner ended before it could. */
export function removeGroup(grant: Grant, mount: string | undefined): void {
  const group = groupOfGrant(grant);
  if (mount === undefined || group === undefined) return;
  try {
    rmdirSync(join(mount, group));
  } catch {
    // It was never made, is removed already, or has processes.
  }
}

function killGroup(folder: string): string {
  try {
    writeFileSync(join(folder, 'cgroup.kill'), '1');
    return 'sent';
  } catch (error) {
    return `refused: ${(error as Error).message}`;
  }
}
