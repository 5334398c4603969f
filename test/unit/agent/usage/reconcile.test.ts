// The driver's truth held against the grant and the ledger of a container: use, bypass, fence and verdict.
import test from 'ava';
import { groupByOwner } from '../../../../src/agent/attribution/processes-by-owner.ts';
import type { Sample } from '../../../../src/agent/sampling/sample.ts';
import type { ReconciledNode } from '../../../../src/agent/usage/node-usage.ts';
import { reconcile } from '../../../../src/agent/usage/reconcile.ts';
import { MIB } from '../../../../src/common/quantity.ts';
import { DEFAULT_TOLERANCE } from '../../../../src/policy/memory-verdict.ts';
import {
  compared,
  gpu,
  grantOf,
  ledgerOf,
  ofGrant,
  owners,
  reading,
  row,
  sampledProcess,
  sampleOf,
  slot,
  use,
} from '../node.ts';

test("use is the driver's sum for a grant; what its ledger lacks is the bypass", (t) => {
  const known = sampledProcess(11, [use(0, { bytes: 300 * MIB, smPercent: 20, activeUs: 5_000_000 })]);
  const unknown = sampledProcess(12, [use(0, { bytes: 200 * MIB, smPercent: 30, activeUs: 7_000_000 })]);
  const other = sampledProcess(13, [use(0, { bytes: 999 * MIB })]);
  const ledger = ledgerOf(
    [slot(11, [row({ heldBytes: 310 * MIB, contextBytes: 100 * MIB, managedBytes: 10 * MIB, poolBytes: 50 * MIB })])],
    {
      denied: [3],
    },
  );
  const state = compared(sampleOf([gpu(0)], [known, unknown, other]), [reading(grantOf('one', 1000), ledger)], {
    11: ofGrant('one'),
    12: ofGrant('one'),
  });
  const [found] = state.containers;
  t.is(found?.fence, 'interposer');
  t.false(found?.tampered);
  t.deepEqual(found?.verdict, { severity: 'within' });
  t.deepEqual(found?.gpus, [
    {
      gpuUuid: 'GPU-0',
      gpuIndex: 0,
      limitBytes: 1000 * MIB,
      coresPercent: 0,
      usedBytes: 500 * MIB,
      bypassBytes: 200 * MIB,
      processesKnown: true,
      memoryKnown: true,
      over: false,
      ledger: { contextBytes: 100 * MIB, managedBytes: 10 * MIB, poolBytes: 50 * MIB, bufferBytes: 150 * MIB },
      denied: 3,
      smPercent: 50,
      lastActiveMs: 7000,
      processes: [
        {
          pid: 11,
          startTicks: 110,
          command: 'program-11',
          cgroup: '0::/user.slice',
          usedBytes: 300 * MIB,
          smPercent: 20,
          types: 1,
          inLedger: true,
        },
        {
          pid: 12,
          startTicks: 120,
          command: 'program-12',
          cgroup: '0::/user.slice',
          usedBytes: 200 * MIB,
          smPercent: 30,
          types: 1,
          inLedger: false,
        },
      ],
    },
  ]);
});

test('a slot vouches only for the very process that it names', (t) => {
  const process = sampledProcess(11, [use(0, { bytes: 100 * MIB })], { namespacePid: 7 });
  const cases: [what: string, named: Parameters<typeof slot>[2], bypassMiB: number][] = [
    ['its pid as it sees itself', { pid: 7, startTicks: 110 }, 0],
    ['its pid as the node sees it', { pid: 11, startTicks: 110 }, 100],
    ['a start time of another process', { pid: 7, startTicks: 111 }, 100],
    ['a pid of another namespace', { pid: 7, startTicks: 110, pidNamespace: 1 }, 100],
  ];
  for (const [what, named, bypassMiB] of cases) {
    const ledger = ledgerOf([slot(11, [row()], named)]);
    const state = compared(sampleOf([gpu(0)], [process]), [reading(grantOf('one', 50), ledger)], {
      11: ofGrant('one'),
    });
    const [found] = state.containers;
    t.is(found?.gpus[0]?.bypassBytes, bypassMiB * MIB, what);
    t.is(found?.fence, bypassMiB > 0 ? 'agent' : 'interposer', what);
    t.is(found?.verdict.severity === 'hard', bypassMiB > 0, `${what}: 100 MiB of a grant of 50`);
  }
});

test('verdict and fence follow from use, ledger and isolation', (t) => {
  const cases: [what: string, usedMiB: number, inLedger: boolean, isolate: boolean, fence: string, verdict: string][] =
    [
      ['within, interposed', 900, true, true, 'interposer', 'within'],
      ['within, past the interposer: only reported', 900, false, true, 'agent', 'within'],
      ['over, interposed', 1200, true, true, 'interposer', 'soft'],
      ['far over, interposed', 2000, true, true, 'interposer', 'hard'],
      ['over, past the interposer', 1001, false, true, 'agent', 'hard'],
      ['holds nothing yet', 0, false, true, 'interposer', 'within'],
      ['isolation off: counted, never over', 20_000, false, false, 'none', 'within'],
    ];
  for (const [what, usedMiB, inLedger, isolateMemory, fence, severity] of cases) {
    const process = sampledProcess(11, [use(0, { bytes: usedMiB * MIB })]);
    const ledger = ledgerOf(inLedger ? [slot(11, [row()])] : []);
    const state = compared(
      sampleOf([gpu(0)], [process]),
      [reading(grantOf('one', 1000, [0], { isolateMemory }), ledger)],
      { 11: ofGrant('one') },
    );
    const [found] = state.containers;
    t.is(found?.fence, fence as never, what);
    t.is(found?.verdict.severity, severity as never, what);
    t.is(found?.gpus[0]?.usedBytes, usedMiB * MIB, what);
  }
});

test('a container without data keeps its isolation, and its GPU has no figure', (t) => {
  const held = (bytes: number) => [sampledProcess(11, [use(0, { bytes })])];
  const at = (sample: Sample, inLedger: boolean, before?: ReconciledNode) => {
    const ledger = ledgerOf(inLedger ? [slot(11, [row()])] : []);
    const owned = groupByOwner(sample.processes, owners({ 11: ofGrant('one') }));
    const readings = [reading(grantOf('one', 1000), ledger)];
    return reconcile({ sample, readings, owned, tolerance: DEFAULT_TOLERANCE, before });
  };
  const on = gpu(0, { usedBytes: 500 * MIB });
  const fenceOf = (state: ReconciledNode) => state.containers[0]?.fence;
  const agents = at(sampleOf([on], held(MIB)), false);
  t.is(fenceOf(agents), 'agent');
  for (const [what, sample] of [
    ['a list that failed', sampleOf([gpu(0, { usedBytes: 500 * MIB, processLists: [] })], [])],
    ['a lost GPU', sampleOf([gpu(0, { healthy: false, processLists: [] })], [])],
    ['no GPU', sampleOf([], [])],
    ['no driver', { ...sampleOf([], []), problem: 'gone' }],
  ] as const) {
    const unreported = at(sample, false, agents);
    t.is(fenceOf(unreported), 'agent', what);
    t.is(fenceOf(at(sample, false, unreported)), 'agent', `${what}, for longer`);
    t.is(fenceOf(at(sampleOf([on], []), false, unreported)), 'interposer', `${what}, and it holds nothing`);
    t.is(fenceOf(at(sample, true, at(sampleOf([on], held(MIB)), true))), 'interposer', what);
    const [device] = unreported.devices;
    t.deepEqual([device?.containers, device?.unattributedBytes], [undefined, undefined], what);
  }
  t.like(agents.devices[0], { containers: 1, unattributedBytes: 499 * MIB });
  const silent = sampleOf([gpu(0, { processLists: ['compute'], failedProcessLists: ['graphics'] })], held(MIB));
  t.is(fenceOf(at(silent, false, at(sampleOf([on], held(MIB)), true))), 'agent', 'what is seen is believed');
});

test('a ledger that was truncated, overwritten or replaced is reported', (t) => {
  const sample = sampleOf([gpu(0)], []);
  const tampered = (more: Parameters<typeof ledgerOf>[1]) =>
    compared(sample, [reading(grantOf('one', 1), ledgerOf([], more))], {}).containers[0]?.tampered;
  t.false(tampered({}));
  t.true(tampered({ whole: false }));
  t.true(tampered({ untouched: false }));
});

test('a grant of two GPUs is held on each; a GPU that is out of sight holds nothing', (t) => {
  const process = sampledProcess(11, [use(0, { bytes: 10 * MIB }), use(1, { bytes: 20 * MIB })]);
  const ledger = ledgerOf([slot(11, [row({ heldBytes: 1 }), row({ heldBytes: 2 })])], { denied: [4, 5] });
  const on = [1, 0, 7];
  const state = compared(sampleOf([gpu(0), gpu(1)], [process]), [reading(grantOf('one', 100, on), ledger)], {
    11: ofGrant('one'),
  });
  t.deepEqual(
    state.containers[0]?.gpus.map(({ gpuUuid, gpuIndex, usedBytes, ledger: books, denied }) => [
      gpuUuid,
      gpuIndex,
      usedBytes / MIB,
      books.bufferBytes,
      denied,
    ]),
    // Rows and refusals are in the order of the grant's GPUs, not of the node's.
    [
      ['GPU-1', 1, 20, 1, 4],
      ['GPU-0', 0, 10, 2, 5],
      ['GPU-7', undefined, 0, 0, 0],
    ],
  );
});

test('a GPU has data if it is healthy and its processes were listed, else no verdict', (t) => {
  const cases: [what: string, sample: Sample, reported: boolean, severity: string][] = [
    ['reported', sampleOf([gpu(0)], [over]), true, 'hard'],
    ['its processes were not listed', sampleOf([gpu(0, { processLists: ['graphics'] })], [over]), false, 'within'],
    ['not healthy', sampleOf([gpu(0, { healthy: false })], [over]), false, 'within'],
    ['not there', sampleOf([gpu(1)], []), false, 'within'],
    ['no GPUs at all', { ...sampleOf([], []), problem: 'no driver' }, false, 'within'],
  ];
  for (const [what, sample, reported, severity] of cases) {
    const [found] = compared(sample, [reading(grantOf('one', 100))], { 11: ofGrant('one') }).containers;
    t.is(found?.allGpusKnown, reported, what);
    t.is(found?.verdict.severity, severity as never, what);
  }
  const both = compared(
    sampleOf([gpu(0), gpu(1, { healthy: false })], [over]),
    [reading(grantOf('one', 100, [0, 1]))],
    {
      11: ofGrant('one'),
    },
  );
  t.like(
    both.containers[0],
    { allGpusKnown: false, verdict: { severity: 'hard' } },
    'over on the one that is reported',
  );
});

const over = sampledProcess(11, [use(0, { bytes: 200 * MIB })]);

test('a process that the driver no longer lists holds no memory; its activity counts', (t) => {
  const process = sampledProcess(11, [use(0, { listed: false, smPercent: 90, activeUs: 3_000_000, types: 0 })]);
  const state = compared(sampleOf([gpu(0)], [process]), [reading(grantOf('one', 100))], { 11: ofGrant('one') });
  t.like(state.containers[0]?.gpus[0], { usedBytes: 0, smPercent: 0, lastActiveMs: 3000, processes: [] });
  t.is(state.devices[0]?.containers, 0);
});

test('processes are counted by engine, and what a tenant makes up becomes no name', (t) => {
  const slots = [
    slot(10, [row()], { engine: 2 }),
    slot(11, [row()], { engine: 2, engineRefused: 3, debugged: true }),
    slot(12, [row()], { engine: 1 }),
    slot(13, [row()], { engine: 0 }),
    slot(14, [row()], { engine: 4_000_000_000, engineRefused: 77 }),
    slot(15, [row()], { engine: 2, engineRefused: 3, locked: false, profiled: true }),
  ];
  const read = reading(grantOf('a', 100), ledgerOf(slots), { engines: [1, 2], behind: true });
  const [found] = compared(sampleOf([gpu(0)], []), [read], {}).containers;
  t.deepEqual(found?.engines, {
    processes: [
      { engine: '2', count: 2 },
      { engine: '1', count: 1 },
      { engine: 'other', count: 2 },
    ],
    refused: 2,
    outdated: true,
  });
  t.deepEqual(found?.observed, { debugger: 1, profiler: 0 }, 'the dead do not count');
});
