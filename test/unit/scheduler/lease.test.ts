// Who may bind: the holder of the Lease, while it is renewed, by whichever clock says first that it is not.
import { V1MicroTime } from '@kubernetes/client-node';
import test from 'ava';
import { judge, type SeenLease, seen } from '../../../src/scheduler/lease.ts';

const WALL = Date.parse('2026-11-21T10:00:00.000Z');
const lease = (renewedMs: number, holderIdentity = 'pod-a_uuid', leaseTransitions = 3, uid = 'uid') => ({
  metadata: { uid },
  spec: { holderIdentity, leaseTransitions, leaseDurationSeconds: 15, renewTime: new V1MicroTime(WALL + renewedMs) },
});
const at = (lease: SeenLease | undefined, monotonicMs: number, wallMs = monotonicMs, hostname = 'pod-a') =>
  judge(lease, 'ns/name', hostname, { monotonicMs, wallMs: WALL + wallMs });

test('the replica whose kube-scheduler holds the Lease leads, with its transitions as epoch', (t) => {
  const fresh = seen(lease(0), undefined, 0);
  t.like(at(fresh, 1000), { leads: true, epoch: 3 });
  t.like(at(fresh, 1000, 1000, 'pod-b'), { leads: false, because: 'pod-a_uuid holds the Lease ns/name, not pod-b' });
  t.like(at(fresh, 1000, 1000, 'pod'), { leads: false }, 'a name that only begins alike');
  t.like(at(seen(lease(0, ''), undefined, 0), 1000), { because: 'nobody holds the Lease ns/name, not pod-a' });
  t.like(at(undefined, 0), { leads: false, because: 'there is no Lease ns/name yet' });
});

test('a Lease ends when its renewal was seen too long ago, or names a time too long ago', (t) => {
  const fresh = seen(lease(0), undefined, 5000);
  const cases: [what: string, monotonicMs: number, wallMs: number, leads: boolean][] = [
    ['both fresh', 6000, 6000, true],
    ['just before', 19_999, 14_999, true],
    ['seen late, but renewed long ago', 19_999, 15_000, false],
    ['a wall clock that was set back', 20_000, 0, false],
    ['a paused machine', 100_000, 100_000, false],
  ];
  for (const [what, monotonicMs, wallMs, leads] of cases) t.is(at(fresh, monotonicMs, wallMs).leads, leads, what);
});

test('seeing the same renewal again makes it no younger; another one does', (t) => {
  const first = seen(lease(0), undefined, 0);
  t.is(seen(lease(0), first, 9000).seenMs, 0);
  t.is(seen(lease(2000), first, 9000).seenMs, 9000);
  t.is(seen(lease(0, 'pod-b_x'), first, 9000).seenMs, 9000);
  // As it comes from a watch: text, not a time.
  const text = { spec: { ...lease(0).spec, renewTime: '2026-11-21T10:00:00.000000Z' as unknown as V1MicroTime } };
  t.is(seen(text, first, 9000).seenMs, 0);
  t.deepEqual(at(seen({}, undefined, 0), 0), { leads: false, because: 'nobody holds the Lease ns/name, not pod-a' });
});

test('a term is another one after another holder, and after the Lease was deleted and its transitions count anew', (t) => {
  const terms = [lease(0), lease(0, 'pod-a_other'), lease(0, 'pod-a_uuid', 4), lease(0, 'pod-a_uuid', 3, 'new')].map(
    (one) => {
      const state = at(seen(one, undefined, 0), 1000);
      return state.leads && state.term;
    },
  );
  t.is(new Set(terms).size, terms.length, terms.join());
});
