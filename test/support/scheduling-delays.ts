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

/** Milliseconds of performance.now(). */
export type Span = { readonly from: number; readonly to: number };
/** What a process, or the machine, had lost until then. */
type Look = { readonly atMs: number; readonly lostMs: readonly number[] };

export type Watched = {
  readonly passedMs: number;
  /** Of these, in spans that were left apart. */
  readonly apartMs: number;
  /** Of the others, what the machine kept from whoever lost most: processes wait at the same time, so it is no sum; and half of them at most. */
  readonly lostMs: number;
  /** What is left. */
  readonly ownMs: number;
};

/** The first and the last look are where it begins and ends; between two looks that touch a span nothing is lost. */
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

/** Spans that overlap count once. */
function unitedMs(spans: readonly Span[]): number {
  let [sum, until] = [0, Number.NEGATIVE_INFINITY];
  for (const { from, to } of spans.toSorted((a, b) => a.from - b.from)) {
    sum += Math.max(0, to - Math.max(from, until));
    until = Math.max(until, to);
  }
  return sum;
}

/** However much the machine keeps, and whatever was left apart: so many times what something may take. */
const MOST_TIMES = 3;

export const isWithin = (mostMs: number, { ownMs, passedMs }: Watched): boolean =>
  ownMs <= mostMs && passedMs <= MOST_TIMES * mostMs;

export const toldOf = ({ passedMs, apartMs, lostMs }: Watched): string =>
  `after ${Math.round(passedMs)} ms, ${Math.round(lostMs)} of them the machine's${apartMs > 0 ? `, ${Math.round(apartMs)} left apart` : ''}`;

/**
 * From now on, for what has to happen within a time and is done by these processes: what passes, and what of it they lost, for
 * the first thread of one was ready to run and had no processor, or the machine had none. `everyMs`: so often it is looked at,
 * to tell what is lost in spans that are left apart from the rest.
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

/** Pids of ours that serve clients, among what this process and its children have started: simulators and arbiters. */
export function serving(pid = process.pid): number[] {
  return childrenOf(pid).flatMap((child) => [
    ...(/^cotenant-(simula|arbit)/.test(read(`/proc/${child}/comm`)) ? [child] : []),
    ...serving(child),
  ]);
}
