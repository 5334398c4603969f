// Whose a GPU is and by whom it is used: grants, containers without one, and what cannot be attributed.
import test from 'ava';
import fc from 'fast-check';
import type { Owner } from '../../../../src/agent/attribution/attribute.ts';
import { MIB } from '../../../../src/common/quantity.ts';
import {
  compared,
  gpu,
  grantOf,
  ledgerOf,
  ofContainer,
  ofGrant,
  reading,
  row,
  sampledProcess,
  sampleOf,
  slot,
  use,
} from '../node.ts';

const container = (digit: string): Owner => ofContainer(digit.repeat(64), `uid-${digit}`);

test('a container without a grant is foreign use per GPU; a host process is not', (t) => {
  const sample = sampleOf(
    [gpu(0), gpu(1)],
    [
      sampledProcess(21, [use(0, { bytes: 10 * MIB, smPercent: 15 }), use(1, { bytes: 5 * MIB, smPercent: 40 })]),
      sampledProcess(22, [use(0, { bytes: 20 * MIB, smPercent: 10 })]),
      sampledProcess(23, [use(0, { bytes: 40 * MIB, smPercent: 5 })]),
      sampledProcess(24, [use(0, { bytes: 80 * MIB })]),
      sampledProcess(25, [use(0, { listed: false, types: 0 })]),
    ],
  );
  const state = compared(sample, [], {
    21: container('a'),
    22: container('a'),
    23: container('b'),
    25: container('c'),
  });
  t.deepEqual(
    state.foreign.map(({ gpuUuid, gpuIndex, containerId, podUid, usedBytes, smPercent, processes }) => [
      gpuUuid,
      gpuIndex,
      containerId[0],
      podUid,
      (usedBytes ?? 0) / MIB,
      smPercent,
      processes,
    ]),
    [
      ['GPU-0', 0, 'a', 'uid-a', 30, 25, 2],
      ['GPU-0', 0, 'b', 'uid-b', 40, 5, 1],
      ['GPU-1', 1, 'a', 'uid-a', 5, 40, 1],
    ],
  );
  t.deepEqual(
    state.devices.map((device) => device.containers),
    [2, 1],
  );
});

test('a GPU has its grants, its users, and use that cannot be attributed', (t) => {
  const sample = sampleOf(
    [gpu(0, { usedBytes: 1000 * MIB }), gpu(1, { usedBytes: 10 * MIB }), gpu(2, { usedBytes: undefined as never })],
    [
      sampledProcess(11, [use(0, { bytes: 300 * MIB, types: 1 })]),
      sampledProcess(21, [use(0, { bytes: 200 * MIB, types: 3 })]),
      sampledProcess(31, [use(0, { bytes: 100 * MIB, types: 4 })]),
      sampledProcess(12, [use(1, { bytes: 50 * MIB, types: 2 })]),
    ],
  );
  const state = compared(
    sample,
    [
      reading(grantOf('one', 400, [0, 1])),
      reading(
        grantOf('two', 100, [0], {
          gpus: [{ gpuUuid: 'GPU-0', memoryBytes: 100 * MIB, limitBytes: 900 * MIB, coresPercent: 30 }],
        }),
      ),
    ],
    { 11: ofGrant('one'), 12: ofGrant('one'), 21: container('a') },
  );
  t.deepEqual(
    state.devices.map(({ grantedBytes, grantedCoresPercent, containers, processes, unattributedBytes }) => [
      grantedBytes / MIB,
      grantedCoresPercent,
      containers,
      processes,
      unattributedBytes === undefined ? undefined : unattributedBytes / MIB,
    ]),
    [
      [500, 30, 2, { compute: 1, graphics: 0, both: 1, mps: 1 }, 500], // the process of the host is among the 500
      [400, 0, 1, { compute: 0, graphics: 1, both: 0, mps: 0 }, 0], // the driver reported more for processes than for the GPU
      [0, 0, 0, { compute: 0, graphics: 0, both: 0, mps: 0 }, undefined], // what is used is not reported
    ],
  );
});

test('use that cannot be measured is counted by reason, once per listed process', (t) => {
  const sample = sampleOf(
    [gpu(0), gpu(1)],
    [
      sampledProcess(1, [use(0), use(1)]),
      sampledProcess(2, [use(0, { bytes: MIB })]),
      sampledProcess(3, [use(0, { bytes: MIB })]),
      sampledProcess(4, [use(0, { listed: false })]),
      sampledProcess(5, [use(0)]),
    ],
  );
  const state = compared(sample, [reading(grantOf('one', 100))], {
    1: { kind: 'unknown', reason: 'gone' },
    2: { kind: 'unknown', reason: 'no_cgroup' },
    4: { kind: 'unknown', reason: 'gone' },
    5: ofGrant('one'),
  });
  t.deepEqual(state.failures, { gone: 1, no_cgroup: 1, container_not_known: 0, host: 1, memory_not_available: 2 });
  t.is(state.containers[0]?.gpus[0]?.usedBytes, 0, 'memory that the driver does not tell is not made up');
});

test('every listed byte is charged once: to a grant, a foreign container or to none', (t) => {
  const owner = fc.constantFrom<Owner>(
    ofGrant('one'),
    ofGrant('two'),
    container('a'),
    container('b'),
    { kind: 'host' },
    { kind: 'unknown', reason: 'gone' },
  );
  const on = fc.record({
    gpu: fc.integer({ min: 0, max: 2 }),
    mib: fc.integer({ min: 0, max: 500 }),
    listed: fc.boolean(),
  });
  const uses = fc.uniqueArray(on, { selector: (entry) => entry.gpu, maxLength: 3 });
  const processes = fc.array(fc.tuple(owner, uses, fc.boolean()), { maxLength: 12 });
  t.notThrows(() => {
    fc.assert(
      fc.property(processes, fc.integer({ min: 0, max: 400 }), (list, hiddenMiB) => {
        const listed = (index: number, kinds: readonly string[]) =>
          list.reduce(
            (sum, [whose, entries]) =>
              kinds.includes(whose.kind)
                ? sum +
                  entries
                    .filter((entry) => entry.listed && entry.gpu === index)
                    .reduce((total, entry) => total + entry.mib, 0)
                : sum,
            0,
          );
        const everyone = ['grant', 'container', 'host', 'unknown'];
        const gpus = [0, 1, 2].map((index) => gpu(index, { usedBytes: (listed(index, everyone) + hiddenMiB) * MIB }));
        const sampled = list.map(([, entries], index) =>
          sampledProcess(
            100 + index,
            entries.map((entry) =>
              use(entry.gpu, { listed: entry.listed, ...(entry.listed ? { bytes: entry.mib * MIB } : {}) }),
            ),
          ),
        );
        const slots = list.flatMap(([, , inLedger], index) =>
          inLedger ? [slot(100 + index, [row(), row(), row()])] : [],
        );
        const readings = ['one', 'two'].map((id) => reading(grantOf(id, 100, [0, 1, 2]), ledgerOf(slots)));
        const state = compared(
          sampleOf(gpus, sampled),
          readings,
          Object.fromEntries(list.map(([whose], index) => [100 + index, whose])),
        );
        for (const index of [0, 1, 2]) {
          const ours = state.containers.map((entry) => entry.gpus[index]);
          const granted = ours.reduce((sum, entry) => sum + (entry?.usedBytes ?? 0), 0);
          const foreign = state.foreign
            .filter((entry) => entry.gpuIndex === index)
            .reduce((sum, entry) => sum + (entry.usedBytes ?? -1), 0);
          const unattributed = state.devices[index]?.unattributedBytes ?? -1;
          if (granted !== listed(index, ['grant']) * MIB) throw new Error('grants');
          if (foreign !== listed(index, ['container']) * MIB) throw new Error('foreign');
          if (granted + foreign + unattributed !== gpus[index]?.usedBytes) throw new Error('the sum');
          for (const entry of ours) {
            const each = entry?.processes ?? [];
            const past = each.filter((one) => !one.inLedger).reduce((sum, one) => sum + (one.usedBytes ?? -1), 0);
            if (past !== entry?.bypassBytes || past > entry.usedBytes) throw new Error('bypass');
          }
        }
      }),
      { numRuns: 500 },
    );
  });
});
