// Which pods move so that a share fits: compared with a search through all sets of pods of each GPU, whose successors
// are placed by the extender's own answers.
import test from 'ava';
import fc from 'fast-check';
import { MIB } from '../../../../src/common/quantity.ts';
import { type Allocations, copyAllocations, createAllocations } from '../../../../src/placement/allocations.ts';
import { demandOf } from '../../../../src/placement/demand.ts';
import {
  continuePlan,
  type DefragSituation,
  type Movable,
  planDefrag,
} from '../../../../src/scheduler/decisions/defrag.ts';
import { createDecider } from '../../../../src/scheduler/decisions/filter-and-score.ts';
import { recordOf, uuid } from '../cluster.ts';

type Holder = {
  readonly gpu: number;
  readonly mib: number;
  readonly priority?: number;
  readonly budget?: string;
  /** May not move. */
  readonly stays?: boolean;
};

/** Two GPUs on each node: GPU 0 and 1 on n0, and so on. */
function situationOf(gpus: readonly number[], holders: readonly Holder[], mib: number, allowed = {}): DefragSituation {
  const allocations = createAllocations();
  const nodes = gpus.flatMap((_, gpu) => (gpu % 2 === 0 ? [`n${gpu / 2}`] : []));
  for (const [index, name] of nodes.entries())
    allocations.setNode(name, {
      mostTenantsPerGpu: 10,
      gpus: gpus.slice(2 * index, 2 * index + 2).map((size, at) => ({
        ...{ gpuUuid: uuid(2 * index + at), index: at, model: 'x', usableBytes: size * MIB, healthy: true },
      })),
    });
  const { read } = createDecider(allocations, 'binpack');
  const requestOf = (size: number) => {
    const request = read(recordOf(size));
    if (!request.ok) throw new Error(request.error);
    return request.value;
  };
  const movable = holders.flatMap(({ gpu, mib: size, priority = 0, budget, stays }, index): readonly Movable[] => {
    const podUid = `p${index}`;
    const demand = new Map([[uuid(gpu), { memoryBytes: size * MIB, coresPercent: 0, tenants: 1 }]]);
    allocations.allocate({ podUid, nodeName: `n${Math.floor(gpu / 2)}`, demand });
    if (stays) return [];
    const budgets = budget === undefined ? [] : [budget];
    return [{ podUid, demand, priority, budgets, createdMs: index, request: requestOf(size), nodes }];
  });
  return {
    ...{ allocations, placement: 'binpack', wanted: requestOf(mib), nodes, movable },
    allowed: new Map(Object.entries(allowed)),
  };
}

const movesOf = (situation: DefragSituation): string => {
  const plan = planDefrag(situation);
  return plan.moves ? `${plan.node}: ${plan.moves.map(({ podUid }) => podUid).join(' ')}` : 'none';
};

test('the fewest pods move, of those the least important, and only where one may', (t) => {
  const [a, b] = [
    { gpu: 0, mib: 400 },
    { gpu: 1, mib: 300 },
  ];
  t.is(movesOf(situationOf([1000, 1000], [a], 900)), 'n0: ', 'it fits as it is');
  t.is(movesOf(situationOf([1000, 1000], [a, b], 800)), 'n0: p1', 'the emptier GPU is freed');
  t.is(movesOf(situationOf([1000, 1000], [a, { ...b, stays: true }], 800)), 'n0: p0');
  t.is(movesOf(situationOf([1000, 1000], [{ ...a, mib: 800 }, b], 800)), 'none', 'its successor fits nowhere else');
  t.is(movesOf(situationOf([1000, 1000], [a, b], 1001)), 'none', 'no GPU is that large');
  const three = [
    { gpu: 0, mib: 500, stays: true },
    { gpu: 1, mib: 100, budget: 'x' },
    { gpu: 1, mib: 100, budget: 'x' },
  ];
  t.is(movesOf(situationOf([1000, 1000], three, 900, { x: 1 })), 'n0: p2', 'the younger of two equal ones');
  t.is(movesOf(situationOf([1000, 1000], three, 1000, { x: 1 })), 'none', 'the budget allows one');
  t.is(movesOf(situationOf([1000, 1000], three, 1000, { x: 2 })), 'n0: p2 p1');
  t.is(movesOf(situationOf([1000, 1000], [a, { ...b, priority: 5 }], 800)), 'n0: p0');
});

/** All sets of these. */
const allSets = <T>(items: readonly T[]): readonly (readonly T[])[] =>
  Array.from({ length: 2 ** items.length }, (_, mask) => items.filter((_, index) => mask & (1 << index)));

/** Whether the wanted share fits the node once these are evicted one by one and placed anew. */
function helps({ allocations, wanted, nodes }: DefragSituation, node: string, pods: readonly Movable[]): boolean {
  const copy = copyAllocations(allocations);
  const decider = createDecider(copy, 'binpack');
  for (const { podUid, request } of pods) {
    copy.release(podUid);
    const { feasible } = decider.filter(request, nodes);
    const [best] = decider.prioritize(request, feasible).toSorted((a, b) => b.Score - a.Score);
    if (!best) return false;
    const placed = decider.on(request, best.Host);
    if (!placed.ok) return false;
    copy.allocate({ podUid, nodeName: best.Host, demand: demandOf(placed.containers) });
  }
  return decider.on(wanted, node).ok;
}

const overbooked = (allocations: Allocations): boolean =>
  [...allocations.nodeNames()].some((name) =>
    allocations.placeableNode(name)?.gpus.some((gpu) => gpu.grantedBytes > gpu.usableBytes),
  );

test('no smaller set of pods of a GPU helps, and the plan overbooks nothing', (t) => {
  const sizes = fc.array(fc.constantFrom<number>(600, 1000, 1600), { minLength: 2, maxLength: 6 });
  const holder = fc.record({ gpu: fc.nat(5), mib: fc.integer({ min: 1, max: 8 }).map((n) => n * 100) });
  const more = fc.record({
    priority: fc.nat(2),
    budget: fc.constantFrom('x', 'y', undefined),
    stays: fc.constantFrom(true, false, false, false),
  });
  const holders = fc.array(fc.tuple(holder, more), { minLength: 3, maxLength: 8 });
  let plans = 0;
  fc.assert(
    fc.property(
      fc.record({ sizes, holders, mib: fc.integer({ min: 6, max: 16 }).map((n) => n * 100), x: fc.nat(2) }),
      ({ sizes, holders, mib, x }) => {
        // Those that fit: no cluster is overbooked at the start.
        const left = [...sizes];
        const kept = holders.flatMap(([{ gpu, mib: size }, { budget, ...rest }]) => {
          if ((left[gpu] ?? 0) < size) return [];
          left[gpu] = (left[gpu] ?? 0) - size;
          return [{ gpu, mib: size, ...rest, ...(budget !== undefined && { budget }) }];
        });
        const situation = situationOf(sizes, kept, mib, { x, y: 9 });
        const { allocations, movable, nodes } = situation;
        const exceeds = (pods: readonly Movable[]) => pods.filter(({ budgets }) => budgets.includes('x')).length > x;
        const byImportance = (a: Movable, b: Movable) => a.priority - b.priority || b.createdMs - a.createdMs;
        const helping = nodes.flatMap((node, index) =>
          [uuid(2 * index), uuid(2 * index + 1)].flatMap((gpu) =>
            allSets(movable.filter(({ demand }) => demand.has(gpu)).sort(byImportance))
              .filter((pods) => !exceeds(pods) && helps(situation, node, pods))
              .map((pods) => pods.length),
          ),
        );
        const plan = planDefrag(situation);
        t.is(plan.moves?.length, helping.length === 0 ? undefined : Math.min(...helping));
        t.is(movesOf(situation), movesOf(situation), 'the allocations are as they were');
        if (!plan.moves) return;
        plans += plan.moves.length > 0 ? 1 : 0;
        const copy = copyAllocations(allocations);
        for (const { podUid, from, to } of plan.moves) {
          const held = copy.allocationOf(podUid);
          t.deepEqual({ node: held?.nodeName, gpus: [...(held?.demand.keys() ?? [])] }, from as unknown as object);
          copy.allocate({
            podUid,
            nodeName: to.node,
            demand: new Map(
              to.gpus.map((gpu) => [
                gpu,
                held?.demand.get(from.gpus[0] ?? '') ?? { memoryBytes: 0, coresPercent: 0, tenants: 0 },
              ]),
            ),
          });
          t.false(overbooked(copy));
        }
        t.true(createDecider(copy, 'binpack').on(situation.wanted, plan.node).ok);
      },
    ),
    { numRuns: 400 },
  );
  // Of 400 some 20 to 40, by chance.
  t.true(plans > 5, `${plans} of the clusters needed moves`);
});

test('a plan goes on only while its pods are there and the rest still frees the share', (t) => {
  const holders = [
    { gpu: 0, mib: 500 },
    { gpu: 1, mib: 100 },
    { gpu: 1, mib: 100 },
  ];
  const situation = situationOf([1000, 1000], holders, 1000);
  t.like(continuePlan(situation, 'n0', ['p1', 'p2']), { node: 'n0', gpus: [uuid(1)], moves: { length: 2 } });
  t.regex(String(continuePlan(situation, 'n0', ['p1'])), /^node n0: .* MiB of cotenant.io\/gpu-memory free/);
  t.regex(String(continuePlan(situation, 'n0', ['p1', 'gone'])), /is gone or may not be evicted/);
  situation.allocations.allocate({
    podUid: 'other',
    nodeName: 'n0',
    demand: new Map([[uuid(0), { memoryBytes: 350 * MIB, coresPercent: 0, tenants: 1 }]]),
  });
  t.regex(String(continuePlan(situation, 'n0', ['p1', 'p2'])), /^node n0: /, 'their successors need the GPU itself');
});
