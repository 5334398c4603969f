// How long processes were runnable without getting a CPU: time that a test of compute shares in real time cannot blame
// on the code under test.
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

/** Milliseconds, over all threads that a process has now, since they started. */
export const delayedMs = (pid: number): number =>
  threadsOf(pid).reduce((sum, path) => sum + Number(read(`${path}/schedstat`).split(' ')[1] ?? 0), 0) / 1e6;

/** Milliseconds for which the threads that a process has now ran, since they started. */
export const ranOnCoresMs = (pid: number): number =>
  threadsOf(pid).reduce((sum, path) => sum + Number(read(`${path}/schedstat`).split(' ')[0] ?? 0), 0) / 1e6;

const TICKS_PER_SECOND = 100;

/** Milliseconds from boot to the start of a process, to 10 ms. */
export function startedMs(pid: number): number {
  const fields = read(`/proc/${pid}/stat`)
    .replace(/^.*\) /s, '')
    .split(' ');
  return (Number(fields[19]) * 1000) / TICKS_PER_SECOND;
}

/** Milliseconds of steal time since boot: the mean over the CPUs. */
export function stolenMs(): number {
  const [, , , , , , , , stolen] = read('/proc/stat').split('\n', 1)[0]?.split(/ +/) ?? [];
  return (Number(stolen ?? 0) * 1000) / TICKS_PER_SECOND / cpus().length;
}

export const childrenOf = (pid: number): number[] =>
  threadsOf(pid).flatMap((path) => read(`${path}/children`).split(' ').filter(Boolean).map(Number));

/** Children of a process whose name starts with this text, of which the kernel keeps 15 characters. */
export const childrenNamed = (pid: number, name: string): number[] =>
  childrenOf(pid).filter((child) => read(`/proc/${child}/comm`).startsWith(name));

/** The processes that detect an overuse and stop the tenant: all but the tenant itself. */
export const stopping = (agent: { pid?: number | undefined }, node: { pid?: number | undefined }): number[] => [
  process.pid,
  agent.pid ?? 0,
  ...childrenNamed(agent.pid ?? 0, 'cotenant-sample'),
  node.pid ?? 0,
];

/** Milliseconds of performance.now(). */
export type Span = { readonly from: number; readonly to: number };
/** Delay of a process, or of the machine, up to then. */
type Look = { readonly atMs: number; readonly lostMs: readonly number[] };

export type Watched = {
  readonly passedMs: number;
  /** Part of it in spans that were excluded. */
  readonly apartMs: number;
  /** The largest delay of one process in the other spans (they wait at the same time, so no sum); half of them at
   * most. */
  readonly lostMs: number;
  /** What is left. */
  readonly ownMs: number;
};

/** The first and last reading are its start and end; between readings that touch an excluded span nothing is lost. */
export function watched(looks: readonly Look[], apart: readonly Span[] = []): Watched {
  const [from, to] = [looks.at(0)?.atMs ?? 0, looks.at(-1)?.atMs ?? 0];
  const passedMs = to - from;
  const apartMs = unitedMs(apart.map((span) => ({ from: Math.max(span.from, from), to: Math.min(span.to, to) })));
  const lost = looks.slice(1).reduce<number[]>((sums, look, index) => {
    const before = looks[index] ?? look;
    if (apart.some((span) => span.from < look.atMs && span.to > before.atMs)) return sums;
    return look.lostMs.map((ms, of) => (sums[of] ?? 0) + Math.max(0, ms - (before.lostMs[of] ?? 0)));
  }, []);
  const lostMs = Math.min(Math.max(0, ...lost), (passedMs - apartMs) / 2);
  return { passedMs, apartMs, lostMs, ownMs: passedMs - apartMs - lostMs };
}

/** Overlapping spans count once. */
function unitedMs(spans: readonly Span[]): number {
  let [sum, until] = [0, Number.NEGATIVE_INFINITY];
  for (const { from, to } of spans.toSorted((a, b) => a.from - b.from)) {
    sum += Math.max(0, to - Math.max(from, until));
    until = Math.max(until, to);
  }
  return sum;
}

/** Upper bound, whatever the delays and excluded spans: so many times the allowed time. */
const MOST_TIMES = 3;

export const isWithin = (mostMs: number, { ownMs, passedMs }: Watched): boolean =>
  ownMs <= mostMs && passedMs <= MOST_TIMES * mostMs;

export const describeWatch = ({ passedMs, apartMs, lostMs }: Watched): string =>
  `after ${Math.round(passedMs)} ms, ${Math.round(lostMs)} of them the machine's${apartMs > 0 ? `, ${Math.round(apartMs)} left apart` : ''}`;

/**
 * Starts measuring something that these processes must finish within a time: the time that passes, and the delay in
 * which the first thread of a process was runnable without a CPU, or the machine had none. `everyMs`: how often the
 * delays are read, to separate those in excluded spans from the rest.
 */
export function startWatch(pids: readonly number[], everyMs?: number): (apart?: readonly Span[]) => Watched {
  const look = (): Look => ({
    atMs: performance.now(),
    lostMs: [...pids.map((pid) => Number(read(`/proc/${pid}/schedstat`).split(' ')[1] ?? 0) / 1e6), stolenMs()],
  });
  const looks = [look()];
  const timer = everyMs === undefined ? undefined : setInterval(() => looks.push(look()), everyMs).unref();
  return (apart) => {
    clearInterval(timer);
    looks.push(look());
    return watched(looks, apart);
  };
}

/** PIDs of our servers among the processes that this process and its children started: simulators and arbiters. */
export function serving(pid = process.pid): number[] {
  return childrenOf(pid).flatMap((child) => [
    ...(/^cotenant-(simula|arbit)/.test(read(`/proc/${child}/comm`)) ? [child] : []),
    ...serving(child),
  ]);
}
