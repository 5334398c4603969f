// The cgroups of a test cluster: one of its own in every hierarchy, created before the kubelet needs it and removed,
// with its processes, when the cluster ends. Leftovers of a killed test are removed by the next one.
import { existsSync, mkdirSync, readdirSync, readFileSync, rmdirSync } from 'node:fs';
import { basename, join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';

const MOUNT = '/sys/fs/cgroup';
const NAME = /^cotenant-bed-(\d+)$/;

export const bedCgroup = (pid: number): string => `cotenant-bed-${pid}`;
const hierarchies = (): string[] =>
  existsSync(join(MOUNT, 'cgroup.controllers')) ? [MOUNT] : readdirSync(MOUNT).map((name) => join(MOUNT, name));

/** Cgroup of the cluster's own programs and what they leave behind (a container's shim outlives containerd). */
export const systemGroup = (name: string): string =>
  join(existsSync(join(MOUNT, 'unified')) ? join(MOUNT, 'unified') : MOUNT, name, 'system');

export function makeCgroups(name: string): void {
  for (const hierarchy of hierarchies()) mkdirSync(join(hierarchy, name), { recursive: true });
  mkdirSync(systemGroup(name), { recursive: true });
}

function below(folder: string): string[] {
  if (!existsSync(folder)) return [];
  const inner = readdirSync(folder, { withFileTypes: true }).filter((entry) => entry.isDirectory());
  return [...inner.flatMap((entry) => below(join(folder, entry.name))), folder];
}

const processesIn = (folder: string): number[] => {
  try {
    return readFileSync(join(folder, 'cgroup.procs'), 'utf8').split('\n').filter(Boolean).map(Number);
  } catch {
    return []; // it went meanwhile
  }
};

/** Kills all processes in the cgroups of a test cluster and removes the cgroups; throws if one remains. */
export async function clearCgroups(name: string): Promise<void> {
  for (let tries = 0; ; tries += 1) {
    const folders = hierarchies().flatMap((hierarchy) => below(join(hierarchy, name)));
    for (const pid of new Set(folders.flatMap(processesIn))) {
      try {
        process.kill(pid, 'SIGKILL');
      } catch {
        // it has ended meanwhile
      }
    }
    for (const folder of folders) {
      try {
        rmdirSync(folder);
      } catch (error) {
        if (tries >= 100) throw error;
      }
    }
    if (!hierarchies().some((hierarchy) => existsSync(join(hierarchy, name)))) return;
    await delay(100);
  }
}

/** Processes of a container, by the ID that the runtime gave it. */
export const containerProcesses = (name: string, id: string): number[] => {
  const folders = hierarchies().flatMap((hierarchy) => below(join(hierarchy, name)));
  return [...new Set(folders.filter((folder) => basename(folder) === id).flatMap(processesIn))];
};

/** Processes of a test cluster: its own programs with what they left behind, and those in containers. */
export function programsOf(name: string): {
  readonly system: readonly number[];
  readonly containers: readonly number[];
} {
  const system = new Set(processesIn(systemGroup(name)));
  const all = hierarchies().flatMap((hierarchy) => below(join(hierarchy, name)).flatMap(processesIn));
  return { system: [...system], containers: [...new Set(all)].filter((pid) => !system.has(pid)) };
}

/** True if no other test cluster is on this machine. */
export const isAlone = (name: string): boolean =>
  hierarchies().every((hierarchy) => readdirSync(hierarchy).every((other) => other === name || !NAME.test(other)));

/** Removes the cgroups of test clusters whose process is gone. */
export async function clearAbandoned(): Promise<void> {
  const names = new Set(hierarchies().flatMap((hierarchy) => readdirSync(hierarchy)));
  for (const name of names) {
    const pid = NAME.exec(name)?.[1];
    if (pid !== undefined && !existsSync(`/proc/${pid}`)) await clearCgroups(name);
  }
}
