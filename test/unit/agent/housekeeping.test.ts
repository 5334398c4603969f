// What stays known of processes that a sample does not show.
import test from 'ava';
import type { KnownOwners, Owner } from '../../../src/agent/attribution/attribute.ts';
import { stillKnown } from '../../../src/agent/housekeeping.ts';
import { ofGrant } from './node.ts';

const knownOf = (...entries: readonly (readonly [pid: number, startTicks: number, owner: Owner])[]): KnownOwners => ({
  byProcess: new Map(entries.map(([pid, startTicks, owner]) => [`${pid}@${startTicks}`, owner])),
  grantByPid: new Map(
    entries.flatMap(([pid, startTicks, owner]) =>
      owner.kind === 'grant' ? [[pid, { id: owner.id, startTicks }]] : [],
    ),
  ),
});

test('a living process of a grant that a sample did not tell of stays known; nobody else does', (t) => {
  const before = knownOf(
    [1, 10, ofGrant('untold')],
    [2, 20, ofGrant('untold')],
    [3, 30, ofGrant('told')],
    [4, 40, { kind: 'host' }],
    [5, 50, ofGrant('untold')],
  );
  const shown = knownOf([5, 50, ofGrant('other')], [6, 60, { kind: 'host' }]);
  const asked: number[] = [];
  const known = stillKnown(
    shown,
    before,
    (id) => id === 'untold',
    (pid, startTicks) => {
      asked.push(pid);
      return pid === 1 && startTicks === 10;
    },
  );
  t.deepEqual(known, knownOf([5, 50, ofGrant('other')], [6, 60, { kind: 'host' }], [1, 10, ofGrant('untold')]));
  t.deepEqual(asked, [1, 2], 'what this sample shows wins, and what it tells is final');
});
