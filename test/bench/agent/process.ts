// What a process and its children have used, from /proc.
import { readdirSync, readFileSync, readlinkSync } from 'node:fs';
import { setTimeout as delay } from 'node:timers/promises';
import { median } from '../statistics.ts';

const TICKS_PER_SECOND = 100;
const MIB = 2 ** 20;

/** Fields of /proc/PID/stat from the third on: a name may hold spaces and brackets. */
function statOf(pid: number): readonly string[] {
  const text = readFileSync(`/proc/${pid}/stat`, 'utf8');
  return text.slice(text.lastIndexOf(')') + 2).split(' ');
}

/** Of a process's name the kernel keeps so much. */
const NAME_BYTES = 15;

/** The children of a process that run the program of that name. */
export function childrenNamed(pid: number, program: string): number[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .map(Number)
    .filter((candidate) => {
      try {
        const name = readFileSync(`/proc/${candidate}/comm`, 'utf8').trimEnd();
        return name === program.slice(0, NAME_BYTES) && Number(statOf(candidate)[1]) === pid;
      } catch {
        return false; // it has ended meanwhile
      }
    });
}

/** CPU seconds of all its threads, user and system. */
export function cpuSeconds(pid: number): number {
  const stat = statOf(pid);
  return (Number(stat[11]) + Number(stat[12])) / TICKS_PER_SECOND;
}

/** Resident memory in MiB. */
export function residentMib(pid: number): number {
  const kib = /^VmRSS:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1];
  if (kib === undefined) throw new Error(`process ${pid} has no memory`);
  return (Number(kib) * 1024) / MIB;
}

/** Of several processes, in MiB. */
export type Kinds = {
  /** What no file has: theirs alone. */
  readonly anonymous: number;
  /** With pages of files, of which what processes of one program have counts once, by the one that has most of it: the
   * kernel keeps them once. */
  readonly once: number;
};

export function residentByKinds(pids: readonly number[]): Kinds {
  const ofFiles = new Map<string, number>();
  let anonymousKib = 0;
  for (const pid of pids) {
    const status = readFileSync(`/proc/${pid}/status`, 'utf8');
    const field = (name: string) => Number(new RegExp(`^${name}:\\s+(\\d+) kB$`, 'm').exec(status)?.[1]);
    anonymousKib += field('RssAnon') + field('RssShmem');
    const program = readlinkSync(`/proc/${pid}/exe`);
    ofFiles.set(program, Math.max(ofFiles.get(program) ?? 0, field('RssFile')));
  }
  const kib = [...ofFiles.values()].reduce((sum, most) => sum + most, anonymousKib);
  if (Number.isNaN(kib)) throw new Error('the kernel does not tell resident memory by its kinds');
  return { anonymous: (anonymousKib * 1024) / MIB, once: (kib * 1024) / MIB };
}

const MB = 1e6;
/** The unit of the goals. */
export const mbOf = ({ mib }: Pick<Cost, 'mib'>): number => (mib * MIB) / MB;

export type Cost = { readonly cores: number; readonly mib: number };
export const sumOf = (costs: readonly Cost[]): Cost => ({
  cores: costs.reduce((sum, { cores }) => sum + cores, 0),
  mib: costs.reduce((sum, { mib }) => sum + mib, 0),
});

/** Of each group of processes over `seconds`; memory as the median of one look a second, for a garbage collector
 * saws. */
export async function costOver(groups: readonly (readonly number[])[], seconds: number): Promise<Cost[]> {
  const sum = (of: readonly number[], value: (one: number) => number) => of.reduce((all, one) => all + value(one), 0);
  const at = performance.now();
  const before = groups.map((of) => sum(of, cpuSeconds));
  const looks: number[][] = [];
  for (let second = 0; second < seconds; second += 1) {
    await delay(1000);
    looks.push(groups.map((of) => sum(of, residentMib)));
  }
  const wall = (performance.now() - at) / 1000;
  return groups.map((of, index) => ({
    cores: (sum(of, cpuSeconds) - (before[index] ?? 0)) / wall,
    mib: median(looks.map((look) => look[index] ?? 0)),
  }));
}
