// What the free parts of a node are worth to the pods that a cluster gets: the placement policy `fragmentation` takes
// the GPU and the node that lose least of it. Pure. The terms follow "Beware of Fragmentation" (USENIX ATC'23), whose
// expected fragment is the first of them; the others and all weights were found on two lists of its trace
// (docs/develop/benchmarks.md, `placement`).

/** Pods that ask for the same. */
export type Shape = {
  readonly gpus: number;
  /** Thousandths of each of its GPUs: of memory or of compute, whichever is more. */
  readonly milli: number;
  readonly cores: number;
  /** In lower case; empty: any. */
  readonly models: readonly string[];
  /** Of such pods among all; any unit. */
  readonly frequency: number;
};

/** GPUs of a model. */
type Supply = { readonly model: string; readonly gpus: number };

export type FreeNode = {
  /** Of its GPUs, in lower case. */
  readonly model: string;
  /** Thousandths of each GPU. */
  readonly free: readonly number[];
  /** Free cores; undefined: unknown, and taken for enough. */
  readonly cores: number | undefined;
};

export type Fragmentation = {
  /** In thousandths of a GPU, roughly; only differences mean something. */
  valueOf(node: FreeNode): number;
  /** What it costs to use this node rather than another one, whatever of it is used. */
  costOfUse(node: FreeNode): number;
};

const WHOLE = 1000;
/** Frequencies count this power of the part of a GPU: small parts are the ones that find no place at the end. */
const PART_POWER = -2.5;
/** Of a hole that no sequence of usual pods fills: it outweighs all else. */
const WASTE = 30;
/** Thousandths that a filling costs per pod in it, over the frequency of that pod: rare pods may not come. */
const RARITY = 1;
/** Per core that is missing for the GPUs that are free, or is there beyond what they need. */
const IMBALANCE = 40;
/** Per GPU of the node: nodes with many GPUs are kept for pods that need many. */
const NODE_SIZE = 200;
/** The same for a node that is wholly free. */
const FRESH_NODE = 6;
/** Of cores that were added and subtracted as fractions. */
const ROUNDING = 1e-6;
/** Times the part of the demand that only this model satisfies, over the model's part of all GPUs. */
const PRESSURE = 2250;

export function createFragmentation(shapes: readonly Shape[], supplies: readonly Supply[]): Fragmentation {
  const waste = wasteOf(shapes);
  const usable = usableOf(shapes);
  const pressures = pressureOf(shapes, supplies);
  const demanded = shapes.filter(({ gpus }) => gpus > 0);
  const total = (amount: (shape: Shape) => number) =>
    demanded.reduce((sum, shape) => sum + shape.frequency * amount(shape), 0);
  const coresPerGpu = demanded.length === 0 ? 0 : total(({ cores }) => cores) / (total(sizeOf) / WHOLE);
  return {
    valueOf(node) {
      let [idle, wasted] = [0, 0];
      for (const milli of node.free) {
        idle += milli;
        wasted += waste[milli] ?? 0;
      }
      const imbalance = node.cores === undefined ? 0 : Math.abs(node.cores - (coresPerGpu * idle) / WHOLE);
      return usable(node) - WASTE * wasted - IMBALANCE * imbalance;
    },
    costOfUse({ model, free }) {
      const isFresh = free.every((milli) => milli === WHOLE);
      return free.length * (NODE_SIZE + (isFresh ? FRESH_NODE : 0)) + PRESSURE * (pressures.get(model) ?? 0);
    },
  };
}

const sizeOf = ({ gpus, milli }: Shape): number => gpus * milli;

/** By the free thousandths of a GPU: what is left when it is filled with usual pods as well as it can be. */
function wasteOf(shapes: readonly Shape[]): readonly number[] {
  const frequencies = new Map<number, number>();
  for (const { gpus, milli, frequency } of shapes)
    if (gpus > 0 && milli > 0) frequencies.set(milli, (frequencies.get(milli) ?? 0) + frequency * gpus);
  const all = [...frequencies.values()].reduce((sum, one) => sum + one, 0);
  const waste: number[] = [0];
  for (let free = 1; free <= WHOLE; free += 1) {
    let least = free;
    for (const [milli, frequency] of frequencies)
      if (milli <= free) least = Math.min(least, (waste[free - milli] ?? 0) + (RARITY * all) / frequency);
    waste.push(least);
  }
  return waste;
}

type Weighted = Shape & { readonly weight: number };
/** The shapes that a node of one model can run with so many cores. */
type Runnable = {
  /** By the free thousandths of a GPU: the weight of all shapes of one GPU that fit there. */
  readonly oneGpu: Float64Array;
  readonly manyGpus: readonly Weighted[];
};

/**
 * The weighted mean, over shapes, of what is free on GPUs that have enough for the shape on a node that can take it.
 * Shapes are added up once for all nodes of a model on which the same of them find enough cores: a node is then a sum
 * over its GPUs.
 */
function usableOf(shapes: readonly Shape[]): (node: FreeNode) => number {
  const weightOf = ({ gpus, milli, frequency }: Shape) =>
    milli === 0 || gpus === 0 ? frequency : frequency * gpus * (milli / WHOLE) ** PART_POWER;
  const all = shapes.reduce((sum, shape) => sum + weightOf(shape), 0);
  const weighted = shapes.filter(({ gpus }) => gpus > 0).map((shape) => ({ ...shape, weight: weightOf(shape) / all }));
  const steps = [...new Set(weighted.map(({ cores }) => cores))].sort((a, b) => a - b);
  const byModel = new Map<string, Runnable[]>();
  const runnableOn = (model: string, cores: number): Runnable => {
    const known = byModel.get(model) ?? [];
    byModel.set(model, known);
    const step = countUpTo(steps, cores + ROUNDING);
    known[step] ??= runnable(
      weighted.filter(
        (shape) => shape.cores <= cores + ROUNDING && (shape.models.length === 0 || shape.models.includes(model)),
      ),
    );
    return known[step];
  };
  return ({ model, free, cores = Number.POSITIVE_INFINITY }) => {
    const { oneGpu, manyGpus } = runnableOn(model, cores);
    let sum = 0;
    // Plain loops: this runs for each GPU of each node that has changed.
    for (const milli of free) sum += milli * (oneGpu[milli] ?? 0);
    for (const { gpus, milli, weight } of manyGpus) {
      let usable = 0;
      let enough = 0;
      for (const one of free) {
        if (one < milli) continue;
        usable += one;
        enough += 1;
      }
      if (enough >= gpus) sum += weight * usable;
    }
    return sum;
  };
}

function runnable(shapes: readonly Weighted[]): Runnable {
  const oneGpu = new Float64Array(WHOLE + 1);
  for (const { gpus, milli, weight } of shapes) if (gpus === 1) oneGpu[milli] = (oneGpu[milli] ?? 0) + weight;
  for (let milli = 1; milli <= WHOLE; milli += 1) oneGpu[milli] = (oneGpu[milli] ?? 0) + (oneGpu[milli - 1] ?? 0);
  return { oneGpu, manyGpus: shapes.filter(({ gpus }) => gpus > 1) };
}

/** How many of these ascending numbers are at most this. */
function countUpTo(numbers: readonly number[], most: number): number {
  let [low, high] = [0, numbers.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((numbers[middle] ?? 0) <= most) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** By model. Demand for several models is divided among them by their supply. */
function pressureOf(shapes: readonly Shape[], supplies: readonly Supply[]): ReadonlyMap<string, number> {
  const supplied = supplies.reduce((sum, { gpus }) => sum + gpus, 0);
  const demanded = shapes.reduce((sum, shape) => sum + shape.frequency * sizeOf(shape), 0);
  const bound = new Map<string, number>();
  for (const shape of shapes) {
    const allowed = supplies.filter(({ model }) => shape.models.includes(model));
    const gpus = allowed.reduce((sum, one) => sum + one.gpus, 0);
    for (const one of allowed)
      bound.set(one.model, (bound.get(one.model) ?? 0) + (shape.frequency * sizeOf(shape) * one.gpus) / gpus);
  }
  return new Map(
    supplies.map(({ model, gpus }) => [model, (bound.get(model) ?? 0) / (demanded || 1) / (gpus / (supplied || 1))]),
  );
}
