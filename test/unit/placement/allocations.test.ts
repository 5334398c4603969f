// The sums of what is granted, and the order of nodes.
import test from 'ava';
import type { NodeGpus } from '../../../src/api/node-annotation.ts';
import { type Booking, createLedger } from '../../../src/placement/allocations.ts';
import { BEST_SCORE, compareFits, fitOf, scoreOf } from '../../../src/placement/score.ts';

const gpus = (...names: readonly string[]): NodeGpus => ({
  mostTenantsPerGpu: 4,
  gpus: names.map((gpuUuid, index) => ({ gpuUuid, index, model: 'x', usableBytes: 1000, healthy: true })),
});
const booking = (podUid: string, nodeName: string, gpuUuid: string, memoryBytes: number): Booking => ({
  podUid,
  nodeName,
  need: new Map([[gpuUuid, { memoryBytes, coresPercent: 10, tenants: 1 }]]),
});
const granted = (ledger: ReturnType<typeof createLedger>, node: string) =>
  ledger
    .books(node)
    ?.gpus.map(({ grantedBytes, grantedCoresPercent, tenants }) => [grantedBytes, grantedCoresPercent, tenants]);

test('grants are added up per GPU, taken back, and replaced, whatever comes first: the pod or its node', (t) => {
  const ledger = createLedger();
  ledger.book(booking('p', 'n', 'a', 300));
  t.is(ledger.books('n'), undefined, 'a node that has told no GPUs');
  ledger.setNode('n', gpus('a', 'b'));
  ledger.setNode('m', gpus('c'));
  ledger.book(booking('q', 'n', 'a', 200));
  ledger.book(booking('elsewhere', 'n', 'c', 50));
  t.deepEqual(granted(ledger, 'n'), [
    [500, 20, 2],
    [0, 0, 0],
  ]);
  t.deepEqual(granted(ledger, 'm'), [[0, 0, 0]], 'a GPU counts on the node of the pod');
  ledger.book(booking('p', 'm', 'c', 70));
  t.deepEqual([granted(ledger, 'n')?.[0], granted(ledger, 'm')], [[200, 10, 1], [[70, 10, 1]]]);
  ledger.removeNode('n');
  t.is(ledger.books('n'), undefined);
  ledger.setNode('n', gpus('a'));
  t.deepEqual(granted(ledger, 'n'), [[200, 10, 1]], 'it came back with its pods');
  ledger.release('q');
  ledger.release('q');
  t.deepEqual(granted(ledger, 'n'), [[0, 0, 0]]);
  t.is(ledger.bookingOf('q'), undefined);
});

test('what the agent of a node has given away itself is counted with the grants of pods', (t) => {
  const ledger = createLedger();
  const [one, two] = gpus('a', 'b').gpus;
  const others = { memoryBytes: 400, coresPercent: 30, tenants: 2 };
  ledger.book(booking('p', 'n', 'a', 300));
  ledger.setNode('n', { ...gpus(), gpus: one && two ? [{ ...one, others }, two] : [] });
  t.deepEqual(granted(ledger, 'n'), [
    [700, 40, 3],
    [0, 0, 0],
  ]);
});

test('books are one object until something changes on their node', (t) => {
  const ledger = createLedger();
  ledger.setNode('n', gpus('a'));
  ledger.setNode('m', gpus('b'));
  const before = ledger.books('n');
  ledger.book(booking('p', 'm', 'b', 1));
  t.is(ledger.books('n'), before);
  ledger.book(booking('q', 'n', 'a', 1));
  t.not(ledger.books('n'), before);
  t.is(before?.gpus[0]?.grantedBytes, 0, 'what was handed out stays as it was');
});

test('what changed since a version is told by node, as long as it is remembered', (t) => {
  const ledger = createLedger();
  ledger.setNode('n', gpus('a'));
  const before = ledger.version;
  ledger.removeNode('never there');
  ledger.release('never there');
  t.is(ledger.version, before);
  t.deepEqual(ledger.changedSince(before), new Set());
  ledger.book(booking('p', 'n', 'a', 1));
  ledger.book(booking('p', 'm', 'a', 1));
  t.deepEqual(ledger.changedSince(before), new Set(['n', 'm']));
  ledger.release('p');
  t.deepEqual(ledger.changedSince(ledger.version - 1), new Set(['m']));
  for (let turn = 0; turn < 5000; turn += 1) ledger.setNode('n', gpus('a'));
  t.is(ledger.changedSince(before), undefined);
  t.deepEqual(ledger.changedSince(ledger.version - 3000), new Set(['n']));
});

test('where limits do not hold, and why a GPU is not healthy, is handed on as its node tells it', (t) => {
  const ledger = createLedger();
  const told = gpus('a', 'b');
  ledger.setNode('n', {
    ...told,
    gpus: told.gpus.map((gpu, at) => (at === 0 ? { ...gpu, unfenced: 'why', fault: 'Xid' } : gpu)),
  });
  t.deepEqual(
    ledger.books('n')?.gpus.map(({ unfenced, fault }) => [unfenced, fault]),
    [
      ['why', 'Xid'],
      [undefined, undefined],
    ],
  );
});

test('a grant that cannot be read closes the GPUs that it names, until its pod has gone', (t) => {
  const ledger = createLedger();
  ledger.setNode('n', gpus('a', 'b'));
  ledger.book({ podUid: 'p', nodeName: 'n', need: new Map(), closes: { gpuUuids: ['a'], because: 'why' } });
  t.deepEqual(
    ledger.books('n')?.gpus.map(({ closed }) => closed),
    ['why', undefined],
  );
  ledger.release('p');
  t.deepEqual(
    ledger.books('n')?.gpus.map(({ closed }) => closed),
    [undefined, undefined],
  );
});

test('binpack keeps whole GPUs free and fills the fullest node, spread takes the emptiest', (t) => {
  const candidates = [
    { node: 'c', fit: { opened: 0, granted: 0.5 } },
    { node: 'a', fit: { opened: 1, granted: 0.9 } },
    { node: 'd', fit: { opened: 0, granted: 0.7 } },
    { node: 'b', fit: { opened: 0, granted: 0.5 } },
  ];
  const order = (placement: 'binpack' | 'spread' | 'fragmentation') =>
    candidates
      .toSorted((a, b) => compareFits(a.fit, b.fit, placement))
      .map(({ node }) => node)
      .join('');
  t.is(order('binpack'), 'dcba');
  t.is(order('fragmentation'), 'dcba');
  t.is(order('spread'), 'cbda');
});

test('what a placement does to its node counts the GPUs that it opens', (t) => {
  const ledger = createLedger();
  ledger.setNode('n', gpus('a', 'b'));
  ledger.book(booking('p', 'n', 'a', 500));
  const books = ledger.books('n');
  if (!books) return t.fail();
  const on = (gpuUuid: string) => ({ gpuUuid, memoryBytes: 200, limitBytes: 200, coresPercent: 0 });
  const grant = (...uuids: string[]) => [
    { name: 'm', kind: 'app' as const, memoryIsolation: 'on' as const, gpus: uuids.map(on) },
  ];
  t.deepEqual(fitOf(grant('a'), books), { opened: 0, granted: 0.35 });
  t.deepEqual(fitOf(grant('a', 'b'), books), { opened: 1, granted: 0.45 });
});

test('the best node has the highest score alone, and no score is out of the range that the protocol has', (t) => {
  for (const count of [1, 2, 3, 10, 11, 5000]) {
    const scores = Array.from({ length: count }, (_, place) => scoreOf(place, count));
    t.is(scores[0], BEST_SCORE);
    t.true(scores.slice(1).every((score, index) => score >= 0 && score < BEST_SCORE && score <= (scores[index] ?? 0)));
  }
});
