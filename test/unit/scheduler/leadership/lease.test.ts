// Which replica leads: the holder of the Lease, until either clock says that it was not renewed in time.
import { V1MicroTime } from '@kubernetes/client-node';
import test from 'ava';
import { judgeLease, type ObservedLease, observeLease } from '../../../../src/scheduler/leadership/lease.ts';

const WALL = Date.parse('2026-11-21T10:00:00.000Z');
const lease = (renewedMs: number, holderIdentity = 'pod-a_uuid', leaseTransitions = 3, uid = 'uid') => ({
  metadata: { uid },
  spec: { holderIdentity, leaseTransitions, leaseDurationSeconds: 15, renewTime: new V1MicroTime(WALL + renewedMs) },
});
const at = (lease: ObservedLease | undefined, monotonicMs: number, wallMs = monotonicMs, hostname = 'pod-a') =>
  judgeLease(lease, 'ns/name', hostname, { monotonicMs, wallMs: WALL + wallMs });

test('the replica whose kube-scheduler holds the Lease leads; its epoch: transitions', (t) => {
  const fresh = observeLease(lease(0), undefined, 0);
  t.like(at(fresh, 1000), { leads: true, epoch: 3 });
  t.like(at(fresh, 1000, 1000, 'pod-b'), {
    leads: false,
    because: 'the Lease ns/name is held by pod-a_uuid, not by pod-b',
  });
  t.like(at(fresh, 1000, 1000, 'pod'), { leads: false }, 'a name that only begins alike');
  t.like(at(observeLease(lease(0, ''), undefined, 0), 1000), {
    because: 'the Lease ns/name is held by no replica, not by pod-a',
  });
  t.like(at(undefined, 0), { leads: false, because: 'the Lease ns/name does not exist yet' });
});

test('a Lease expires by the time it was seen, or by the time that the renewal names', (t) => {
  const fresh = observeLease(lease(0), undefined, 5000);
  const cases: [what: string, monotonicMs: number, wallMs: number, leads: boolean][] = [
    ['both fresh', 6000, 6000, true],
    ['just before', 19_999, 14_999, true],
    ['seen late, but renewed long ago', 19_999, 15_000, false],
    ['a wall clock that was set back', 20_000, 0, false],
    ['a paused machine', 100_000, 100_000, false],
  ];
  for (const [what, monotonicMs, wallMs, leads] of cases) t.is(at(fresh, monotonicMs, wallMs).leads, leads, what);
});

test('only a new renewal makes a Lease younger', (t) => {
  const first = observeLease(lease(0), undefined, 0);
  t.is(observeLease(lease(0), first, 9000).seenMs, 0);
  t.is(observeLease(lease(2000), first, 9000).seenMs, 9000);
  t.is(observeLease(lease(0, 'pod-b_x'), first, 9000).seenMs, 9000);
  // The watch delivers the time as text.
  const text = { spec: { ...lease(0).spec, renewTime: '2026-11-21T10:00:00.000000Z' as unknown as V1MicroTime } };
  t.is(observeLease(text, first, 9000).seenMs, 0);
  t.deepEqual(at(observeLease({}, undefined, 0), 0), {
    leads: false,
    because: 'the Lease ns/name is held by no replica, not by pod-a',
  });
});

test('a new holder, transition or Lease object starts a new term', (t) => {
  const terms = [lease(0), lease(0, 'pod-a_other'), lease(0, 'pod-a_uuid', 4), lease(0, 'pod-a_uuid', 3, 'new')].map(
    (one) => {
      const state = at(observeLease(one, undefined, 0), 1000);
      return state.leads && state.term;
    },
  );
  t.is(new Set(terms).size, terms.length, terms.join());
});
