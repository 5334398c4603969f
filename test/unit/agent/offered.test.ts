// What a node tells the scheduler of its cards.
import test from 'ava';
import { offeredCards } from '../../../src/agent/offered.ts';
import { card, compared, sampleOf } from './node.ts';

const FENCES = { status: 'True', reason: 'FencesHold', message: '' } as const;

test('cards that MIG divides and their instances are not offered, nor waited for by what is said of fences', (t) => {
  const cards = [
    card(0),
    card(1, { divided: true }),
    card(2, { uuid: 'MIG-2', parent: 1 }),
    card(3, { healthy: false }),
  ];
  const asked: (readonly string[])[] = [];
  const offered = offeredCards(compared(sampleOf(cards, []), [], {}), {
    isStale: false,
    mostTenantsPerCard: 5,
    grants: [],
    unfencedOf: (gpuUuid) => (gpuUuid === 'GPU-3' ? 'a request beyond the grant succeeded' : undefined),
    fencesOf: (uuids) => {
      asked.push(uuids);
      return FENCES;
    },
  });
  t.deepEqual(
    offered.cards.map(({ gpuUuid, healthy, unfenced }) => [gpuUuid, healthy, unfenced]),
    [
      ['GPU-0', true, undefined],
      ['GPU-3', false, 'a request beyond the grant succeeded'],
    ],
  );
  t.deepEqual(asked, [['GPU-0']]);
  t.is(offered.fences, FENCES);
});
