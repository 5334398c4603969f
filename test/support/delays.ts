// How long processes were ready to run and the machine gave them no processor: what a test of shares in real time cannot hold
// against those that divide them.
import { readdirSync, readFileSync } from 'node:fs';
import { cpus } from 'node:os';

const read = (path: string): string => {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return ''; // it has ended
  }
};

const threadsOf = (pid: number): string[] => {
  try {
    return readdirSync(`/proc/${pid}/task`).map((thread) => `/proc/${pid}/task/${thread}`);
  } catch {
    return [];
  }
};

/** Milliseconds, of all threads that a process has now, since they began. */
export const delayedMs = (pid: number): number =>
  threadsOf(pid).reduce((sum, path) => sum + Number(read(`${path}/schedstat`).split(' ')[1] ?? 0), 0) / 1e6;

const TICKS_PER_SECOND = 100;

/** Milliseconds for which whoever runs this machine gave its processors to other machines, since it began: their mean. */
export function stolenMs(): number {
  const [, , , , , , , , stolen] = read('/proc/stat').split('\n', 1)[0]?.split(/ +/) ?? [];
  return (Number(stolen ?? 0) * 1000) / TICKS_PER_SECOND / cpus().length;
}

const childrenOf = (pid: number): number[] =>
  threadsOf(pid).flatMap((path) => read(`${path}/children`).split(' ').filter(Boolean).map(Number));

/** Pids of ours that serve clients, among what this process and its children have started: simulators and arbiters. */
export function serving(pid = process.pid): number[] {
  return childrenOf(pid).flatMap((child) => [
    ...(/^cotenant-(simula|arbit)/.test(read(`/proc/${child}/comm`)) ? [child] : []),
    ...serving(child),
  ]);
}
