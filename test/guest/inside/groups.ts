// Creates cgroups v2 as the kubelet and runtimes do, and starts processes in them.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, readdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';

export const MOUNT = '/sys/fs/cgroup';
const CONTROLLERS = '+cpu +memory +pids';

/** Creates a cgroup with limits, like a container's: its controllers are enabled in every cgroup above it. */
export function makeGroup(path: string): void {
  const parts = path.split('/');
  const above = parts.map((_, index) => parts.slice(0, index).join('/'));
  mkdirSync(join(MOUNT, path), { recursive: true });
  for (const folder of above) writeFileSync(join(MOUNT, folder, 'cgroup.subtree_control'), CONTROLLERS);
  writeFileSync(join(MOUNT, path, 'memory.max'), '256M');
  writeFileSync(join(MOUNT, path, 'pids.max'), '64');
}

/** A cgroup below a container's, as the container itself creates one: the cgroup in between must then be empty. */
export const makeInner = (path: string): void => void mkdirSync(join(MOUNT, path), { recursive: true });

export type Started = {
  readonly pid: number;
  /** Its output so far. */
  readonly said: () => string;
  readonly isAlive: () => boolean;
  readonly ended: Promise<unknown>;
};

/** Starts a shell script and keeps its output. */
export function start(script: string): Started {
  const child = spawn('/bin/sh', ['-c', script], { stdio: ['ignore', 'pipe', 'inherit'] });
  let said = '';
  child.stdout.on('data', (part: Buffer) => {
    said += part.toString();
  });
  return {
    pid: child.pid ?? 0,
    said: () => said,
    isAlive: () => child.exitCode === null && child.signalCode === null,
    ended: once(child, 'exit'),
  };
}

/** The same in a cgroup; resolves when it is in there. `exec` in the script keeps the PID. */
export async function startIn(path: string, script: string): Promise<Started> {
  const started = start(`echo $$ > ${MOUNT}/${path}/cgroup.procs && echo in && ${script}`);
  await until(() => started.said().startsWith('in\n') || !started.isAlive(), `a process is in ${path}`);
  if (!started.isAlive()) throw new Error(`nothing starts in ${path}`);
  return started;
}

export const sleepIn = (path: string): Promise<Started> => startIn(path, 'exec sleep 1000');

export const cgroupOf = (pid: number): string => readFileSync(`/proc/${pid}/cgroup`, 'utf8');

/** Whether a process is in the cgroup, or in one below it. */
export const isPopulated = (path: string): boolean =>
  readFileSync(join(MOUNT, path, 'cgroup.events'), 'utf8').includes('populated 1');

/** Kills all processes in a cgroup and removes it with all cgroups below it. */
export async function removeGroup(path: string): Promise<void> {
  writeFileSync(join(MOUNT, path, 'cgroup.kill'), '1');
  await until(() => !isPopulated(path), `${path} is empty`);
  const remove = (folder: string): void => {
    for (const entry of readdirSync(folder, { withFileTypes: true })) {
      if (entry.isDirectory()) remove(join(folder, entry.name));
    }
    rmdirSync(folder);
  };
  remove(join(MOUNT, path));
}

export async function until(good: () => boolean, what: string, ms = 60_000): Promise<void> {
  const deadline = Date.now() + ms;
  while (!good()) {
    if (Date.now() > deadline) throw new Error(`not within ${ms} ms: ${what}`);
    await delay(20);
  }
}
