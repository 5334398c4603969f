// The processes of a container by this machine's PIDs, to inspect and to signal: a test cluster has no PID namespace of
// its own.
import { readFileSync } from 'node:fs';
import type { Bed } from '../bed/bed.ts';
import { containerProcesses } from '../bed/cgroups.ts';
import { containerOf, type Pod } from './pods.ts';

function idOf(pod: Pod, container: string): string {
  const id = containerOf(pod, container)?.containerID?.replace(/^containerd:\/\//, '');
  if (id === undefined) throw new Error(`${pod.metadata.name} has no container ${container} that ever ran`);
  return id;
}

/** All processes, including children. */
export const processesOf = (bed: Bed, pod: Pod, container = 'main'): readonly number[] =>
  containerProcesses(bed.cgroup, idOf(pod, container));

/** The first process, whose end is the container's. */
export function firstProcessOf(bed: Bed, pod: Pod, container = 'main'): number {
  const id = idOf(pod, container);
  const { out } = bed.ctr('tasks', 'ls');
  const pid = out
    .split('\n')
    .find((line) => line.startsWith(id))
    ?.split(/\s+/)[1];
  if (pid === undefined) throw new Error(`container ${container} of ${pod.metadata.name} does not run`);
  return Number(pid);
}

/** Sends a signal to every process of a container: SIGKILL ends it, SIGSTOP freezes it, SIGCONT resumes it. */
export function signalContainer(bed: Bed, pod: Pod, container: string, signal: NodeJS.Signals): void {
  const pids = processesOf(bed, pod, container);
  if (pids.length === 0) throw new Error(`container ${container} of ${pod.metadata.name} has no process`);
  for (const pid of pids) {
    try {
      process.kill(pid, signal);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error; // gone with the one before
    }
  }
}

export type Rights = {
  /** Real, effective, saved and file system user. */
  readonly users: readonly number[];
  readonly groups: readonly number[];
  /** Union of all capability sets: inheritable, permitted, effective, bounding, ambient. */
  readonly capabilities: bigint;
  readonly noNewPrivileges: boolean;
  readonly seccomp: 'off' | 'strict' | 'filter';
  readonly readOnlyRoot: boolean;
};

/** What the kernel allows a process. */
export function rightsOf(pid: number): Rights {
  const status = readFileSync(`/proc/${pid}/status`, 'utf8');
  const value = (name: string): string => {
    const found = new RegExp(`^${name}:\\s*(.*)$`, 'm').exec(status)?.[1];
    if (found === undefined) throw new Error(`/proc/${pid}/status tells no ${name}`);
    return found;
  };
  const numbers = (name: string) => value(name).split(/\s+/).map(Number);
  const modes = ['off', 'strict', 'filter'] as const;
  const seccomp = modes[Number(value('Seccomp'))];
  if (seccomp === undefined) throw new Error(`seccomp mode ${value('Seccomp')}`);
  // mountinfo: id, parent, device, root, mount point, options; the last mount is on top.
  const root = readFileSync(`/proc/${pid}/mountinfo`, 'utf8')
    .split('\n')
    .map((line) => line.split(' '))
    .findLast((fields) => fields[4] === '/');
  return {
    users: numbers('Uid'),
    groups: numbers('Gid'),
    capabilities: ['CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb'].reduce(
      (all, name) => all | BigInt(`0x${value(name)}`),
      0n,
    ),
    noNewPrivileges: value('NoNewPrivs') === '1',
    seccomp,
    readOnlyRoot: root?.[5]?.split(',').includes('ro') === true,
  };
}
