// From sample to sample: the process list of a grant stays the same object until it changes, and the totals of a GPU
// follow.
import test from 'ava';
import type { Owner } from '../../../../src/agent/attribution/attribute.ts';
import { type AttributedProcesses, groupByOwner } from '../../../../src/agent/attribution/processes-by-owner.ts';
import type { Sample, SampledGpu, SampledProcess } from '../../../../src/agent/sampling/sample.ts';
import type { GrantReading } from '../../../../src/agent/usage/container-usage.ts';
import type { ReconciledNode } from '../../../../src/agent/usage/node-usage.ts';
import { reconcile } from '../../../../src/agent/usage/reconcile.ts';
import { MIB } from '../../../../src/common/quantity.ts';
import { DEFAULT_TOLERANCE } from '../../../../src/policy/memory-verdict.ts';
import {
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

const byPid = { 11: ofGrant('one'), 12: ofGrant('one'), 13: ofGrant('two') };
const processes = [11, 12, 13].map((pid) => sampledProcess(pid, [use(0, { bytes: 100 * MIB })]));
const [first, , third] = processes as [SampledProcess, SampledProcess, SampledProcess];
const other = sampledProcess(12, [use(0, { bytes: 100 * MIB, smPercent: 7 })]);

test("a grant's process list is the same object until one of its processes changes", (t) => {
  const of = (list: readonly SampledProcess[], whose: Readonly<Record<number, Owner>>, before?: AttributedProcesses) =>
    groupByOwner(list, owners(whose), before);
  const before = of(processes, byPid);
  t.deepEqual(before.ofGrant('one'), processes.slice(0, 2));
  t.deepEqual(before.grantIds, ['one', 'two']);
  t.deepEqual(before.ofGrant('three'), []);
  t.is(of([...processes], byPid, before).ofGrant('one'), before.ofGrant('one'));
  const changes: Readonly<Record<string, AttributedProcesses>> = {
    'one changes': of([first, other, third], byPid, before),
    'one goes': of([first, third], byPid, before),
    'one comes': of([...processes, sampledProcess(14, [])], { ...byPid, 14: ofGrant('one') }, before),
    "one is another grant's": of(processes, { ...byPid, 12: ofGrant('two') }, before),
    'one has no container': of(processes, { 11: ofGrant('one'), 13: ofGrant('two') }, before),
  };
  for (const [what, after] of Object.entries(changes)) t.not(after.ofGrant('one'), before.ofGrant('one'), what);
  t.is(changes['one changes']?.ofGrant('two'), before.ofGrant('two'));
  t.deepEqual(of(processes, { 11: ofContainer('c'), 12: ofGrant('one') }).others, [
    { process: first, owner: ofContainer('c') },
    { process: third, owner: { kind: 'host' } },
  ]);
});

const ledger = ledgerOf([slot(11, [row({ heldBytes: 100 * MIB })])], { denied: [0] });
const one = reading(grantOf('one', 1000), ledger);
const two = reading(grantOf('two', 1000), ledgerOf([], { denied: [0] }));

/** One node: processes are attributed with the previous sample. */
function node() {
  let owned: AttributedProcesses | undefined;
  return (
    sample: Sample,
    grants: readonly GrantReading[],
    before?: ReconciledNode,
    whose: Readonly<Record<number, Owner>> = byPid,
  ) => {
    owned = groupByOwner(sample.processes, owners(whose), owned);
    return reconcile({ sample, readings: grants, owned, tolerance: DEFAULT_TOLERANCE, before });
  };
}

test('the totals of a GPU follow each change of its processes, grants and memory', (t) => {
  const stateOf = node();
  const sampled = (list: readonly SampledProcess[]) => sampleOf([gpu(0, { usedBytes: 1000 * MIB })], list);
  const before = stateOf(sampled(processes), [one, two]);
  const brief = ({ devices, foreign, failures }: ReconciledNode) => [
    devices.map(({ grantedBytes, containers, processes: counts, unattributedBytes }) => [
      grantedBytes / MIB,
      containers,
      counts.compute,
      unattributedBytes === undefined ? undefined : unattributedBytes / MIB,
    ]),
    foreign.length,
    failures.host,
    failures.memory_not_available,
  ];
  t.deepEqual(brief(before), [[[2000, 2, 3, 700]], 0, 0, 0]);
  const more = sampledProcess(14, [use(0, { bytes: 50 * MIB })]);
  const unreported = sampledProcess(14, [use(0)]);
  const cases: [what: string, state: () => ReconciledNode, expected: unknown][] = [
    ['nothing', () => stateOf(sampled(processes), [one, two], before), [[[2000, 2, 3, 700]], 0, 0, 0]],
    [
      'a process of the host',
      () => stateOf(sampled([...processes, more]), [one, two], before),
      [[[2000, 2, 4, 700]], 0, 1, 0],
    ],
    [
      'the same in a container that has no grant',
      () => stateOf(sampled([...processes, more]), [one, two], before, { ...byPid, 14: ofContainer('c') }),
      [[[2000, 3, 4, 650]], 1, 0, 0],
    ],
    [
      'its bytes are not reported',
      () => stateOf(sampled([...processes, unreported]), [one, two], before),
      [[[2000, 2, 4, undefined]], 0, 1, 1],
    ],
    ['a grant less', () => stateOf(sampled(processes), [one], before), [[[1000, 1, 3, 800]], 0, 0, 0]],
    [
      "the same processes are the host's",
      () => stateOf(sampled(processes), [one, two], before, { 13: ofGrant('two') }),
      [[[2000, 1, 3, 900]], 0, 2, 0],
    ],
  ];
  for (const [what, state, expected] of cases) t.deepEqual(brief(state()), expected, what);
});

test("a container's state is the same object until something behind it changes", (t) => {
  const stateOf = node();
  const sampled = (list: readonly SampledProcess[] = processes, more: Partial<SampledGpu> = {}) =>
    sampleOf([gpu(0, more)], list);
  const before = stateOf(sampled(), [one]);
  const after = (sample: Sample, read: GrantReading) => stateOf(sample, [read], before).containers[0];
  const next = { ...ledger, readNs: ledger.readNs + 1e9 };
  t.is(after(sampled(processes, { usedBytes: MIB }), { ...one, ledger: next }), before.containers[0]);
  const cases: Readonly<Record<string, [Sample, GrantReading]>> = {
    'a process': [sampled([first, other, third]), one],
    'the list of processes': [sampled(processes, { processLists: [] }), one],
    'utilization by process': [sampled(processes, { hasProcessUtilization: false }), one],
    'the GPU': [sampleOf([gpu(1)], processes), one],
    'the grant': [sampled(), { ...one, grant: grantOf('one', 50) }],
    'its limits by the driver': [sampled(), { ...one, driverHolds: true }],
    'the ledger': [sampled(), { ...one, ledger: { ...ledger, slots: [] } }],
    refusals: [sampled(), { ...one, ledger: { ...ledger, denied: [3] } }],
    'the whole ledger': [sampled(), { ...one, ledger: { ...ledger, whole: false } }],
    'the file of the ledger': [sampled(), { ...one, ledger: { ...ledger, untouched: false } }],
    'what the interposer does not know': [sampled(), { ...one, ledger: { ...ledger, unknown: 1 } }],
  };
  for (const [what, [sample, read]] of Object.entries(cases)) {
    const found = after(sample, read);
    t.not(found, before.containers[0], what);
    t.notDeepEqual({ ...found, basis: [] }, { ...before.containers[0], basis: [] }, what);
  }
});
