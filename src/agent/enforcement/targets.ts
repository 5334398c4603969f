// Whom a stop hits: all processes of one grant, found anew at the moment of acting. Owns the look-up in /proc and the
// cgroup tree; each process is named by pid, start time and cgroup, and checked once more when it is signalled.
import { existsSync, readdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { isInGroup } from '../attribution/cgroup.ts';
import { type Grant, groupOfGrant } from '../grants/grant.ts';
import type { Native } from '../native.ts';

export type Target = {
  readonly pid: number;
  readonly startTicks: number;
  readonly command: string;
  readonly cgroup: string;
};

export type Signalled = Target & { readonly result: string };

/** Where the unified hierarchy is mounted, or undefined. */
export function unifiedMount(): string | undefined {
  const line = readFileSync('/proc/self/mountinfo', 'utf8')
    .split('\n')
    .find((entry) => / - cgroup2 /.test(entry));
  return line?.split(' ')[4];
}

/** The processes of a grant now: in its own group, or descended from the process it was given to. Never that process. */
export function findTargets(grant: Grant, native: Native, known: readonly Target[]): Target[] {
  const facts = new Map<number, Target & { parent: number }>();
  for (const entry of readdirSync('/proc')) {
    if (!/^\d+$/.test(entry)) continue;
    const pid = Number(entry);
    const process = native.readProcess(pid);
    if (!process || process.state === 'Z') continue;
    const { startTicks, command, cgroup, parent } = process;
    facts.set(pid, { pid, startTicks, command, cgroup, parent });
  }
  const root = facts.get(grant.owner.pid);
  const rootLives = root?.startTicks === grant.owner.startTicks;
  const group = groupOfGrant(grant);
  const knownKeys = new Set(known.map((target) => `${target.pid}@${target.startTicks}`));
  const belongs = (pid: number, depth = 0): boolean => {
    const process = facts.get(pid);
    if (!process || depth > 64) return false;
    if (group !== undefined && isInGroup(process.cgroup, group)) return true;
    if (knownKeys.has(`${pid}@${process.startTicks}`)) return true;
    if (rootLives && process.parent === grant.owner.pid) return true;
    return process.parent > 1 && belongs(process.parent, depth + 1);
  };
  return [...facts.values()]
    .filter(
      (process) => process.pid !== grant.owner.pid && process.pid !== globalThis.process.pid && belongs(process.pid),
    )
    .map(({ pid, startTicks, command, cgroup }) => ({ pid, startTicks, command, cgroup }));
}

export function signalTargets(targets: readonly Target[], native: Native, signal: number): Signalled[] {
  return targets.map((target) => ({
    ...target,
    result: native.signalExact(target.pid, target.startTicks, target.cgroup, signal),
  }));
}

/** The grant's own group in the unified hierarchy, if its processes are in one: killed as a whole, without a race. */
export function groupOf(grant: Grant, targets: readonly Target[], mount: string | undefined): string | undefined {
  const group = groupOfGrant(grant);
  if (mount === undefined || group === undefined) return undefined;
  if (!targets.some((target) => isInGroup(target.cgroup, group))) return undefined;
  const folder = join(mount, group);
  return existsSync(join(folder, 'cgroup.kill')) ? folder : undefined;
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

export function killGroup(folder: string): string {
  try {
    writeFileSync(join(folder, 'cgroup.kill'), '1');
    return 'sent';
  } catch (error) {
    return `refused: ${(error as Error).message}`;
  }
}
