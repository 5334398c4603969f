// Whom a stop hits: all processes of one grant, found anew at the moment of acting. Owns the look-up in /proc and the
// cgroup tree; each process is named by pid, start time and cgroup, and checked once more when it is signalled.
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { ownerOf, tenantGroup } from '../attribution/cgroup.ts';
import type { Grant } from '../grants/grant.ts';
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
  const knownKeys = new Set(known.map((target) => `${target.pid}@${target.startTicks}`));
  const belongs = (pid: number, depth = 0): boolean => {
    const process = facts.get(pid);
    if (!process || depth > 64) return false;
    if (ownerOf(process.cgroup).tenant === grant.id) return true;
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
  if (!mount) return undefined;
  for (const target of targets) {
    const unified = /^0::(.*)$/m.exec(target.cgroup)?.[1];
    if (!unified || basename(unified) !== tenantGroup(grant.id)) continue;
    const folder = join(mount, unified);
    if (existsSync(join(folder, 'cgroup.kill'))) return folder;
  }
  return undefined;
}

export function killGroup(folder: string): string {
  try {
    writeFileSync(join(folder, 'cgroup.kill'), '1');
    return 'sent';
  } catch (error) {
    return `refused: ${(error as Error).message}`;
  }
}
