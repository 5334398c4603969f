// The two annotations that carry cards over the cluster: one value has one text, and only that text is read.
import test from 'ava';
import fc from 'fast-check';
import {
  type ContainerGrant,
  formatPodGrant,
  type PodGrant,
  parsePodGrant,
} from '../../../src/api/grant-annotation.ts';
import {
  type CardsReading,
  cardsToTell,
  formatNodeCards,
  type NodeCards,
  parseNodeCards,
} from '../../../src/api/node-annotation.ts';
import { type CardNeed, needOf } from '../../../src/placement/demand.ts';

const uuid = (number: number) => `GPU-00000000-0000-4000-8000-${String(number).padStart(12, '0')}`;
const bytes = fc.integer({ min: 1, max: 2 ** 40 });
const gpuUuid = fc.integer({ min: 0, max: 30 }).map(uuid);
const card = fc.record({ gpuUuid, memoryBytes: bytes, limitBytes: bytes, coresPercent: fc.nat(100) });
const container: fc.Arbitrary<ContainerGrant> = fc.record({
  name: fc.stringMatching(/^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$/),
  kind: fc.constantFrom('init', 'sidecar', 'app'),
  memoryIsolation: fc.constantFrom('on', 'off'),
  cards: fc.uniqueArray(card, { selector: (one) => one.gpuUuid, minLength: 1, maxLength: 5 }),
});
const podGrant: fc.Arbitrary<PodGrant> = fc.record({
  epoch: fc.nat(),
  containers: fc.uniqueArray(container, { selector: ({ name }) => name, minLength: 1, maxLength: 4 }),
});
const nodeCards: fc.Arbitrary<NodeCards> = fc.record({
  mostTenantsPerCard: fc.integer({ min: 1, max: 1000 }),
  cards: fc.uniqueArray(
    fc.record(
      {
        gpuUuid,
        index: fc.nat(16),
        model: fc.string({ maxLength: 40 }),
        usableBytes: fc.nat(2 ** 30),
        healthy: fc.boolean(),
        others: fc.record({ memoryBytes: fc.nat(2 ** 30), coresPercent: fc.nat(500), tenants: fc.nat(50) }),
      },
      { requiredKeys: ['gpuUuid', 'index', 'model', 'usableBytes', 'healthy'] },
    ),
    { selector: (one) => one.gpuUuid, maxLength: 8 },
  ),
});

test('a grant is read back as it was written, whatever the order of its containers was', (t) => {
  fc.assert(
    fc.property(podGrant, (grant) => {
      const sorted = { ...grant, containers: grant.containers.toSorted((a, b) => (a.name < b.name ? -1 : 1)) };
      t.deepEqual(parsePodGrant(formatPodGrant(grant)), sorted);
    }),
  );
});

test('the cards of a node are read back as they were written', (t) => {
  fc.assert(fc.property(nodeCards, (cards) => t.deepEqual(parseNodeCards(formatNodeCards(cards)), cards)));
});

const one = { name: 'main', kind: 'app', memoryIsolation: 'on' } as const;
const oneCard = { gpuUuid: uuid(1), memoryBytes: 100, limitBytes: 100, coresPercent: 0 };
const good: PodGrant = { epoch: 3, containers: [{ ...one, cards: [oneCard] }] };

for (const [what, text] of [
  ['text', 'yes'],
  ['nothing', 'null'],
  ['another version', formatPodGrant(good).replace('"version":1', '"version":2')],
  ['no container', JSON.stringify({ version: 1, epoch: 3, containers: [] })],
  ['a card twice', formatPodGrant({ ...good, containers: [{ ...one, cards: [oneCard, oneCard] }] })],
  ['a container twice', formatPodGrant({ ...good, containers: [...good.containers, ...good.containers] })],
  ['half a byte', formatPodGrant(good).replace('"memoryBytes":100', '"memoryBytes":100.5')],
  ['more compute than a card has', formatPodGrant(good).replace('"coresPercent":0', '"coresPercent":101')],
  ['a path for a card', formatPodGrant(good).replace(uuid(1), '../../etc')],
  ['another key', formatPodGrant(good).replace('"epoch"', '"more":1,"epoch"')],
  ['another spelling', ` ${formatPodGrant(good)}`],
] as const) {
  test(`no grant is read from ${what}`, (t) => {
    const read = parsePodGrant(text);
    t.true('wrong' in read, JSON.stringify(read));
  });
}

test('a pod needs the larger of its biggest init container and all its containers, and its sidecars beside both', (t) => {
  const of = (kind: ContainerGrant['kind'], name: string, ...amounts: readonly (readonly [number, number])[]) => ({
    name,
    kind,
    memoryIsolation: 'on' as const,
    cards: amounts.map(([on, size]) => ({ ...oneCard, gpuUuid: uuid(on), memoryBytes: size, coresPercent: size / 10 })),
  });
  const need = needOf([
    of('init', 'a', [1, 500], [2, 100]),
    of('init', 'b', [1, 300]),
    of('sidecar', 'c', [1, 50]),
    of('app', 'd', [1, 200], [2, 400]),
    of('app', 'e', [1, 250]),
  ]);
  t.deepEqual(need.get(uuid(1)), { memoryBytes: 550, coresPercent: 55, tenants: 3 });
  t.deepEqual(need.get(uuid(2)), { memoryBytes: 400, coresPercent: 40, tenants: 1 });
  t.is(need.size, 2);
});

const cardOf = (digit: number, healthy = true) => ({
  gpuUuid: `GPU-00000000-0000-4000-8000-00000000000${digit}`,
  index: digit,
  model: 'NVIDIA L4',
  usableBytes: 1000 + digit,
  healthy,
});
const known: NodeCards = { mostTenantsPerCard: 10, cards: [cardOf(0), cardOf(1), cardOf(2)] };
const held = (
  memoryBytes: number,
  digits: readonly number[],
  podUid?: string,
  kind: ContainerGrant['kind'] = 'app',
) => {
  const cards = digits.map((digit) => ({ ...oneCard, gpuUuid: cardOf(digit).gpuUuid, memoryBytes, coresPercent: 20 }));
  return { ...(podUid !== undefined && { podUid }), containers: [{ ...one, kind, cards }] };
};
const toTell = (
  reading: Omit<CardsReading, 'mostTenantsPerCard'>,
  shown?: NodeCards,
  texts: Record<string, string> = {},
) => cardsToTell({ mostTenantsPerCard: 20, ...reading }, shown, (podUid) => texts[podUid]).cards;

test('a card that is missing stays, not healthy, while pods hold grants on it, and then no longer', (t) => {
  const reading = { cards: [cardOf(1)], complete: true, held: [held(1, [1, 2], 'p')] };
  t.deepEqual(toTell(reading, known), [cardOf(1), cardOf(2, false)]);
  t.deepEqual(toTell({ ...reading, held: [] }, known), [cardOf(1)]);
  t.deepEqual(toTell(reading), [cardOf(1)]);
  const tell = cardsToTell({ mostTenantsPerCard: 20, ...reading }, known, () => undefined);
  t.is(tell.mostTenantsPerCard, 20);
});

test('while the driver cannot be asked all cards stay, and none is healthy', (t) => {
  const reading = { cards: [], complete: false, held: [] };
  t.deepEqual(toTell(reading, known), [cardOf(0, false), cardOf(1, false), cardOf(2, false)]);
});

test('a lost card, which no longer tells its memory, keeps the amount that it had', (t) => {
  const lost = { ...cardOf(1, false), usableBytes: 0 };
  const reading = { cards: [cardOf(0), lost], complete: true, held: [] };
  t.deepEqual(toTell(reading, known), [cardOf(0), cardOf(1, false)]);
  t.deepEqual(toTell(reading), [cardOf(0), lost]);
});

const annotated = (memoryBytes: number) =>
  formatPodGrant({
    epoch: 1,
    containers: [{ ...one, cards: [{ ...oneCard, gpuUuid: cardOf(0).gpuUuid, memoryBytes }] }],
  });
const need = (memoryBytes: number, coresPercent = 0, tenants = 0): CardNeed => ({ memoryBytes, coresPercent, tenants });
const OTHERS: [
  what: string,
  held: CardsReading['held'],
  texts: Record<string, string>,
  others: (CardNeed | undefined)[],
][] = [
  ['nothing is held', [], {}, [undefined, undefined]],
  ['plain grants count whole', [held(300, [0]), held(50, [0, 1])], {}, [need(350, 40, 2), need(50, 20, 1)]],
  ['a pod with what its annotation says', [held(300, [0], 'p')], { p: annotated(300) }, [undefined, undefined]],
  [
    'a pod that was given more',
    [held(500, [0], 'p'), held(1, [0])],
    { p: annotated(300) },
    [need(201, 20, 1), undefined],
  ],
  ['a pod that was given less', [held(100, [0], 'p')], { p: annotated(300) }, [undefined, undefined]],
  ['a pod that is not known', [held(500, [0], 'p')], {}, [undefined, undefined]],
  ['a pod whose annotation cannot be read', [held(500, [0], 'p')], { p: '{' }, [undefined, undefined]],
];

for (const [what, grants, texts, others] of OTHERS) {
  test(`what the agent gave away beyond annotations is told: ${what}`, (t) => {
    // What was told before is not told again by itself.
    const shown = { ...known, cards: known.cards.map((card) => ({ ...card, others: need(7, 7, 7) })) };
    const reading = { cards: [cardOf(0), cardOf(1)], complete: true, held: grants };
    const told = toTell(reading, shown, texts).map((card) => card.others);
    t.deepEqual(told, others);
  });
}

test('what an agent of a later version tells besides is passed over, and amounts that are none make no cards', (t) => {
  const text = formatNodeCards({ mostTenantsPerCard: 10, cards: [{ ...cardOf(0), others: need(5, 1, 1) }] });
  t.deepEqual(parseNodeCards(text.replace('"others":', '"later":1,"others":')), parseNodeCards(text));
  for (const wrong of ['"memoryBytes":-5', '"memoryBytes":"5"', '"memory":5'])
    t.deepEqual(parseNodeCards(text.replace('"memoryBytes":5', wrong)), { wrong: 'cards[0] is not a card' }, wrong);
});
