// From sample to sample, unchanged containers, owners and compute stay the same objects, and changed ones are new objects.
import test from 'ava';
import type { Owner } from '../../../src/agent/attribution/attribute.ts';
import { type AttributedProcesses, groupByOwner } from '../../../src/agent/attribution/processes-by-owner.ts';
import type { Sample, SampledProcess } from '../../../src/agent/sampling/sample.ts';
import type { GrantReading } from '../../../src/agent/usage/container-usage.ts';
import type { ReconciledNode } from '../../../src/agent/usage/node-usage.ts';
import { reconcile } from '../../../src/agent/usage/reconcile.ts';
import { NO_OTHER_ALLOCATIONS } from '../../../src/agent/usage/ungranted-usage.ts';
import { isSameList, keepIfSame, memoizeLast } from '../../../src/common/memo.ts';
import { MIB } from '../../../src/common/quantity.ts';
import { DEFAULT_TOLERANCE } from '../../../src/policy/memory-verdict.ts';
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
} from '../agent/node.ts';

test('lists are the same when they have the same objects in the same order', (t) => {
  const [one, other] = [{}, {}];
  t.true(isSameList([one, other], [one, other]));
  t.true(isSameList([], []));
  t.true(isSameList([Number.NaN], [Number.NaN]));
  t.false(isSameList([one, other], [other, one]));
  t.false(isSameList([one], [one, other]));
  t.false(isSameList([one, other], [one]));
  t.false(isSameList([one], [{}]), 'equal is not the same');
  t.false(isSameList([], undefined));
  const list = [one];
  t.is(keepIfSame([one], list), list);
  t.deepEqual(keepIfSame([other], list), [other]);
  t.deepEqual(keepIfSame([one], undefined), [one]);
});

test('a memoized function computes again only when one of its arguments changed', (t) => {
  const asked: unknown[] = [];
  const pair = memoizeLast((one: object, other: object) => {
    asked.push([one, other]);
    return { one, other };
  });
  const [a, b] = [{ a: 1 }, { b: 1 }];
  const first = pair(a, b);
  t.is(pair(a, b), first);
  t.is(asked.length, 1);
  t.not(pair(a, { ...b }), first);
  t.not(pair({ ...a }, b), first);
  t.not(pair(a, b), first, 'only the last one is remembered');
  t.is(asked.length, 4);
});

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
    "one is nobody's": of(processes, { 11: ofGrant('one'), 13: ofGrant('two') }, before),
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
    return reconcile(sample, grants, owned, DEFAULT_TOLERANCE, NO_OTHER_ALLOCATIONS, before);
  };
}

test('an unchanged container stays the same object, a changed one is a new object', (t) => {
  const stateOf = node();
  const before = stateOf(sampleOf([gpu(0)], processes), [one, two]);

  const later = sampleOf([gpu(0, { temperatureC: 60 })], processes, 1_700_000_001_000);
  const readLater = { ...one, ledger: { ...ledger, readNs: 2000 } };
  const again = stateOf(later, [readLater, two], before);
  t.is(again.containers[0], before.containers[0]);
  t.is(again.containers, before.containers, 'nor has any other, so the list is the same');
  t.is(again.devices[0]?.gpu.temperatureC, 60, 'of the GPU everything is of this sample');

  const changes: Readonly<Record<string, readonly [Sample, GrantReading]>> = {
    'one of its processes': [sampleOf([gpu(0)], [first, other, third]), one],
    'one process less': [sampleOf([gpu(0)], [first, third]), one],
    'its grant': [later, reading(grantOf('one', 150), ledger)],
    'its ledger': [later, { ...one, ledger: ledgerOf([]) }],
    'refusals of its ledger': [later, { ...one, ledger: { ...ledger, denied: [4] } }],
    'a ledger that was cut': [later, { ...one, ledger: { ...ledger, whole: false } }],
    'entry points': [later, { ...one, ledger: { ...ledger, unknown: 2 } }],
    'a ledger in another place': [later, { ...one, ledger: { ...ledger, untouched: false } }],
    'its engines': [later, { ...one, engines: [] }],
    'its page': [later, { ...one, behind: true }],
    'its fence': [later, { ...one, driverHolds: true }],
    'a fence that fails': [later, { ...one, interposerFails: true }],
    'a GPU that is not told': [sampleOf([gpu(0, { processLists: [] })], processes), one],
    'a GPU with another number': [sampleOf([gpu(1, { uuid: 'GPU-0' })], processes), one],
    'no GPU': [sampleOf([], processes), one],
    'a sample that tells nothing': [{ ...later, problem: 'gone' }, one],
  };
  for (const [what, [sample, changed]] of Object.entries(changes)) {
    const from = stateOf(later, [one, two], before);
    const after = stateOf(sample, [changed, two], from);
    t.not(after.containers[0], from.containers[0], what);
    t.not(after.containers, from.containers, what);
    // What it was seen to hold is of the sample before where this one does not tell it.
    const seen = ({ containers, ...rest }: ReconciledNode) => ({
      ...rest,
      containers: containers.map(({ holding: _, ...one }) => (one.allGpusKnown ? one : { ...one, fence: undefined })),
    });
    t.deepEqual(seen(after), seen(node()(sample, [changed, two])), what);
  }
});

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
  const untold = sampledProcess(14, [use(0)]);
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
      'its bytes are not told',
      () => stateOf(sampled([...processes, untold]), [one, two], before),
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
