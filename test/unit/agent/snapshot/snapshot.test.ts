// What is published of the node: one entry per container and GPU, names where they are known, and nothing old.
import test from 'ava';
import type { Owner } from '../../../../src/agent/attribution/attribute.ts';
import { accumulate } from '../../../../src/agent/counters/accumulate.ts';
import { NO_TOTALS } from '../../../../src/agent/counters/totals.ts';
import { recordOf } from '../../../../src/agent/enforcement/action-record.ts';
import {
  createSnapshot,
  type NameOf,
  type SelfSnapshot,
  type Snapshot,
  staleSnapshot,
} from '../../../../src/agent/snapshot/snapshot.ts';
import { MIB } from '../../../../src/common/quantity.ts';
import { idleSelf } from '../../../support/product/snapshots.ts';
import {
  compared,
  gpu,
  grantOf,
  ledgerOf,
  ofContainer,
  ofGrant,
  owners,
  reading,
  row,
  sampledProcess,
  sampleOf,
  slot,
  use,
} from '../node.ts';

const FOREIGN = 'f'.repeat(64);
const OWNERS: Readonly<Record<number, Owner>> = {
  11: ofGrant('one'),
  12: ofGrant('one'),
  21: ofContainer(FOREIGN),
};
const SELF: SelfSnapshot = { ...idleSelf, version: '1', revision: 'abc', nodeVersion: 'v26', failures: { host: 3 } };
const record = (atMs: number) =>
  recordOf({ grant: grantOf('one', 1), action: 'warn', verdict: { severity: 'within' }, atMs, result: 'done' });

function snapshot(
  nameOf: NameOf = () => ({ namespace: '', pod: '', podUid: '', container: '' }),
  actions = 0,
): Snapshot {
  const processes = [
    sampledProcess(11, [use(0, { bytes: 500 * MIB, smPercent: 10, smUs: 2_000_000 }), use(1, { bytes: 10 * MIB })]),
    sampledProcess(12, [use(0, { bytes: 100 * MIB })]),
    sampledProcess(21, [use(1, { bytes: 70 * MIB, smUs: 500_000 })]),
  ];
  const grant = reading(grantOf('one', 400, [0, 1]), ledgerOf([slot(11, [row({ heldBytes: 1 }), row()])]));
  const state = compared(sampleOf([gpu(0), gpu(1), gpu(2)], processes), [grant], OWNERS);
  const totals = accumulate(NO_TOTALS, state, owners(OWNERS));
  const recent = Array.from({ length: actions }, (_, index) => record(index));
  return createSnapshot({ state, totals, kills: [], recent, self: SELF, nameOf });
}

test('a container is there once per GPU of its grant, with its own figures on each', (t) => {
  const { containers, containerTotals } = snapshot();
  t.deepEqual(
    containers.map(({ gpuUuid, usedBytes, bypassBytes, over, fence, processes }) => [
      gpuUuid,
      usedBytes / MIB,
      bypassBytes / MIB,
      over,
      fence,
      processes.map(({ pid, inLedger }) => `${pid} ${inLedger}`).join(),
    ]),
    [
      ['GPU-0', 600, 100, true, 'interposer', '11 true,12 false'],
      ['GPU-1', 10, 0, false, 'interposer', '11 true'],
    ],
  );
  t.deepEqual(
    containerTotals.map(({ gpuUuid, smSeconds, peakBytes }) => [gpuUuid, smSeconds, peakBytes / MIB]),
    [
      ['GPU-0', 2, 600],
      ['GPU-1', 0, 10],
    ],
  );
});

test('foreign use has its known names in figures and counters alike', (t) => {
  const names = { namespace: 'team', pod: 'stray', podUid: '', container: 'main' };
  const known = snapshot((id) => (id === FOREIGN ? names : { namespace: '', pod: '', podUid: '', container: '' }));
  t.is(known.foreign.length, 1);
  t.like(known.foreign[0], { ...names, gpuUuid: 'GPU-1', usedBytes: 70 * MIB, processes: 1 });
  t.like(known.foreignTotals[0], { ...names, gpuUuid: 'GPU-1', smSeconds: 0.5 });
  t.like(snapshot().foreign[0], { namespace: '', containerId: FOREIGN });
});

test('a GPU is shared if it has a grant, else it has no owner', (t) => {
  t.deepEqual(
    snapshot().devices.map(({ mode }) => mode),
    ['shared', 'shared', 'none'],
  );
});

test('the last twenty actions are shown, oldest first, without their processes', (t) => {
  const { recent } = snapshot(undefined, 50);
  t.deepEqual(
    recent.map(({ atMs }) => atMs),
    Array.from({ length: 20 }, (_, index) => 30 + index),
  );
  t.false('processes' in (recent[0] ?? {}));
});

test('it holds values only, so that it can be sent to a worker', (t) => {
  const one = snapshot(undefined, 2);
  t.deepEqual(structuredClone(one), one);
});

test('without a sample no current value is reported, and counters stay', (t) => {
  const before = snapshot(undefined, 3);
  const stale = staleSnapshot(before, 42_400, { abandoned: 2, hung: 0 });
  t.deepEqual([stale.devices, stale.containers, stale.foreign], [[], [], []]);
  t.deepEqual(stale.self, {
    ...SELF,
    up: false,
    problem: 'the last sample is 42 s old',
    samplersAbandoned: 2,
  });
  t.is(
    staleSnapshot(before, 42_400, { abandoned: 5, hung: 3 }).self.problem,
    'the last sample is 42 s old; samplers hung in the driver: 3',
  );
  t.deepEqual(stale.containerTotals, before.containerTotals);
  t.deepEqual(stale.foreignTotals, before.foreignTotals);
  t.deepEqual(stale.recent, before.recent);
  t.true(before.self.up, 'the snapshot that it was made of is as it was');
});
