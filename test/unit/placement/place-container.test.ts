// Which cards a request gets: never more than a card has, the choice that the policy names, and refusals that say why.
import test from 'ava';
import fc from 'fast-check';
import type { PlaceableCard } from '../../../src/api/gpu.ts';
import type { CardShare, MemoryAmount } from '../../../src/api/request.ts';
import { GIB, MIB } from '../../../src/common/quantity.ts';
import { type PlacementRules, place } from '../../../src/placement/place-container.ts';

const card = (name: string, freeMib: number, more: Partial<PlaceableCard> = {}): PlaceableCard => ({
  gpuUuid: `GPU-${name}`,
  model: 'NVIDIA L4',
  usableBytes: 16_000 * MIB,
  healthy: true,
  grantedBytes: (16_000 - freeMib) * MIB,
  grantedCoresPercent: 0,
  tenants: 1,
  ...more,
});
const share = (mib: number, coresPercent?: number): CardShare => ({
  memory: { kind: 'bytes', bytes: mib * MIB },
  ...(coresPercent === undefined ? {} : { coresPercent }),
});
const rules = (more: Partial<PlacementRules> = {}): PlacementRules => ({
  placement: 'binpack',
  mostTenantsPerCard: 50,
  gpuUuids: [],
  ...more,
});
/** "a b": the cards of the shares, in the order of the shares; or why there are none. */
const placed = (
  shares: readonly CardShare[],
  cards: readonly PlaceableCard[],
  more: Partial<PlacementRules> = {},
): string => {
  const found = place(shares, cards, rules(more));
  return found.ok ? found.cards.map(({ gpuUuid }) => gpuUuid.slice('GPU-'.length)).join(' ') : found.reason;
};

test('binpack takes the fullest card that fits, spread the emptiest; ties go to the first', (t) => {
  const cards = [card('a', 8000), card('b', 2000), card('c', 12_000), card('d', 2000)];
  const cases: [shares: CardShare[], binpack: string, spread: string][] = [
    [[share(1000)], 'b', 'c'],
    [[share(2000)], 'b', 'c'],
    [[share(2001)], 'a', 'c'],
    [[share(9000)], 'c', 'c'],
    [[share(1000), share(1000)], 'b d', 'c a'],
    [[share(1000), share(3000)], 'b a', 'a c'], // the largest chooses first
    [[share(1), share(1), share(1), share(1)], 'b d a c', 'c a b d'],
  ];
  for (const [shares, binpack, spread] of cases) {
    t.is(placed(shares, cards), binpack);
    t.is(placed(shares, cards, { placement: 'spread' }), spread);
  }
});

test('a refusal says of every card what stands in the way', (t) => {
  const cases: [
    what: string,
    shares: CardShare[],
    cards: PlaceableCard[],
    more: Partial<PlacementRules>,
    reason: string,
  ][] = [
    ['no card', [share(1)], [], {}, 'card 1 of 1 fits nowhere: no card is left to choose from'],
    [
      'memory left',
      [share(1024)],
      [card('a', 604)],
      {},
      'card 1 of 1 fits nowhere: GPU-a has 604 MiB of cotenant.io/gpu-memory left, 1024 MiB are asked for',
    ],
    [
      'memory in all',
      [share(16_001)],
      [card('a', 16_000)],
      {},
      'card 1 of 1 fits nowhere: GPU-a has 16000 MiB in all, 16001 MiB are asked for',
    ],
    [
      'compute',
      [share(1, 50)],
      [card('a', 9000, { grantedCoresPercent: 60 })],
      {},
      'card 1 of 1 fits nowhere: GPU-a has 40 % of cotenant.io/gpu-cores left, 50 % are asked for',
    ],
    ['health', [share(1)], [card('a', 9000, { healthy: false })], {}, 'card 1 of 1 fits nowhere: GPU-a is not healthy'],
    [
      'tenants',
      [share(1)],
      [card('a', 9000, { tenants: 3 })],
      { mostTenantsPerCard: 3 },
      'card 1 of 1 fits nowhere: GPU-a has 3 tenants, which is its limit',
    ],
    [
      'only these cards',
      [share(1)],
      [card('a', 9000)],
      { gpuUuids: ['GPU-b'] },
      'no card GPU-b on this node; there are GPU-a',
    ],
    [
      'each card has its own reason',
      [share(5000)],
      [card('a', 9000, { healthy: false }), card('b', 4000)],
      {},
      'card 1 of 1 fits nowhere: GPU-a is not healthy; GPU-b has 4000 MiB of cotenant.io/gpu-memory left, 5000 MiB are asked for',
    ],
    [
      'the share that fits nowhere is named by its place in the request',
      [share(100), share(5000)],
      [card('a', 4000), card('b', 4000)],
      {},
      'card 2 of 2 fits nowhere: GPU-a has 4000 MiB of cotenant.io/gpu-memory left, 5000 MiB are asked for; GPU-b has 4000 MiB of cotenant.io/gpu-memory left, 5000 MiB are asked for',
    ],
    [
      'shares go to different cards',
      [share(1), share(1)],
      [card('a', 9000)],
      {},
      'card 2 of 2 fits nowhere: no card is left to choose from',
    ],
  ];
  for (const [what, shares, cards, more, reason] of cases) t.is(placed(shares, cards, more), reason, what);
});

test('a card is used to its last byte, percent and tenant, and not beyond', (t) => {
  const cases: [CardShare, PlaceableCard, boolean][] = [
    [share(604), card('a', 604), true],
    [share(605), card('a', 604), false],
    [share(604), { ...card('a', 604), grantedBytes: (16_000 - 604) * MIB + 1 }, false],
    [share(1, 40), card('a', 604, { grantedCoresPercent: 60 }), true],
    [share(1, 41), card('a', 604, { grantedCoresPercent: 60 }), false],
    [share(1), card('a', 604, { grantedCoresPercent: 100 }), true], // no compute share was asked for
    [share(1), card('a', 604, { tenants: 49 }), true],
    [share(1), card('a', 604, { tenants: 50 }), false],
    [share(1), card('a', -100), false], // more is granted than it has
  ];
  for (const [asked, on, fits] of cases) t.is(place([asked], [on], rules()).ok, fits, JSON.stringify([asked, on]));
});

test('amounts that need the card are those of the card that was chosen', (t) => {
  const small = card('small', 15_079, { usableBytes: 15_079 * MIB, grantedBytes: 0 });
  const big = card('big', 80_000, { usableBytes: 80_000 * MIB + 5, grantedBytes: 0 });
  const cases: [CardShare, PlaceableCard, memoryMib: number, limitMib: number][] = [
    [{ memory: { kind: 'units', units: 3, unitBytes: GIB, rounding: 'cgpu' } }, small, 3231, 3231],
    [{ memory: { kind: 'percent', percent: 33 } }, small, 150 * 33, 150 * 33],
    [{ memory: { kind: 'percent', percent: 33 } }, big, 800 * 33, 800 * 33],
    [{ memory: { kind: 'percent', percent: 25 }, memoryLimit: { kind: 'percent', percent: 50 } }, big, 20_000, 40_000],
  ];
  for (const [asked, on, memoryMib, limitMib] of cases) {
    t.deepEqual(place([asked], [on], rules()), {
      ok: true,
      cards: [{ gpuUuid: on.gpuUuid, memoryBytes: memoryMib * MIB, limitBytes: limitMib * MIB, coresPercent: 0 }],
    });
  }
  t.like(place([{ memory: { kind: 'whole' }, coresPercent: 100 }], [big], rules()), {
    cards: [{ gpuUuid: 'GPU-big', memoryBytes: big.usableBytes, limitBytes: big.usableBytes, coresPercent: 100 }],
  });
  t.false(place([{ memory: { kind: 'whole' } }], [{ ...big, grantedBytes: 1 }], rules()).ok);
});

const mib = (least: number, most: number) => fc.integer({ min: least, max: most });
const anyCards = fc
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
      ({ total, grantedPart, sick, grantedCoresPercent, tenants }, index): PlaceableCard => ({
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
  mostTenantsPerCard: fc.constantFrom(2, 50),
  gpuUuids: fc.constantFrom([], [], ['GPU-0', 'GPU-2']),
});
const shareOf = (memory: MemoryAmount, cores: number): CardShare => ({
  memory,
  ...(cores > 0 ? { coresPercent: cores } : {}),
});
const cores = fc.constantFrom(0, 0, 10, 50, 100);

test('no card is ever given more than it has left, whatever is asked for', (t) => {
  const shares = fc.array(fc.tuple(anyAmount, cores), { minLength: 1, maxLength: 4 });
  t.notThrows(() => {
    fc.assert(
      fc.property(shares, anyCards, anyRules, (asked, cards, given) => {
        const found = place(
          asked.map(([memory, percent]) => shareOf(memory, percent)),
          cards,
          given,
        );
        if (!found.ok) return;
        if (found.cards.length !== asked.length) throw new Error('a share without a card');
        if (new Set(found.cards.map(({ gpuUuid }) => gpuUuid)).size !== asked.length) throw new Error('a card twice');
        for (const [index, grant] of found.cards.entries()) {
          const on = cards.find(({ gpuUuid }) => gpuUuid === grant.gpuUuid);
          if (!on) throw new Error('a card that is not there');
          if (grant.memoryBytes + on.grantedBytes > on.usableBytes) throw new Error('memory overbooked');
          if (grant.coresPercent + on.grantedCoresPercent > 100) throw new Error('compute overbooked');
          if (on.tenants >= given.mostTenantsPerCard || !on.healthy) throw new Error('a card that is closed');
          if (given.gpuUuids.length > 0 && !given.gpuUuids.includes(on.gpuUuid)) throw new Error('another card');
          if (grant.coresPercent !== asked[index]?.[1]) throw new Error('another share of compute');
          if (grant.memoryBytes % MIB !== 0) throw new Error('not whole MiB');
        }
      }),
      { numRuns: 3000 },
    );
  });
});

/** All ways to give each share a card of its own. */
function* assignments(count: number, cards: readonly PlaceableCard[]): Generator<readonly PlaceableCard[]> {
  if (count === 0) yield [];
  for (const [index, first] of count > 0 ? cards.entries() : []) {
    const rest = cards.filter((_, other) => other !== index);
    for (const others of assignments(count - 1, rest)) yield [first, ...others];
  }
}

test('what fits in any way at all is placed: equal shares, and unequal amounts of memory', (t) => {
  const equal = fc
    .tuple(bytesAmount, cores, mib(1, 4))
    .map(([memory, percent, count]) => Array.from({ length: count }, () => shareOf(memory, percent)));
  const unequal = fc
    .array(bytesAmount, { minLength: 1, maxLength: 4 })
    .map((list) => list.map((memory) => shareOf(memory, 0)));
  t.notThrows(() => {
    fc.assert(
      fc.property(fc.oneof(equal, unequal), anyCards, anyRules, (shares, cards, chosenRules) => {
        const given = chosenRules;
        const fits = (asked: CardShare, on: PlaceableCard | undefined) =>
          on?.healthy &&
          on.tenants < given.mostTenantsPerCard &&
          (given.gpuUuids.length === 0 || given.gpuUuids.includes(on.gpuUuid)) &&
          asked.memory.kind === 'bytes' &&
          asked.memory.bytes <= on.usableBytes - on.grantedBytes &&
          (asked.coresPercent ?? 0) <= 100 - on.grantedCoresPercent;
        let possible = false;
        for (const chosen of assignments(shares.length, cards)) {
          if (shares.every((asked, index) => fits(asked, chosen[index]))) possible = true;
        }
        const found = place(shares, cards, given);
        if (found.ok !== possible) throw new Error(found.ok ? 'placed, though it does not fit' : found.reason);
      }),
      { numRuns: 3000 },
    );
  });
});

test('placing reads its arguments and changes none of them', (t) => {
  const cards = Object.freeze([Object.freeze(card('a', 500)), Object.freeze(card('b', 700))]);
  const shares = Object.freeze([share(600), share(100)]);
  t.is(placed(shares, cards), 'b a');
  t.deepEqual(place(shares, cards, rules()), place(shares, cards, rules()));
});
