// Our placement policies as the scheduler applies them: GPUs by placePod, and machines by what the placement costs them.
import type { Placement } from '../../../src/api/request.ts';
import { MIB } from '../../../src/common/quantity.ts';
import { createFragmentation, type Shape } from '../../../src/placement/fragmentation.ts';
import type { PlaceableNode } from '../../../src/placement/node.ts';
import { placePod, preferenceOf } from '../../../src/placement/place-pod.ts';
import { costOnNode } from '../../../src/placement/score.ts';
import type { Choice, Machine, Policy, Task } from './openb.ts';

/** A thousandth of a GPU is one MiB of memory here, whatever the model: the trace has no memory. */
const nodeOf = ({ free, model, freeCpu }: Machine): PlaceableNode => ({
  freeCores: freeCpu / 1000,
  mostTenantsPerGpu: 100,
  gpus: free.map((milli, gpu) => ({
    ...{ gpuUuid: String(gpu), model, usableBytes: 1000 * MIB, healthy: true },
    grantedBytes: (1000 - milli) * MIB,
    grantedCoresPercent: 0,
    tenants: milli < 1000 ? 1 : 0,
  })),
});

const requestOf = ({ gpus, milli, cpu }: Task) => ({
  cores: cpu / 1000,
  gpuModels: [],
  gpuUuids: [],
  containers: [
    {
      ...({ name: 'main', kind: 'app', memoryIsolation: 'on' } as const),
      gpus: Array.from({ length: gpus }, () => ({ memory: { kind: 'bytes', bytes: milli * MIB } }) as const),
    },
  ],
});

const sum = (numbers: readonly number[]): number => numbers.reduce((total, one) => total + one, 0);

/** The extender is not asked about pods without GPUs: they go where most cores are free beyond what free GPUs need. */
const leastMissed =
  (coresPerGpu: number) =>
  (_task: Task, { freeCpu, free }: Machine): Choice => ({
    score: freeCpu / 1000 - (coresPerGpu * sum(free)) / 1000,
    gpus: [],
  });

const ours = (placement: Placement): Policy => ({
  name: `cotenant_${placement}`,
  ties: 'first',
  begin(machines, tasks) {
    const worth = worthOf(machines, tasks);
    const withGpus = tasks.filter(({ gpus }) => gpus > 0);
    const cores = sum(withGpus.map(({ cpu }) => cpu)) / 1000;
    const withoutGpus = leastMissed((1000 * cores) / sum(withGpus.map(({ gpus, milli }) => gpus * milli)));
    return (task, machine) => {
      if (task.gpus === 0) return withoutGpus(task, machine);
      const [request, node] = [requestOf(task), nodeOf(machine)];
      const placed = placePod(request, node, placement, worth);
      if (!placed.ok) throw new Error(placed.reason());
      const { first, second } = costOnNode(placed.containers, node, preferenceOf(request, node, placement, worth));
      const gpus = placed.containers.flatMap((one) => one.gpus.map(({ gpuUuid }) => Number(gpuUuid)));
      // `second` is a part of a node's memory, or nothing.
      return { score: -first - second / 1e6, gpus };
    };
  },
});

/** By the trace's own statistics, as published policies have them. */
function worthOf(machines: readonly Machine[], tasks: readonly Task[]) {
  const shapes = new Map<number, Shape>();
  for (const { shape, gpus, milli, cpu, models } of tasks) {
    const known = shapes.get(shape);
    const like = { gpus, milli, cores: cpu / 1000, models: models.map((model) => model.toLowerCase()) };
    shapes.set(shape, { ...like, frequency: (known?.frequency ?? 0) + 1 });
  }
  const supplies = Map.groupBy(machines, ({ model }) => model.toLowerCase());
  return createFragmentation(
    [...shapes.values()],
    [...supplies].map(([model, of]) => ({ model, gpus: sum(of.map(({ free }) => free.length)) })),
  );
}

export const binpack = ours('binpack');
export const spread = ours('spread');
export const fragmentation = ours('fragmentation');
