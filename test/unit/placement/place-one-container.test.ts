// Requests of one container, such as a plain process has: never more than a GPU has, by the placement policy, and
// refusals with the reason for every GPU.
import test from 'ava';
import fc from 'fast-check';
import type { GpuGrant, PlaceableGpu } from '../../../src/api/gpu.ts';
import type { GpuShare, MemoryAmount, Placement } from '../../../src/api/request.ts';
import { GIB, MIB } from '../../../src/common/quantity.ts';
import { placePod } from '../../../src/placement/place-pod.ts';

type PlacementRules = {
  readonly placement: Placement;
  readonly mostTenantsPerGpu: number;
  readonly gpuUuids: readonly string[];
};
type Placed =
  | { readonly ok: true; readonly gpus: readonly GpuGrant[] }
  | { readonly ok: false; readonly reason: string };

function place(shares: readonly GpuShare[], gpus: readonly PlaceableGpu[], given: PlacementRules): Placed {
  const { gpuUuids, mostTenantsPerGpu, placement } = given;
  const containers = [{ name: 'main', kind: 'app', memoryIsolation: 'on', gpus: shares }] as const;
  const found = placePod({ gpuModels: [], gpuUuids, containers }, { mostTenantsPerGpu, gpus }, placement);
  return found.ok
    ? { ok: true, gpus: found.containers.flatMap((one) => one.gpus) }
    : { ok: false, reason: found.reason('all') };
}

const gpu = (name: string, freeMib: number, more: Partial<PlaceableGpu> = {}): PlaceableGpu => ({
  gpuUuid: `GPU-${name}`,
  model: 'NVIDIA L4',
  usableBytes: 16_000 * MIB,
  healthy: true,
  grantedBytes: (16_000 - freeMib) * MIB,
  grantedCoresPercent: 0,
  tenants: 1,
  ...more,
});
const share = (mib: number, coresPercent?: number): GpuShare => ({
  memory: { kind: 'bytes', bytes: mib * MIB },
  ...(coresPercent === undefined ? {} : { coresPercent }),
});
const rules = (more: Partial<PlacementRules> = {}): PlacementRules => ({
  placement: 'binpack',
  mostTenantsPerGpu: 50,
  gpuUuids: [],
  ...more,
});
/** "a b": the GPUs of the shares, in the order of the shares; or why there are none. */
const placed = (
  shares: readonly GpuShare[],
  gpus: readonly PlaceableGpu[],
  more: Partial<PlacementRules> = {},
): string => {
  const found = place(shares, gpus, rules(more));
  return found.ok ? found.gpus.map(({ gpuUuid }) => gpuUuid.slice('GPU-'.length)).join(' ') : found.reason;
};

test('binpack takes the fullest GPU, spread the emptiest; ties go to the first', (t) => {
  const gpus = [gpu('a', 8000), gpu('b', 2000), gpu('c', 12_000), gpu('d', 2000)];
  const cases: [shares: GpuShare[], binpack: string, spread: string][] = [
    [[share(1000)], 'b', 'c'],
    [[share(2000)], 'b', 'c'],
    [[share(2001)], 'a', 'c'],
    [[share(9000)], 'c', 'c'],
    [[share(1000), share(1000)], 'b d', 'c a'],
    [[share(1000), share(3000)], 'b a', 'a c'], // the largest chooses first
    [[share(1), share(1), share(1), share(1)], 'b d a c', 'c a b d'],
  ];
  for (const [shares, binpack, spread] of cases) {
    t.is(placed(shares, gpus), binpack);
    t.is(placed(shares, gpus, { placement: 'spread' }), spread);
  }
});

test('binpack opens no empty GPU while a share fits on one that has containers', (t) => {
  const large = (freeMib: number) =>
    gpu('large', freeMib, { usableBytes: 80_000 * MIB, grantedBytes: (80_000 - freeMib) * MIB });
  const empty = gpu('small', 16_000, { tenants: 0 });
  t.is(placed([share(8000)], [large(40_000), empty]), 'large');
  t.is(placed([share(8000)], [large(7999), empty]), 'small');
  t.is(placed([share(8000), share(8000)], [large(40_000), empty]), 'large small');
  t.is(placed([share(8000)], [large(40_000), empty], { placement: 'spread' }), 'large');
  t.is(placed([share(8000)], [large(12_000), empty], { placement: 'spread' }), 'small');
});

test('binpack fills the GPU with least memory or compute left, spread leaves it', (t) => {
  const cases: [
    what: string,
    share: GpuShare,
    gpus: [freeMib: number, granted: number][],
    binpack: string,
    spread: string,
  ][] = [
    [
      'equal memory',
      share(1000, 10),
      [
        [8000, 10],
        [8000, 80],
      ],
      'b',
      'a',
    ],
    [
      'equal compute',
      share(1000, 10),
      [
        [8000, 50],
        [4000, 50],
      ],
      'b',
      'a',
    ],
    [
      'no compute is left beside much memory',
      share(1000),
      [
        [4000, 20],
        [12_000, 100],
      ],
      'b',
      'a',
    ],
    [
      'no compute is left on either',
      share(1000),
      [
        [4000, 100],
        [12_000, 100],
      ],
      'a',
      'b',
    ],
    [
      'the scarcer of both counts',
      share(1000, 10),
      [
        [3000, 10],
        [12_000, 85],
      ],
      'b',
      'a',
    ],
    [
      'no compute is granted',
      share(1000),
      [
        [4000, 0],
        [12_000, 0],
      ],
      'a',
      'b',
    ],
  ];
  for (const [what, one, free, binpack, spread] of cases) {
    const gpus = free.map(([mib, grantedCoresPercent], at) => gpu('ab'.charAt(at), mib, { grantedCoresPercent }));
    t.is(placed([one], gpus), binpack, what);
    t.is(placed([one], gpus.toReversed(), { placement: 'spread' }), spread, `${what}, spread`);
  }
});

test('a refusal names the reason for every GPU', (t) => {
  const cases: [
    what: string,
    shares: GpuShare[],
    gpus: PlaceableGpu[],
    more: Partial<PlacementRules>,
    reason: string,
  ][] = [
    ['no GPU', [share(1)], [], {}, 'the agent reports no GPU (cotenant.io/gpu)'],
    [
      'memory left',
      [share(1024)],
      [gpu('a', 604)],
      {},
      'GPU-a has 604 MiB of cotenant.io/gpu-memory free, but 1024 MiB are requested (it lacks 420 MiB)',
    ],
    [
      'memory in all',
      [share(16_001)],
      [gpu('a', 16_000)],
      {},
      'GPU-a has 16000 MiB of cotenant.io/gpu-memory, but 16001 MiB are requested (it lacks 1 MiB)',
    ],
    [
      'compute',
      [share(1, 50)],
      [gpu('a', 9000, { grantedCoresPercent: 60 })],
      {},
      'GPU-a has 40 % of cotenant.io/gpu-cores free, but 50 % are requested (it lacks 10 %)',
    ],
    ['health', [share(1)], [gpu('a', 9000, { healthy: false })], {}, 'GPU-a is not healthy'],
    [
      'tenants',
      [share(1)],
      [gpu('a', 9000, { tenants: 3 })],
      { mostTenantsPerGpu: 3 },
      'GPU-a has 3 of at most 3 containers, and this would be one more',
    ],
    [
      'only these GPUs',
      [share(1)],
      [gpu('a', 9000)],
      { gpuUuids: ['GPU-b'] },
      'the node has none of the requested GPUs GPU-b; its GPUs are GPU-a',
    ],
    [
      'each GPU has its own reason',
      [share(5000)],
      [gpu('a', 9000, { healthy: false }), gpu('b', 4000)],
      {},
      'GPU-a is not healthy; GPU-b has 4000 MiB of cotenant.io/gpu-memory free, but 5000 MiB are requested (it lacks 1000 MiB)',
    ],
    [
      'the share that fits on no GPU, with every GPU',
      [share(100), share(5000)],
      [gpu('a', 4000), gpu('b', 4000)],
      {},
      'GPU-a has 4000 MiB of cotenant.io/gpu-memory free, but 5000 MiB are requested (it lacks 1000 MiB); GPU-b has 4000 MiB of cotenant.io/gpu-memory free, but 5000 MiB are requested (it lacks 1000 MiB)',
    ],
    [
      'shares go to different GPUs',
      [share(1), share(1)],
      [gpu('a', 9000)],
      {},
      'one GPU can be used, but 2 are requested (cotenant.io/gpu)',
    ],
  ];
  for (const [what, shares, gpus, more, reason] of cases) t.is(placed(shares, gpus, more), reason, what);
});

test('a GPU is used to its last byte, percent and container, and not beyond', (t) => {
  const cases: [GpuShare, PlaceableGpu, boolean][] = [
    [share(604), gpu('a', 604), true],
    [share(605), gpu('a', 604), false],
    [share(604), { ...gpu('a', 604), grantedBytes: (16_000 - 604) * MIB + 1 }, false],
    [share(1, 40), gpu('a', 604, { grantedCoresPercent: 60 }), true],
    [share(1, 41), gpu('a', 604, { grantedCoresPercent: 60 }), false],
    [share(1), gpu('a', 604, { grantedCoresPercent: 100 }), true], // no compute was requested
    [share(1), gpu('a', 604, { tenants: 49 }), true],
    [share(1), gpu('a', 604, { tenants: 50 }), false],
    [share(1), gpu('a', -100), false], // more is granted than it has
  ];
  for (const [asked, on, fits] of cases) t.is(place([asked], [on], rules()).ok, fits, JSON.stringify([asked, on]));
});

test('relative amounts are those of the GPU that was chosen', (t) => {
  const small = gpu('small', 15_079, { usableBytes: 15_079 * MIB, grantedBytes: 0 });
  const big = gpu('big', 80_000, { usableBytes: 80_000 * MIB + 5, grantedBytes: 0 });
  const cases: [GpuShare, PlaceableGpu, memoryMib: number, limitMib: number][] = [
    [{ memory: { kind: 'units', units: 3, unitBytes: GIB, rounding: 'cgpu' } }, small, 3231, 3231],
    [{ memory: { kind: 'percent', percent: 33 } }, small, 150 * 33, 150 * 33],
    [{ memory: { kind: 'percent', percent: 33 } }, big, 800 * 33, 800 * 33],
    [{ memory: { kind: 'percent', percent: 25 }, memoryLimit: { kind: 'percent', percent: 50 } }, big, 20_000, 40_000],
  ];
  for (const [asked, on, memoryMib, limitMib] of cases) {
    t.deepEqual(place([asked], [on], rules()), {
      ok: true,
      gpus: [{ gpuUuid: on.gpuUuid, memoryBytes: memoryMib * MIB, limitBytes: limitMib * MIB, coresPercent: 0 }],
    });
  }
  t.like(place([{ memory: { kind: 'whole' }, coresPercent: 100 }], [big], rules()), {
    gpus: [{ gpuUuid: 'GPU-big', memoryBytes: big.usableBytes, limitBytes: big.usableBytes, coresPercent: 100 }],
  });
  t.false(place([{ memory: { kind: 'whole' } }], [{ ...big, grantedBytes: 1 }], rules()).ok);
});

const mib = (least: number, most: number) => fc.integer({ min: least, max: most });
const anyGpus = fc
  .array(
    fc.record({
      total: mib(500, 4000),
      grantedPart: fc.double({ min: 0, max: 1.2, noNaN: true }),
      sick: fc.integer({ min: 0, max: 6 }),
      grantedCoresPercent: fc.constantFrom(0, 30, 70, 100),
      tenants: fc.integer({ min: 0, max: 3 }),
    }),
    { maxLength: 4 },
  )
  .map((list) =>
    list.map(
      ({ total, grantedPart, sick, grantedCoresPercent, tenants }, index): PlaceableGpu => ({
        gpuUuid: `GPU-${index}`,
        model: 'x',
        usableBytes: total * MIB,
        healthy: sick !== 0,
        grantedBytes: Math.floor(total * grantedPart) * MIB,
        grantedCoresPercent,
        tenants,
      }),
    ),
  );
const bytesAmount = mib(1, 3000).map((size): MemoryAmount => ({ kind: 'bytes', bytes: size * MIB }));
const anyAmount = fc.oneof(
  bytesAmount,
  fc.constant<MemoryAmount>({ kind: 'whole' }),
  mib(1, 100).map((percent): MemoryAmount => ({ kind: 'percent', percent })),
  mib(1, 40).map((units): MemoryAmount => ({ kind: 'units', units, unitBytes: 128 * MIB, rounding: 'cgpu' })),
);
const anyRules = fc.record<PlacementRules>({
  placement: fc.constantFrom('binpack', 'spread', 'fragmentation'),
  mostTenantsPerGpu: fc.constantFrom(2, 50),
  gpuUuids: fc.constantFrom([], [], ['GPU-0', 'GPU-2']),
});
const shareOf = (memory: MemoryAmount, cores: number): GpuShare => ({
  memory,
  ...(cores > 0 ? { coresPercent: cores } : {}),
});
const cores = fc.constantFrom(0, 0, 10, 50, 100);

test('no GPU is granted beyond what is free, whatever is requested', (t) => {
  const shares = fc.array(fc.tuple(anyAmount, cores), { minLength: 1, maxLength: 4 });
  t.notThrows(() => {
    fc.assert(
      fc.property(shares, anyGpus, anyRules, (asked, gpus, given) => {
        const found = place(
          asked.map(([memory, percent]) => shareOf(memory, percent)),
          gpus,
          given,
        );
        if (!found.ok) return;
        if (found.gpus.length !== asked.length) throw new Error('a share without a GPU');
        if (new Set(found.gpus.map(({ gpuUuid }) => gpuUuid)).size !== asked.length) throw new Error('a GPU twice');
        for (const [index, grant] of found.gpus.entries()) {
          const on = gpus.find(({ gpuUuid }) => gpuUuid === grant.gpuUuid);
          if (!on) throw new Error('a GPU that is not there');
          if (grant.memoryBytes + on.grantedBytes > on.usableBytes) throw new Error('memory overcommitted');
          if (grant.coresPercent + on.grantedCoresPercent > 100) throw new Error('compute overcommitted');
          if (on.tenants >= given.mostTenantsPerGpu || !on.healthy) throw new Error('a GPU that takes no new pods');
          if (given.gpuUuids.length > 0 && !given.gpuUuids.includes(on.gpuUuid)) throw new Error('another GPU');
          if (grant.coresPercent !== asked[index]?.[1]) throw new Error('another share of compute');
          if (grant.memoryBytes % MIB !== 0) throw new Error('not whole MiB');
        }
      }),
      { numRuns: 3000 },
    );
  });
});

/** All ways to give each share a GPU of its own. */
function* assignments(count: number, gpus: readonly PlaceableGpu[]): Generator<readonly PlaceableGpu[]> {
  if (count === 0) yield [];
  for (const [index, first] of count > 0 ? gpus.entries() : []) {
    const rest = gpus.filter((_, other) => other !== index);
    for (const others of assignments(count - 1, rest)) yield [first, ...others];
  }
}

test('shares that fit in any way are placed, equal and unequal ones', (t) => {
  const equal = fc
    .tuple(bytesAmount, cores, mib(1, 4))
    .map(([memory, percent, count]) => Array.from({ length: count }, () => shareOf(memory, percent)));
  const unequal = fc
    .array(bytesAmount, { minLength: 1, maxLength: 4 })
    .map((list) => list.map((memory) => shareOf(memory, 0)));
  t.notThrows(() => {
    fc.assert(
      fc.property(fc.oneof(equal, unequal), anyGpus, anyRules, (shares, gpus, chosenRules) => {
        const given = chosenRules;
        const fits = (asked: GpuShare, on: PlaceableGpu | undefined) =>
          on?.healthy &&
          on.tenants < given.mostTenantsPerGpu &&
          (given.gpuUuids.length === 0 || given.gpuUuids.includes(on.gpuUuid)) &&
          asked.memory.kind === 'bytes' &&
          asked.memory.bytes <= on.usableBytes - on.grantedBytes &&
          (asked.coresPercent ?? 0) <= 100 - on.grantedCoresPercent;
        let possible = false;
        for (const chosen of assignments(shares.length, gpus)) {
          if (shares.every((asked, index) => fits(asked, chosen[index]))) possible = true;
        }
        const found = place(shares, gpus, given);
        if (found.ok !== possible) throw new Error(found.ok ? 'placed, though it does not fit' : found.reason);
      }),
      { numRuns: 3000 },
    );
  });
});

test('placing does not change its arguments', (t) => {
  const gpus = Object.freeze([Object.freeze(gpu('a', 500)), Object.freeze(gpu('b', 700))]);
  const shares = Object.freeze([share(600), share(100)]);
  t.is(placed(shares, gpus), 'b a');
  t.deepEqual(place(shares, gpus, rules()), place(shares, gpus, rules()));
});
