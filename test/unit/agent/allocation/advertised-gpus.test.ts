// What a node tells the scheduler of its cards.
import test from 'ava';
import { offeredCards } from '../../../../src/agent/allocation/advertised-gpus.ts';
import { card, compared, sampleOf } from '../node.ts';

const FENCES = { status: 'True', reason: 'FencesHold', message: '' } as const;

test('cards that MIG divides, or may divide, and their instances are not offered, nor waited for by what is said of fences', (t) => {
  const cards = [
    card(0),
    card(1, { divided: true }),
    card(2, { uuid: 'MIG-2', parent: 1 }),
    card(3, { healthy: false }),
    card(4, { divisionUntold: true }),
  ];
  const asked: (readonly string[])[] = [];
  const offered = offeredCards(compared(sampleOf(cards, []), [], {}), {
    isStale: false,
    mostTenantsPerCard: 5,
    grants: [],
    standingOf: (gpuUuid) => (gpuUuid === 'GPU-3' ? { unfenced: 'a request beyond the grant succeeded' } : {}),
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

test('a card that an Xid is held against is not healthy and says why, and so does the node', (t) => {
  const state = compared(sampleOf([card(0), card(1), card(2, { healthy: false })], []), [], {});
  const offer = {
    isStale: false,
    mostTenantsPerCard: 5,
    grants: [],
    standingOf: (gpuUuid: string) => (gpuUuid === 'GPU-1' ? { fault: 'Xid 79' } : {}),
    fencesOf: (uuids: readonly string[]) => ({ ...FENCES, message: uuids.join() }),
  };
  const offered = offeredCards(state, offer);
  t.deepEqual(
    offered.cards.map(({ healthy, fault }) => [healthy, fault]),
    [
      [true, undefined],
      [false, 'Xid 79'],
      [false, undefined],
    ],
  );
  t.is(offered.fences?.message, 'GPU-0', 'no fence is tried on it');
  t.like(offered.health, { status: 'False', reason: 'CardUnhealthy' });
  t.regex(offered.health?.message ?? '', /^GPU-1: Xid 79; GPU-2: the driver says/);
  t.is(offeredCards(state, { ...offer, isStale: true }).health, undefined, 'old data say nothing');
});
