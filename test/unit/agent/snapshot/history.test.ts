// The last minutes of use: one point per step, nothing of the future, and only what is still there.
import test from 'ava';
import { createRecorder } from '../../../../src/agent/snapshot/history.ts';
import type { Snapshot } from '../../../../src/agent/snapshot/snapshot.ts';
import { exampleContainer, exampleSnapshot, withInstance } from '../../../support/product/snapshots.ts';

const START = 1_760_000_000_000;
const MIB = 2 ** 20;

/** A snapshot with one tenant of so many MiB at so many percent; none: it has ended. */
function snapshotAt(second: number, mib: number | undefined, percent = 0): Snapshot {
  const containers = mib === undefined ? [] : [{ ...exampleContainer, usedBytes: mib * MIB, smPercent: percent }];
  return { ...exampleSnapshot, atMs: START + second * 1000, containers };
}

function recorded(snapshots: readonly Snapshot[]) {
  const recorder = createRecorder(5000, 20_000);
  for (const snapshot of snapshots) recorder.push(snapshot);
  const { atMs, containers, gpus } = recorder.history();
  const line = containers['g1 GPU-0'];
  return {
    seconds: atMs.map((ms) => (ms - START) / 1000),
    mib: line?.usedBytes.map((bytes) => bytes && bytes / MIB),
    percent: line?.busyPercent,
    gpus,
  };
}

test('a point holds the most memory and the mean compute of its step', (t) => {
  const { seconds, mib, percent } = recorded([
    snapshotAt(0, 10, 100),
    snapshotAt(1, 90, 0),
    snapshotAt(4, 20, 50),
    snapshotAt(5, 30, 7),
  ]);
  t.deepEqual(
    [seconds, mib, percent],
    [
      [0, 5],
      [90, 30],
      [50, 7],
    ],
  );
});

test('a later start has gaps before it; ended series and old points are removed', (t) => {
  const begun = recorded([snapshotAt(0, undefined), snapshotAt(5, 30, 7)]);
  t.deepEqual(
    [begun.mib, begun.percent],
    [
      [null, 30],
      [null, 7],
    ],
  );
  const ended = recorded([snapshotAt(0, 30), snapshotAt(5, undefined)]);
  t.deepEqual([ended.seconds, ended.mib], [[0, 5], undefined]);
  t.deepEqual(recorded([0, 5, 10, 15, 20, 25].map((second) => snapshotAt(second, second))).seconds, [10, 15, 20, 25]);
});

test('after a clock that was set back there is nothing of the future', (t) => {
  t.deepEqual(recorded([snapshotAt(10, 1), snapshotAt(15, 2), snapshotAt(5, 3)]).mib, [3]);
});

test('a GPU without a utilization reading has memory alone', (t) => {
  const { gpus } = recorded([snapshotAt(0, 1)]);
  t.deepEqual(gpus['GPU-0'], { usedBytes: [6 * 1024 * MIB], busyPercent: [40] });
  t.deepEqual(gpus['GPU-1'], { usedBytes: [6 * 1024 * MIB], busyPercent: [null] });
});

test('a GPU without a memory reading has utilization alone', (t) => {
  const silent = (snapshot: Snapshot): Snapshot => ({
    ...snapshot,
    devices: snapshot.devices.map((device) => {
      const { usedBytes: _, ...gpu } = device.gpu;
      return { ...device, gpu };
    }),
    containers: snapshot.containers.map((entry) => ({ ...entry, memoryKnown: false })),
  });
  const { gpus, mib, percent } = recorded([silent(snapshotAt(0, 1, 30)), silent(snapshotAt(5, 1, 40))]);
  t.deepEqual(gpus['GPU-0'], { usedBytes: [null, null], busyPercent: [40, 40] });
  t.deepEqual(
    [mib, percent],
    [
      [null, null],
      [30, 40],
    ],
  );
});

test('compute that the driver does not report for a tenant is not 0', (t) => {
  const unreported = (snapshot: Snapshot): Snapshot => ({
    ...snapshot,
    containers: snapshot.containers.map((entry) => ({ ...entry, smPercent: undefined })),
  });
  const { percent } = recorded([snapshotAt(0, 1, 30), unreported(snapshotAt(1, 1)), unreported(snapshotAt(5, 1))]);
  t.deepEqual(percent, [30, null]);
});

test('whole GPUs, instances and use without a grant have a past, too', (t) => {
  const recorder = createRecorder(5000, 20_000);
  const [use] = exampleSnapshot.foreign;
  if (use === undefined) throw new Error('the example has no use without a grant');
  for (const [second, smPercent] of [30, 50, undefined].entries())
    recorder.push({
      ...withInstance,
      atMs: START + second * 1000,
      foreign: [
        { ...use, smPercent },
        { ...use, containerId: '', podUid: 'u9', usedBytes: undefined },
      ],
    });
  const { containers } = recorder.history();
  t.deepEqual(containers, {
    ...containers,
    'team/whole/main GPU-1': { usedBytes: [1024 * MIB], busyPercent: [50] },
    'team/sliced/main MIG-2': { usedBytes: [0], busyPercent: [null] },
    '0123456789abcdef GPU-1': { usedBytes: [5 * 1024 * MIB], busyPercent: [40] },
    'u9 GPU-1': { usedBytes: [null], busyPercent: [null] },
  });
});
