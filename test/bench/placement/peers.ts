// Placement policies of others, written from their papers and documentation: random, first fit, best fit, FGD (Weng et
// al., "Beware of Fragmentation", USENIX ATC'23) and HAMi's node and GPU policies.
import type { Choice, Machine, Policy, Task } from './openb.ts';

const indices = (machine: Machine, { milli }: Task): number[] =>
  machine.free.flatMap((free, gpu) => (free >= milli ? [gpu] : []));

/** The GPUs with the smallest value first; the first GPU of equal ones. */
const by = (machine: Machine, task: Task, value: (free: number) => number): readonly number[] =>
  indices(machine, task)
    .sort((a, b) => value(machine.free[a] ?? 0) - value(machine.free[b] ?? 0) || a - b)
    .slice(0, task.gpus);

const sum = (numbers: readonly number[]): number => numbers.reduce((total, one) => total + one, 0);

export const random: Policy = {
  name: 'random',
  ties: 'random',
  begin: (_machines, _tasks, random) => (task, machine) => ({
    score: 0,
    gpus: by(machine, task, () => random()).slice(0, task.gpus),
  }),
};

export const firstFit: Policy = {
  name: 'first_fit',
  ties: 'first',
  begin: () => (task, machine) => ({ score: 0, gpus: indices(machine, task).slice(0, task.gpus) }),
};

/** The machine with least left, as the sum of its parts of CPU and GPU; of its GPUs the one with least left. */
export const bestFit: Policy = {
  name: 'best_fit',
  ties: 'first',
  begin(machines) {
    const mostCpu = Math.max(...machines.map(({ cpus }) => cpus));
    const mostGpus = Math.max(...machines.map(({ free }) => free.length));
    return (task, machine) => {
      const cpu = (machine.freeCpu - task.cpu) / mostCpu;
      const gpu = (sum(machine.free) - task.gpus * task.milli) / (1000 * mostGpus);
      return { score: -cpu - gpu, gpus: by(machine, task, (free) => free) };
    };
  },
};

type Shape = Pick<Task, 'cpu' | 'gpus' | 'milli' | 'models'>;

/** The commonest shapes until 95 % of all tasks, with their frequencies, which add up to 1. */
function targetWorkload(tasks: readonly Task[]): readonly (Shape & { readonly frequency: number })[] {
  const counts = new Map<number, { task: Task; count: number }>();
  for (const task of tasks) {
    const known = counts.get(task.shape);
    if (known) known.count += 1;
    else counts.set(task.shape, { task, count: 1 });
  }
  const chosen: { task: Task; count: number }[] = [];
  let covered = 0;
  for (const one of [...counts.values()].sort((a, b) => b.count - a.count)) {
    if (covered >= 0.95 * tasks.length) break;
    covered += one.count;
    chosen.push(one);
  }
  return chosen.map(({ task, count }) => ({ ...task, frequency: count / covered }));
}

/**
 * The expected fragment of a machine, in thousandths of a GPU: what is idle where a shape cannot run or needs no GPU;
 * else what is idle on GPUs with less than the shape needs of each.
 */
function fragmentOf(workload: ReturnType<typeof targetWorkload>) {
  return (model: string, freeCpu: number, free: readonly number[]): number => {
    const idle = sum(free);
    let fragment = 0;
    for (const { cpu, gpus, milli, models, frequency } of workload) {
      let [usable, enough] = [0, 0];
      if (gpus > 0 && cpu <= freeCpu && (models.length === 0 || models.includes(model))) {
        for (const one of free) {
          if (one < milli) continue;
          usable += one;
          enough += 1;
        }
      }
      fragment += frequency * (enough >= gpus && gpus > 0 ? idle - usable : idle);
    }
    return fragment;
  };
}

/** Without the fixed order of equal nodes it loses several points: published results have it, kube-scheduler has not. */
const fgdWith = (name: string, ties: Policy['ties']): Policy => ({
  name,
  ties,
  begin(_machines, tasks) {
    const fragment = fragmentOf(targetWorkload(tasks));
    const before = new Map<Machine, { version: number; value: number }>();
    return (task, machine) => {
      let known = before.get(machine);
      if (known?.version !== machine.version) {
        known = { version: machine.version, value: fragment(machine.model, machine.freeCpu, machine.free) };
        before.set(machine, known);
      }
      const { value } = known;
      const score = (gpus: readonly number[]): number => {
        const free = machine.free.map((one, gpu) => (gpus.includes(gpu) ? one - task.milli : one));
        const lost = fragment(machine.model, machine.freeCpu - task.cpu, free) - value;
        return Math.floor(100 / (1 + Math.exp(lost / 1000)));
      };
      const candidates = indices(machine, task);
      if (task.gpus !== 1) {
        const gpus = candidates.slice(0, task.gpus);
        return { score: score(gpus), gpus };
      }
      const tried = new Map<number, Choice>();
      for (const gpu of candidates) {
        const free = machine.free[gpu] ?? 0;
        if (!tried.has(free)) tried.set(free, { score: score([gpu]), gpus: [gpu] });
      }
      return [...tried.values()].reduce((best, one) => (one.score > best.score ? one : best));
    };
  },
});

export const fgd = fgdWith('fgd', 'first');
export const fgdRandomTies = fgdWith('fgd_random_ties', 'random');

/** Containers that HAMi lets share one GPU by default. */
const HAMI_SHARES = 10;

/**
 * HAMi's defaults: the node with the highest mean of used containers, compute and memory over its GPUs (binpack), and
 * on it the emptiest GPUs (spread), or the fullest. Memory and compute are the same part of a GPU here.
 */
const hamiWith = (name: string, packs: boolean): Policy => {
  let containers = new Map<Machine, number>();
  return {
    name,
    ties: 'random',
    begin() {
      containers = new Map();
      return (task, machine) => {
        const gpus = machine.free.length;
        const used = (1000 * gpus - sum(machine.free) + task.gpus * task.milli) / (1000 * gpus);
        const shares = ((containers.get(machine) ?? 0) + task.gpus) / (HAMI_SHARES * gpus);
        return { score: 2 * used + shares, gpus: by(machine, task, (free) => (packs ? free : -free)) };
      };
    },
    placed(task, machine) {
      containers.set(machine, (containers.get(machine) ?? 0) + task.gpus);
      return false;
    },
  };
};

export const hami = hamiWith('hami', false);
export const hamiGpuBinpack = hamiWith('hami_gpu_binpack', true);
