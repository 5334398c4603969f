// What is taken off a time for which the machine or the test itself is to blame: never so much that nothing is held any
// more.
import test from 'ava';
import { isWithin, type Span, watched } from '../../support/machine/scheduling-delays.ts';

/** Looks at so many milliseconds, and what each process had lost until then. */
const looks = (...rows: readonly (readonly [atMs: number, ...lostMs: number[]])[]) =>
  rows.map(([atMs, ...lostMs]) => ({ atMs, lostMs }));

test('of simultaneous delays the longest counts, and at most half of the time', (t) => {
  t.deepEqual(watched(looks([1000, 10, 20, 30], [7000, 1010, 2020, 530])), {
    passedMs: 6000,
    apartMs: 0,
    lostMs: 2000,
    ownMs: 4000,
  });
  const robbed = watched(looks([0, 0, 0, 0], [11_000, 10_900, 10_900, 10_900]));
  t.deepEqual([robbed.lostMs, robbed.ownMs], [5500, 5500]);
  t.false(isWithin(5000, robbed));
  // A process that has ended, and a count that began anew.
  t.is(watched(looks([0, 500], [1000, 0])).lostMs, 0);
});

test('a paused span counts once, and delays within it do not count again', (t) => {
  const apart: Span[] = [
    { from: 500, to: 2500 },
    { from: 2000, to: 3000 },
    { from: 5500, to: Number.POSITIVE_INFINITY },
  ];
  const rows = looks(
    [1000, 0, 0],
    [2000, 900, 0],
    [3000, 1800, 0],
    [4000, 1900, 700],
    [5000, 2000, 1000],
    [6000, 2500, 1900],
  );
  t.deepEqual(watched(rows, apart), { passedMs: 5000, apartMs: 2500, lostMs: 1000, ownMs: 1500 });
  t.deepEqual(watched(rows, [{ from: 0, to: 900 }]), watched(rows));
});

test('whatever is taken off, there is an end', (t) => {
  const apart = (to: number) => watched(looks([0, 0], [1, 0], [to, 0]), [{ from: 0, to: to - 1000 }]);
  t.true(isWithin(5000, apart(15_000)));
  t.false(isWithin(5000, apart(15_001)));
  t.true(isWithin(5000, watched(looks([0, 0], [5000, 0]))));
  t.false(isWithin(5000, watched(looks([0, 0], [5001, 0]))));
});
