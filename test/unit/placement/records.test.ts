// The two annotations that carry cards over the cluster: one value has one text, and only that text is read.
import test from 'ava';
import fc from 'fast-check';
import { needOf } from '../../../src/placement/need.ts';
import { formatNodeCards, type NodeCards, parseNodeCards, withMissing } from '../../../src/placement/node-cards.ts';
import { type ContainerGrant, formatPodGrant, type PodGrant, parsePodGrant } from '../../../src/placement/pod-grant.ts';

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
    fc.record({
      gpuUuid,
      index: fc.nat(16),
      model: fc.string({ maxLength: 40 }),
      usableBytes: fc.nat(2 ** 30),
      healthy: fc.boolean(),
    }),
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

test('a card that is missing stays, not healthy, while pods hold grants on it, and then no longer', (t) => {
  const reading = {
    mostTenantsPerCard: 20,
    cards: [cardOf(1)],
    complete: true,
    heldGpuUuids: [cardOf(1), cardOf(2)].map((one) => one.gpuUuid),
  };
  t.deepEqual(withMissing(reading, known), { mostTenantsPerCard: 20, cards: [cardOf(1), cardOf(2, false)] });
  t.deepEqual(withMissing({ ...reading, heldGpuUuids: [] }, known), { mostTenantsPerCard: 20, cards: [cardOf(1)] });
  t.deepEqual(withMissing(reading, undefined), { mostTenantsPerCard: 20, cards: [cardOf(1)] });
});

test('while the driver cannot be asked all cards stay, and none is healthy', (t) => {
  const reading = { mostTenantsPerCard: 10, cards: [], complete: false, heldGpuUuids: [] };
  t.deepEqual(withMissing(reading, known).cards, [cardOf(0, false), cardOf(1, false), cardOf(2, false)]);
});

test('a lost card, which no longer tells its memory, keeps the amount that it had', (t) => {
  const lost = { ...cardOf(1, false), usableBytes: 0 };
  const reading = { mostTenantsPerCard: 10, cards: [cardOf(0), lost], complete: true, heldGpuUuids: [] };
  t.deepEqual(withMissing(reading, known).cards, [cardOf(0), cardOf(1, false)]);
  t.deepEqual(withMissing(reading, undefined).cards, [cardOf(0), lost]);
});
