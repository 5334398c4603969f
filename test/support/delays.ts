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

/** Milliseconds from the machine's start to that of a process, to 10 ms. */
export function startedMs(pid: number): number {
  const fields = read(`/proc/${pid}/stat`)
    .replace(/^.*\) /s, '')
    .split(' ');
  return (Number(fields[19]) * 1000) / TICKS_PER_SECOND;
}

/** Milliseconds for which whoever runs this machine gave its processors to other machines, since it began: their mean. */
export function stolenMs(): number {
  const [, , , , , , , , stolen] = read('/proc/stat').split('\n', 1)[0]?.split(/ +/) ?? [];
  return (Number(stolen ?? 0) * 1000) / TICKS_PER_SECOND / cpus().length;
}

export const childrenOf = (pid: number): number[] =>
  threadsOf(pid).flatMap((path) => read(`${path}/children`).split(' ').filter(Boolean).map(Number));

/** Those of a process's children whose name begins so, of which the kernel keeps 15 characters. */
export const childrenNamed = (pid: number, name: string): number[] =>
  childrenOf(pid).filter((child) => read(`/proc/${child}/comm`).startsWith(name));

/** Who sees that a tenant is over, stops it, and sees that it has ended: all but the tenant itself. */
export const stopping = (agent: { pid?: number | undefined }, node: { pid?: number | undefined }): number[] => [
  process.pid,
  agent.pid ?? 0,
  ...childrenNamed(agent.pid ?? 0, 'cotenant-sample'),
  node.pid ?? 0,
];

/**
 * From now on, for what has to happen within a time and is done by these processes one after the other: milliseconds that
 * have passed, and of these what they lost, for the first thread of one was ready to run and had no processor, or the machine
 * had none. Take off no more than that.
 */
export function startWatch(pids: readonly number[]): () => { readonly passedMs: number; readonly lostMs: number } {
  const delays = () => pids.map((pid) => Number(read(`/proc/${pid}/schedstat`).split(' ')[1] ?? 0) / 1e6);
  const [from, stolen, before] = [performance.now(), stolenMs(), delays()];
  return () => {
    const waited = delays().reduce((sum, now, index) => sum + Math.max(0, now - (before[index] ?? 0)), 0);
    return { passedMs: performance.now() - from, lostMs: waited + stolenMs() - stolen };
  };
}

/** Pids of ours that serve clients, among what this process and its children have started: simulators and arbiters. */
export function serving(pid = process.pid): number[] {
  return childrenOf(pid).flatMap((child) => [
    ...(/^cotenant-(simula|arbit)/.test(read(`/proc/${child}/comm`)) ? [child] : []),
    ...serving(child),
  ]);
}
