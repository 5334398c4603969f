// Alibaba's trace cluster-trace-gpu-v2023 ("openb") as FGD's paper (USENIX ATC'23) replays it: nodes with GPUs, pods in
// random order, nothing ever ends. Owns the files and the protocol; policies are elsewhere.
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

/** A node. Free amounts change during a replay; `version` grows with each change. */
export type Machine = {
  readonly model: string;
  readonly cpus: number;
  readonly memory: number;
  freeCpu: number;
  freeMemory: number;
  /** Thousandths of each GPU. */
  readonly free: number[];
  version: number;
};

export type Task = {
  readonly cpu: number;
  readonly memory: number;
  readonly gpus: number;
  /** Thousandths of each of its GPUs. */
  readonly milli: number;
  /** Empty: any. */
  readonly models: readonly string[];
  /** Equal for tasks that ask for the same of CPU, GPUs and models. */
  readonly shape: number;
  /** From its creation to its deletion; undefined where the list has no times. */
  readonly seconds: number | undefined;
};

export type PodList = { readonly name: string; readonly tasks: readonly Task[] };
export type Trace = { readonly machines: readonly Machine[]; readonly lists: readonly PodList[] };

/** Uniform in 0..1. */
export type Random = () => number;

/** The same on every run: mulberry32, a public-domain generator. */
export function randomOf(seed: number): Random {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

export function shuffled<T>(items: readonly T[], random: Random): T[] {
  const result = [...items];
  for (let at = result.length - 1; at > 0; at -= 1) {
    const other = Math.floor(random() * (at + 1));
    [result[at], result[other]] = [result[other] as T, result[at] as T];
  }
  return result;
}

const NODES = 'openb_node_list_gpu_node.csv';
const PODS = /^openb_pod_list_(\w+)\.csv$/;

export function readTrace(folder: string): Trace {
  const rows = (file: string): readonly Readonly<Record<string, string>>[] => {
    const [head = '', ...lines] = readFileSync(join(folder, file), 'utf8').trim().split('\n');
    const keys = head.split(',');
    return lines.map((line) => Object.fromEntries(line.split(',').map((cell, index) => [keys[index] ?? '', cell])));
  };
  const machines = rows(NODES).map(
    (row): Machine => ({
      model: row.model ?? '',
      cpus: Number(row.cpu_milli),
      memory: Number(row.memory_mib),
      freeCpu: Number(row.cpu_milli),
      freeMemory: Number(row.memory_mib),
      free: Array.from({ length: Number(row.gpu) }, () => 1000),
      version: 0,
    }),
  );
  const files = readdirSync(folder).filter((name) => PODS.test(name));
  if (files.length === 0) throw new Error(`${folder} has no file openb_pod_list_*.csv`);
  const lists = files.toSorted().map((file): PodList => {
    const shapes = new Map<string, number>();
    const byName = rows(file).toSorted((a, b) => ((a.name ?? '') < (b.name ?? '') ? -1 : 1));
    const tasks = byName.map((row): Task => {
      const amounts = [row.cpu_milli, row.num_gpu, row.gpu_milli, row.gpu_spec ?? ''];
      const key = amounts.join();
      const shape = shapes.get(key) ?? shapes.size;
      shapes.set(key, shape);
      const [cpu, gpus, milli] = amounts.map(Number) as [number, number, number];
      const models = row.gpu_spec ? row.gpu_spec.split('|') : [];
      const seconds = row.deletion_time ? Number(row.deletion_time) - Number(row.creation_time) : undefined;
      return { cpu, memory: Number(row.memory_mib), gpus, milli: gpus === 0 ? 0 : milli, models, shape, seconds };
    });
    return { name: PODS.exec(file)?.[1] ?? file, tasks };
  });
  return { machines, lists };
}

/** What a policy makes of a task on a machine that has room for it: the higher the score the better. */
export type Choice = {
  readonly score: number;
  /** Indices of the GPUs. */
  readonly gpus: readonly number[];
};

export type Policy = {
  readonly name: string;
  /** Begins a replay on `machines`, whose workload is `tasks`. Choices are cached until the machine changes. */
  begin(machines: readonly Machine[], tasks: readonly Task[], random: Random): (task: Task, machine: Machine) => Choice;
  /** Among equal scores: the first machine of the list, or any. */
  readonly ties: 'first' | 'random';
  /** After a task was placed, for policies that learn. True: all cached choices are void. */
  placed?(task: Task, machine: Machine): boolean;
};

export const demandOf = ({ gpus, milli }: Task): number => gpus * milli;

export function fits(task: Task, { model, freeCpu, freeMemory, free }: Machine): boolean {
  if (task.cpu > freeCpu || task.memory > freeMemory) return false;
  if (task.models.length > 0 && !task.models.includes(model)) return false;
  if (task.gpus === 0) return true;
  let enough = 0;
  for (const milli of free) if (milli >= task.milli) enough += 1;
  return enough >= task.gpus;
}

/** All tasks once, and then random ones until `most` is requested; or fewer. */
export function arrivals(tasks: readonly Task[], most: number, random: Random): readonly Task[] {
  const order = shuffled(tasks, random);
  const all = order.length;
  let requested = order.reduce((sum, task) => sum + demandOf(task), 0);
  while (requested < most) {
    const task = order[Math.floor(random() * all)] as Task;
    requested += demandOf(task);
    order.push(task);
  }
  return order;
}

export type ReplayOptions = {
  readonly trace: Trace;
  readonly list: PodList;
  readonly policy: Policy;
  readonly seed: number;
  /** Another order of nodes, with the same order of pods. */
  readonly names?: number;
};

type Cluster = {
  /** Of all GPUs. */
  readonly totalMilli: number;
  /** Where the policy has put it; undefined: it fits nowhere. */
  place(task: Task): Placed | undefined;
  remove(task: Task, placed: Placed): void;
};
type Placed = { readonly machine: Machine; readonly gpus: readonly number[] };

/** `names` gives the order of nodes. */
export function createCluster(
  { trace, list, policy, names }: Required<Omit<ReplayOptions, 'seed'>>,
  random: Random,
): Cluster {
  const machines = shuffled(trace.machines, randomOf(names)).map((one) => ({ ...one, free: [...one.free] }));
  const choose = policy.begin(machines, list.tasks, random);
  /** By shape, and then by machine. */
  let cache: { version: number; choice: Choice }[][] = [];
  const change = ({ cpu, memory, milli }: Task, { machine, gpus }: Placed, sign: number): void => {
    machine.freeCpu += sign * cpu;
    machine.freeMemory += sign * memory;
    for (const gpu of gpus) machine.free[gpu] = (machine.free[gpu] ?? 0) + sign * milli;
    machine.version += 1;
  };
  return {
    totalMilli: 1000 * machines.reduce((sum, { free }) => sum + free.length, 0),
    place(task) {
      cache[task.shape] ??= [];
      const known = cache[task.shape] as { version: number; choice: Choice }[];
      let best: { at: number; choice: Choice } | undefined;
      let equal = 0;
      for (const [at, machine] of machines.entries()) {
        if (!fits(task, machine)) continue;
        let one = known[at];
        if (one?.version !== machine.version) {
          one = { version: machine.version, choice: choose(task, machine) };
          known[at] = one;
        }
        const ahead = best === undefined ? 1 : one.choice.score - best.choice.score;
        equal = ahead > 0 ? 1 : ahead === 0 ? equal + 1 : equal;
        if (ahead > 0 || (ahead === 0 && policy.ties === 'random' && random() * equal < 1))
          best = { at, choice: one.choice };
      }
      if (!best) return undefined;
      const placed = { machine: machines[best.at] as Machine, gpus: best.choice.gpus };
      change(task, placed, -1);
      if (policy.placed?.(task, placed.machine)) cache = [];
      return placed;
    },
    remove: (task, placed) => change(task, placed, 1),
  };
}

/**
 * Percent of all GPUs that are allocated when as much as there is has been requested: by the last task with which the
 * requested part rounds to 100 %, as FGD's tables have it. A task that fits nowhere is dropped, and counts as requested.
 */
export function replay({ trace, list, policy, seed, names = seed }: ReplayOptions): number {
  const random = randomOf(seed * 31 + 7);
  const total = 1000 * trace.machines.reduce((sum, { free }) => sum + free.length, 0);
  const tasks = arrivals(list.tasks, 1.005 * total, random);
  const cluster = createCluster({ trace, list, policy, names }, random);
  let [requested, allocated] = [0, 0];
  for (const task of tasks) {
    requested += demandOf(task);
    if (requested >= 1.005 * total) break;
    if (cluster.place(task)) allocated += demandOf(task);
  }
  return (100 * allocated) / total;
}
