// Whom a stop hits: all processes of one grant, found anew at the moment of acting. Owns the look-up in /proc and the
// cgroup tree; each process is named by pid, start time and cgroup, and checked once more when it is signaled.
import { existsSync, readdirSync, rmdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type ContainerIndex, WHOLE_POD } from '../attribution/container-index.ts';
import { type Grant, groupOfGrant, isOfPod, type PodOwner, type ProcessOwner } from '../grants/grant.ts';
import type { Native } from '../os/addon.ts';
import { containerGroup, isInGroup, knownOwnerOf } from '../os/cgroup.ts';

export type Target = {
  readonly pid: number;
  readonly startTicks: number;
  readonly command: string;
  readonly cgroup: string;
  /** Its first thread has ended and others go on, whom the kernel passes over when it kills their group. */
  readonly leaderless?: true;
};

const SIGKILL = 9;

export type Signaled = Target & { readonly result: string };

type Facts = Target & { readonly parent: number; readonly namespacePid?: number | undefined };

function allProcesses(native: Native): Map<number, Facts> {
  const facts = new Map<number, Facts>();
  for (const entry of readdirSync('/proc')) {
    if (!/^\d+$/.test(entry)) continue;
    const pid = Number(entry);
    const process = native.readProcess(pid);
    if (!process || process.ended) continue;
    const { startTicks, command, cgroup, parent, namespacePid, leaderless } = process;
    facts.set(pid, { pid, startTicks, command, cgroup, parent, namespacePid, ...(leaderless && { leaderless }) });
  }
  return facts;
}

/** Names a process for good. */
export const keyOf = ({ pid, startTicks }: Pick<Target, 'pid' | 'startTicks'>): string => `${pid}@${startTicks}`;
const plain = ({ pid, startTicks, command, cgroup, leaderless }: Facts): Target => ({
  pid,
  startTicks,
  command,
  cgroup,
  ...(leaderless && { leaderless }),
});

/** Whom a stop of the grant hits now. Never this process. */
export function findTargets(
  grant: Grant,
  native: Native,
  known: readonly Target[],
  containers?: Pick<ContainerIndex, 'nameOf'>,
): Target[] {
  const facts = allProcesses(native);
  const knownKeys = new Set(known.map(keyOf));
  const { owner } = grant;
  const found = isOfPod(owner)
    ? inContainer(owner, grant.container, facts, knownKeys, containers)
    : inTree(grant, owner, facts, knownKeys);
  return found.filter(({ pid }) => pid !== globalThis.process.pid).map(plain);
}

const order = ({ namespacePid = Number.MAX_SAFE_INTEGER }: Facts): number => namespacePid;

/** The container as a whole, its first process before the others: with it the kernel ends all of its PID namespace. */
function inContainer(
  owner: PodOwner,
  container: string,
  facts: ReadonlyMap<number, Facts>,
  known: ReadonlySet<string>,
  containers: Pick<ContainerIndex, 'nameOf'> | undefined,
): Facts[] {
  const podOf = (id: string) => containers?.nameOf(id)?.podUid;
  const belongs = (process: Facts): boolean => {
    const { containerId, podUid } = knownOwnerOf(process.cgroup, podOf);
    if (podUid !== owner.podUid || containerId === undefined) return known.has(keyOf(process));
    const name = containers?.nameOf(containerId);
    if (name?.podUid !== owner.podUid) return false;
    // A sandboxed runtime's process stands for its whole pod: whose grant that is, the sample told.
    return name.container === WHOLE_POD ? known.has(keyOf(process)) : name.container === container;
  };
  return [...facts.values()].filter(belongs).toSorted((a, b) => order(a) - order(b));
}

/** In the grant's own group, or descended from the process it was given to. Never that process. */
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

/** Never throws: that one cannot be signaled must not keep untold who was. */
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

/**
 * Kills them: by the group of the container, or of the plain grant, where a process is in one, which leaves no gap for a fork,
 * and each other by itself, as those that the kernel passes over in a group. `whole`: nobody was left to single signals.
 */
export function killTargets(
  grant: Grant,
  targets: readonly Target[],
  native: Native,
  mount: string | undefined,
  containers?: Pick<ContainerIndex, 'nameOf'>,
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

/** Folder of the group that is the grant's alone and that the process is in or below, if the kernel can kill it as one. */
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

/** A process that was seen in the container may have gone to another one, whose group is not ours to kill. */
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

/** Takes the grant's empty group away, where its owner could not do it any more. */
export function removeGroup(grant: Grant, mount: string | undefined): void {
  const group = groupOfGrant(grant);
  if (mount === undefined || group === undefined) return;
  try {
    rmdirSync(join(mount, group));
  } catch {
    // It was never made, is gone, or somebody is in it: then it is not ours to remove.
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
