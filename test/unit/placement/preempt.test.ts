// Which pods leave a node for a pod of higher priority: compared with a search through all sets of pods.
import test from 'ava';
import fc from 'fast-check';
import type { PlaceableGpu } from '../../../src/api/gpu.ts';
import { MIB } from '../../../src/common/quantity.ts';
import { type PlacementRequest, placePod } from '../../../src/placement/place-pod.ts';
import {
  choosePreemption,
  compareVictims,
  type Evictable,
  type PreemptionSituation,
  without,
} from '../../../src/placement/preempt.ts';

const GPU_MIB = 1000;
const uuid = (gpu: number) => `GPU-${gpu}`;

type Holder = Omit<Evictable, 'demand'> & {
  readonly on: Readonly<Record<number, readonly [mib: number, cores: number]>>;
};

function situationOf(
  shares: readonly (readonly [mib: number, cores: number])[],
  gpus: number,
  holders: readonly Holder[],
) {
  const evictable = holders.map(({ on, ...rest }): Evictable => {
    const demand = Object.entries(on).map(
      ([gpu, [mib, coresPercent]]) =>
        [uuid(Number(gpu)), { memoryBytes: mib * MIB, coresPercent, tenants: 1 }] as const,
    );
    return { ...rest, demand: new Map(demand) };
  });
  const node = {
    mostTenantsPerGpu: 4,
    gpus: Array.from({ length: gpus }, (_, gpu): PlaceableGpu => {
      const on = evictable.flatMap(({ demand }) => demand.get(uuid(gpu)) ?? []);
      return {
        ...{ gpuUuid: uuid(gpu), model: 'x', usableBytes: GPU_MIB * MIB, healthy: true, tenants: on.length },
        grantedBytes: on.reduce((sum, { memoryBytes }) => sum + memoryBytes, 0),
        grantedCoresPercent: on.reduce((sum, { coresPercent }) => sum + coresPercent, 0),
      };
    }),
  };
  const request: PlacementRequest = {
    ...{ gpuModels: [], gpuUuids: [] },
    containers: [
      {
        ...{ name: 'main', kind: 'app', memoryIsolation: 'on' },
        gpus: shares.map(([mib, coresPercent]) => ({
          memory: { kind: 'bytes', bytes: mib * MIB },
          ...(coresPercent > 0 && { coresPercent }),
        })),
      },
    ],
  };
  return { request, defaultPlacement: 'binpack' as const, node, evictable, allowed: new Map<string, number>() };
}

const holder = (podUid: string, priority: number, on: Holder['on'], more: Partial<Holder> = {}): Holder => ({
  ...{ podUid, priority, on, createdMs: 0, budgets: [] },
  ...more,
});

const victimsOf = (situation: PreemptionSituation): string => {
  const found = choosePreemption(situation);
  return found ? found.victims.map(({ podUid }) => podUid).join(' ') : 'none';
};

test('the least important pods leave, as few as possible, the youngest first', (t) => {
  const cases: [what: string, shares: [number, number][], holders: Holder[], victims: string][] = [
    ['it fits as it is', [[400, 0]], [holder('a', 0, { 0: [600, 0] })], ''],
    ['no pod that may be evicted is in the way', [[1001, 0]], [holder('a', 0, { 0: [600, 0] })], 'none'],
    ['the lowest priority', [[700, 0]], [holder('a', 5, { 0: [500, 0] }), holder('b', 2, { 1: [500, 0] })], 'b'],
    [
      'two of a low priority rather than one of a high one',
      [[900, 0]],
      [holder('a', 5, { 0: [500, 0] }), holder('b', 2, { 1: [300, 0] }), holder('c', 2, { 1: [300, 0] })],
      'b c',
    ],
    [
      'one rather than two of the same priority',
      [[900, 0]],
      [holder('a', 2, { 0: [300, 0] }), holder('b', 2, { 0: [300, 0] }), holder('c', 2, { 1: [700, 0] })],
      'c',
    ],
    [
      'the youngest',
      [[900, 0]],
      [holder('a', 2, { 0: [300, 0] }, { createdMs: 7 }), holder('b', 2, { 1: [300, 0] }, { createdMs: 9 })],
      'b',
    ],
    ['for compute', [[1, 60]], [holder('a', 2, { 0: [1, 50] }), holder('b', 3, { 1: [1, 50] })], 'a'],
    [
      'a GPU for each share',
      [
        [600, 0],
        [600, 0],
      ],
      [holder('a', 2, { 0: [500, 0], 1: [100, 0] }), holder('b', 3, { 1: [500, 0] })],
      'b a',
    ],
  ];
  for (const [what, shares, holders, victims] of cases) t.is(victimsOf(situationOf(shares, 2, holders)), victims, what);
});

test('no disruption budget is exceeded', (t) => {
  const holders = [
    holder('a', 1, { 0: [300, 0] }, { budgets: ['x'] }),
    holder('b', 1, { 0: [300, 0] }, { budgets: ['x'] }),
    holder('c', 9, { 1: [700, 0] }),
  ];
  const allowing = (count: number) => ({ ...situationOf([[900, 0]], 2, holders), allowed: new Map([['x', count]]) });
  t.deepEqual([victimsOf(allowing(2)), victimsOf(allowing(1)), victimsOf(allowing(0))], ['a b', 'c', 'c']);
});

/** Random nodes. */
const NODES = Number(process.env.COTENANT_NODES ?? 20_000);

/** All sets of these. */
function allSets<T>(items: readonly T[]): readonly (readonly T[])[] {
  const masks = Array.from({ length: 2 ** items.length }, (_, mask) => mask);
  return masks.map((mask) => items.filter((_, index) => mask & (1 << index)));
}

test('victims are those that a search through all sets of pods finds', (t) => {
  const amount = fc.tuple(fc.integer({ min: 1, max: 900 }), fc.constantFrom(0, 0, 20, 50));
  const anyHolder = fc.record({
    priority: fc.integer({ min: 0, max: 3 }),
    createdMs: fc.nat(3),
    budgets: fc.subarray(['x', 'y'], { maxLength: 1 }),
    gpus: fc.uniqueArray(fc.tuple(fc.nat(2), amount), { minLength: 1, maxLength: 2, selector: ([gpu]) => gpu }),
  });
  const cheaper = (a: readonly Evictable[], b: readonly Evictable[]): boolean => {
    const highest = (set: readonly Evictable[]) => Math.max(-1, ...set.map(({ priority }) => priority));
    const sum = (set: readonly Evictable[]) => set.reduce((total, { priority }) => total + priority, 0);
    const key = (set: readonly Evictable[]) => [highest(set), set.length, sum(set)];
    const [first, second] = [key(a), key(b)];
    const at = first.findIndex((one, index) => one !== second[index]);
    return at >= 0 && (first[at] ?? 0) < (second[at] ?? 0);
  };
  t.notThrows(() => {
    fc.assert(
      fc.property(
        fc.array(amount, { minLength: 1, maxLength: 2 }),
        fc.array(anyHolder, { maxLength: 6 }),
        fc.record({ x: fc.nat(2), y: fc.nat(2) }),
        (shares, list, budgets) => {
          const holders = list.map(({ gpus, ...rest }, index) =>
            holder(`p${index}`, rest.priority, Object.fromEntries(gpus), rest),
          );
          const situation = { ...situationOf(shares, 3, holders), allowed: new Map(Object.entries(budgets)) };
          const { request, node, evictable, allowed } = situation;
          const helping = allSets(evictable).filter(
            (set) =>
              [...allowed].every(
                ([budget, most]) => set.filter((one) => one.budgets.includes(budget)).length <= most,
              ) && placePod(request, without(node, set), 'binpack').ok,
          );
          const found = choosePreemption(situation);
          if (!found) return helping.length === 0;
          if (!helping.some((set) => set.length === found.victims.length)) return false;
          return !helping.some((set) => cheaper(set, found.victims));
        },
      ),
      { numRuns: NODES },
    );
  });
});

test('sets of victims have one order', (t) => {
  const one = (priority: number, createdMs = 0) => ({
    podUid: 'p',
    priority,
    createdMs,
    demand: new Map(),
    budgets: [],
  });
  const sets = [[], [one(1, 9)], [one(1, 5)], [one(1), one(0)], [one(1), one(1)], [one(2)]];
  for (const [at, set] of sets.entries())
    for (const [other, later] of sets.entries()) t.is(Math.sign(compareVictims(set, later)), Math.sign(at - other));
});
