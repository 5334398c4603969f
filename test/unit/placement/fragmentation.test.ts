// What free parts of nodes are worth to a workload, against the definition written down again, and what follows from it
// for single pods.
import test from 'ava';
import fc from 'fast-check';
import type { PlaceableGpu } from '../../../src/api/gpu.ts';
import { MIB } from '../../../src/common/quantity.ts';
import { createAllocations } from '../../../src/placement/allocations.ts';
import { createFragmentation, type FreeNode, type Shape } from '../../../src/placement/fragmentation.ts';
import { placePod, preferenceOf } from '../../../src/placement/place-pod.ts';
import { costOnNode } from '../../../src/placement/score.ts';
import { learnWorkload } from '../../../src/placement/workload.ts';

const shape = (milli: number, frequency: number, more: Partial<Shape> = {}): Shape => ({
  ...{ gpus: 1, milli, frequency, cores: 1, models: [] },
  ...more,
});

/** GPUs of 1000 MiB with so much free. */
const gpusOf = (free: readonly number[]): readonly PlaceableGpu[] =>
  free.map((milli, at) => ({
    ...{ gpuUuid: `GPU-${at}`, model: 'x', usableBytes: 1000 * MIB, healthy: true, grantedCoresPercent: 0 },
    grantedBytes: (1000 - milli) * MIB,
    tenants: milli < 1000 ? 1 : 0,
  }));

const requestOf = (milli: number, count = 1) => ({
  ...{ gpuModels: [], gpuUuids: [], placement: 'fragmentation' as const, cores: 1 },
  containers: [
    {
      ...({ name: 'main', kind: 'app', memoryIsolation: 'on' } as const),
      gpus: Array.from({ length: count }, () => ({ memory: { kind: 'bytes', bytes: milli * MIB } }) as const),
    },
  ],
});

/** The GPU that a pod of so many thousandths gets, as its place in the list. */
function chosen(shapes: readonly Shape[], milli: number, free: readonly number[]): number {
  const worth = createFragmentation(shapes, [{ model: 'x', gpus: free.length }]);
  const node = { mostTenantsPerGpu: 50, gpus: gpusOf(free), freeCores: 100 };
  const placed = placePod(requestOf(milli), node, 'binpack', worth);
  if (!placed.ok) throw new Error(placed.reason());
  return Number(placed.containers[0]?.gpus[0]?.gpuUuid.slice('GPU-'.length));
}

test('a share goes where usual pods still fill what is left', (t) => {
  const shapes = [shape(1000, 40), shape(650, 20), shape(320, 20), shape(470, 20), shape(230, 10)];
  const cases: [what: string, milli: number, free: number[], at: number][] = [
    ['350 are kept for 320', 230, [350, 1000], 1],
    ['320 fills 350', 320, [530, 350], 1],
    ['470 fills 530', 470, [680, 530], 1],
    ['650 fills 680', 650, [1000, 680], 1],
    ['a whole GPU is opened only where nothing is lost', 320, [1000, 680], 1],
  ];
  for (const [what, milli, free, at] of cases) t.is(chosen(shapes, milli, free), at, what);
});

test('the worth of a node is that of its definition', (t) => {
  const anyShape = fc.record<Shape>({
    gpus: fc.constantFrom(0, 1, 1, 2),
    milli: fc.constantFrom(200, 500, 700, 1000),
    cores: fc.constantFrom(1, 4, 16),
    models: fc.constantFrom([], ['a'], ['b'], ['a', 'b']),
    frequency: fc.integer({ min: 1, max: 9 }),
  });
  const anyNode = fc.record<FreeNode>({
    model: fc.constantFrom('a', 'b'),
    free: fc.array(fc.constantFrom(0, 100, 300, 500, 900, 1000), { minLength: 1, maxLength: 4 }),
    cores: fc.constantFrom(undefined, 0, 3, 20),
  });
  /** What is left of `free` in the best case, tried out; a pod costs a thousandth over its part of all pods. */
  const waste = (free: number, shapes: readonly Shape[]): number => {
    const parts = Object.entries(Object.groupBy(shapes, ({ milli }) => milli)).map(
      ([milli, like = []]) => [Number(milli), like.reduce((sum, one) => sum + one.frequency * one.gpus, 0)] as const,
    );
    const all = parts.reduce((sum, [, frequency]) => sum + frequency, 0);
    const fill = (left: number): number =>
      Math.min(left, ...parts.filter(([milli]) => milli <= left).map(([milli, own]) => fill(left - milli) + all / own));
    return fill(free);
  };
  t.notThrows(() =>
    fc.assert(
      fc.property(fc.array(anyShape, { minLength: 1, maxLength: 5 }), anyNode, (shapes, node) => {
        const withGpus = shapes.filter(({ gpus }) => gpus > 0);
        if (withGpus.length === 0) return;
        const weight = ({ gpus, milli, frequency }: Shape) =>
          gpus === 0 ? frequency : frequency * gpus * (1000 / milli) ** 2.5;
        const sum = (numbers: readonly number[]) => numbers.reduce((total, one) => total + one, 0);
        const usable = shapes.map((one) => {
          const enough = node.free.filter((milli) => milli >= one.milli && milli > 0);
          const runs =
            one.gpus > 0 &&
            enough.length >= one.gpus &&
            one.cores <= (node.cores ?? Number.POSITIVE_INFINITY) &&
            (one.models.length === 0 || one.models.includes(node.model));
          return runs ? (weight(one) / sum(shapes.map(weight))) * sum(enough) : 0;
        });
        const perGpu =
          sum(withGpus.map((one) => one.frequency * one.cores)) /
          sum(withGpus.map((one) => (one.frequency * one.gpus * one.milli) / 1000));
        const imbalance = node.cores === undefined ? 0 : Math.abs(node.cores - (perGpu * sum(node.free)) / 1000);
        const wasted = sum(node.free.map((free) => waste(free, withGpus)));
        const expected = sum(usable) - 30 * wasted - 40 * imbalance;
        const worth = createFragmentation(shapes, [
          { model: 'a', gpus: 4 },
          { model: 'b', gpus: 4 },
        ]);
        const found = worth.valueOf(node);
        if (Math.abs(found - expected) > 1e-6 * (1 + Math.abs(expected))) throw new Error(`${found}, not ${expected}`);
      }),
      { numRuns: 3000 },
    ),
  );
});

test('fragmentation places a pod exactly where binpack can', (t) => {
  const worth = createFragmentation([shape(500, 3), shape(1000, 2), shape(200, 2)], [{ model: 'x', gpus: 4 }]);
  const free = fc.array(fc.constantFrom(0, 100, 200, 500, 800, 1000), { minLength: 1, maxLength: 4 });
  t.notThrows(() =>
    fc.assert(
      fc.property(free, fc.constantFrom(100, 200, 500, 1000), fc.integer({ min: 1, max: 3 }), (left, milli, count) => {
        const node = { mostTenantsPerGpu: 50, gpus: gpusOf(left) };
        const found = placePod(requestOf(milli, count), node, 'binpack', worth);
        if (found.ok !== left.filter((one) => one >= milli).length >= count)
          throw new Error('placed or refused wrongly');
        const gpus = found.ok ? found.containers.flatMap((one) => one.gpus.map(({ gpuUuid }) => gpuUuid)) : [];
        if (found.ok && new Set(gpus).size !== count) throw new Error('a GPU twice');
      }),
      { numRuns: 1000 },
    ),
  );
});

test('models in demand, large nodes and untouched nodes cost more', (t) => {
  const supplies = [
    { model: 'a', gpus: 10 },
    { model: 'b', gpus: 10 },
  ];
  const worth = createFragmentation([shape(500, 9), shape(500, 1, { models: ['a'] })], supplies);
  const cost = (model: string, ...free: number[]) => worth.costOfUse({ model, free, cores: undefined });
  t.true(cost('a', 500) > cost('b', 500));
  t.true(cost('b', 500, 1000) > cost('b', 500));
  t.true(cost('b', 1000) > cost('b', 500));
});

test('a small node is taken before a large one that loses as much', (t) => {
  const worth = createFragmentation([shape(1000, 1)], [{ model: 'x', gpus: 6 }]);
  const cost = (count: number) => {
    const node = { mostTenantsPerGpu: 50, gpus: gpusOf(Array.from({ length: count }, () => 1000)) };
    const placed = placePod(requestOf(1000), node, 'binpack', worth);
    if (!placed.ok) throw new Error(placed.reason());
    return costOnNode(placed.containers, node, preferenceOf(requestOf(1000), node, 'binpack', worth)).first;
  };
  t.true(cost(2) < cost(4));
});

test('the workload is learned from the pods that hold shares', (t) => {
  const allocations = createAllocations();
  const gpus = gpusOf([1000, 1000]).map(({ gpuUuid, model, usableBytes }, index) => ({
    ...{ gpuUuid, model, usableBytes, index, healthy: true },
  }));
  allocations.setNode('n', { mostTenantsPerGpu: 50, gpus });
  allocations.setFreeCores('n', 7);
  t.is(allocations.placeableNode('n')?.freeCores, 7);
  const demand = (mib: number, coresPercent: number, ...on: string[]) =>
    new Map(on.map((gpu) => [gpu, { memoryBytes: mib * MIB, coresPercent, tenants: 1 }]));
  allocations.allocate({ podUid: 'p', nodeName: 'n', demand: demand(200, 30, 'GPU-0'), cores: 2, gpuModels: ['X'] });
  allocations.allocate({ podUid: 'q', nodeName: 'n', demand: demand(500, 0, 'GPU-0', 'GPU-1'), cores: 4 });
  const expected = createFragmentation(
    [shape(300, 1, { cores: 2, models: ['x'] }), shape(500, 1, { gpus: 2, cores: 4 })],
    [{ model: 'x', gpus: 2 }],
  );
  const learned = learnWorkload(allocations);
  for (const free of [[1000], [500, 700], [300, 0]]) {
    const node = { model: 'x', free, cores: 5 };
    t.is(learned.valueOf(node), expected.valueOf(node));
    t.is(learned.costOfUse(node), expected.costOfUse(node));
  }
});
