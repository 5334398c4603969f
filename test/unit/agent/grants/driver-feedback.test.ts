// What a container's own books are taught from the driver's truth, and when they are taught nothing.
import test from 'ava';
import { type FeedbackInput, feedbackOf, roundOf } from '../../../../src/agent/grants/driver-feedback.ts';
import type { LedgerSlot } from '../../../../src/agent/os/addon.ts';
import { MIB } from '../../../../src/common/quantity.ts';
import { ledgerOf, PID_NAMESPACE, READ_NS, row, sampledProcess, slot, use } from '../node.ts';

const held = row({ heldBytes: 500 * MIB, managedBytes: 100 * MIB, freedBytes: 30 * MIB, signature: 9n });
const process = sampledProcess(11, [use(0, { bytes: 450 * MIB })]);
const round = (slots: readonly LedgerSlot[], alive = true) =>
  roundOf(ledgerOf(slots), { ownPidNamespace: PID_NAMESPACE, isAlive: () => alive });
const input = (more: Partial<FeedbackInput> = {}): FeedbackInput => ({
  before: round([slot(11, [held])]),
  after: round([slot(11, [held])]),
  sampledNs: READ_NS + 1,
  processes: [process],
  gpuIndex: [0],
  listsComplete: true,
  ...more,
});

test("an unchanged row gets the difference to the driver's figure as its residual", (t) => {
  // Managed memory is not in the driver's figure, so it is not in the difference.
  t.deepEqual(feedbackOf(input()), [
    { slot: 3, gpu: 0, stamp: 11n, residualBytes: 50 * MIB, releasedBytes: 30 * MIB, signature: 9n, deadStamp: 0n },
  ]);
});

test('announced bytes do not prevent feedback', (t) => {
  const announced = { ...held, pendingBytes: 2 * MIB };
  t.is(feedbackOf(input({ after: round([slot(11, [announced])]) }))[0]?.residualBytes, 50 * MIB);
});

test('the residual may be negative, down to minus the charge', (t) => {
  const cases: [what: string, processes: FeedbackInput['processes'], residualMiB: number][] = [
    ['less on the GPU than charged', [sampledProcess(11, [use(0, { bytes: 380 * MIB })])], -20],
    ['not on this GPU', [sampledProcess(11, [use(1, { bytes: MIB })])], -400],
    ['no longer listed', [sampledProcess(11, [use(0, { listed: false })])], -400],
  ];
  for (const [what, processes, residualMiB] of cases)
    t.is(feedbackOf(input({ processes }))[0]?.residualBytes, residualMiB * MIB, what);
});

test('double-counted memory raises no residual, and lowers one where it is steady', (t) => {
  const other = sampledProcess(12, [use(0, { bytes: 6000 * MIB })]);
  const of = (bytes: number, more: Partial<FeedbackInput>) => {
    const processes = [sampledProcess(11, [use(0, { bytes: bytes * MIB })]), other];
    return feedbackOf(input({ processes, ...more }))[0]?.residualBytes;
  };
  type Case = readonly [
    what: string,
    bytes: number,
    twiceMiB: number,
    steadyMiB: number,
    taughtMiB: number | undefined,
  ];
  const cases: readonly (readonly [...Case, residualMiB: number | undefined])[] = [
    ['it has another one’s block open, which is counted for both', 6450, 6000, 6000, 50, 50],
    ['the same, and it loads code meanwhile', 6480, 6000, 6000, 50, 80],
    ['it loads code while others of it share', 480, 6000, 6000, 50, 0],
    ['figures of a moment', 450, 6000, 0, 50, 50],
    ['a moment in which it seemed to be its own', 6450, 6000, 0, 6050, 6050],
    ['that is known to be none', 6450, 6000, 6000, 6050, 50],
    ['no memory is counted twice', 480, 0, 0, 50, 80],
    ['it unloads code in such a moment', 420, 6000, 0, 50, 20],
    ['it holds less than it is charged for', 380, 6000, 6000, 50, -20],
    ['nothing was taught, and it may be of a moment', 450, 6000, 0, undefined, undefined],
  ];
  for (const [what, bytes, twiceMiB, steadyMiB, taughtMiB, residualMiB] of cases) {
    const isSteady = taughtMiB !== undefined;
    const doubleCounted = [{ bytes: twiceMiB * MIB, steadyBytes: steadyMiB * MIB, isSteady }];
    const more = { doubleCounted, writtenResidualBytes: () => (taughtMiB === undefined ? undefined : taughtMiB * MIB) };
    t.is(of(bytes, more), residualMiB === undefined ? undefined : residualMiB * MIB, what);
  }
  const alone = {
    processes: [process],
    doubleCounted: [{ bytes: 6000 * MIB, steadyBytes: 6000 * MIB, isSteady: true }],
  };
  t.is(
    feedbackOf(input(alone))[0]?.residualBytes,
    50 * MIB,
    'others’ sharing is none of a container’s that has one process',
  );
});

test('uncertain data gives no feedback', (t) => {
  const moved = { ...held, signature: 10n };
  const cases: [string, Partial<FeedbackInput>][] = [
    ['a process list is missing', { listsComplete: false }],
    ['the first reading', { before: undefined }],
    ['the sample began before the first reading was made', { sampledNs: READ_NS }],
    ['the process is not in the sample', { processes: [] }],
    ['the row moved between the readings', { after: round([slot(11, [moved])]) }],
    ['the slot was given to another process', { after: round([slot(11, [held], { stamp: 12n })]) }],
    ['the slot was not there before', { before: round([]) }],
    ['the GPU is not in the sample', { gpuIndex: [undefined] }],
    ['a call that is charged already has no answer yet', { after: round([slot(11, [{ ...held, pendingBytes: 1 }])]) }],
    ['the driver does not tell the bytes', { processes: [sampledProcess(11, [use(0)])] }],
  ];
  for (const [what, more] of cases) t.deepEqual(feedbackOf(input(more)), [], what);
});

test('rows are taken over only from processes that had ended before the sample', (t) => {
  const unlocked = [slot(11, [held], { locked: false })];
  const dead = { processes: [], before: round(unlocked, false), after: round(unlocked, false) };
  t.deepEqual(feedbackOf(input(dead)), [
    { slot: 3, gpu: 0, stamp: 11n, residualBytes: 0, releasedBytes: 0, signature: 0n, deadStamp: 11n },
  ]);
  const both = (more: Parameters<typeof slot>[2]) => {
    const seen = round([slot(11, [held], { locked: false, ...more })], false);
    return { before: seen, after: seen };
  };
  const alive: [string, Partial<FeedbackInput>][] = [
    ['its lock is held, by it or a relative', both({ locked: true })],
    ['the driver lists it', { processes: [process] }],
    ['it is there', { before: round(unlocked), after: round(unlocked) }],
    ['it died after the driver was asked', { before: round(unlocked) }],
    ['the sample is from before the first reading', { sampledNs: READ_NS }],
    ['it lives where the agent cannot look', both({ pidNamespace: 1 })],
    ['no process wrote the slot yet', both({ pid: 0 })],
    ['it was not there in the reading before', { before: round([]) }],
  ];
  for (const [what, more] of alive) {
    const taught = feedbackOf(input({ ...dead, ...more }));
    t.true(
      taught.every((entry) => entry.deadStamp === 0n),
      what,
    );
  }
});

test('each GPU of a slot gets its own feedback', (t) => {
  const rows = [row({ heldBytes: 10, signature: 1n }), row({ heldBytes: 20, signature: 2n })];
  const after = round([slot(11, [row({ heldBytes: 15, signature: 3n }), rows[1] ?? row()])]);
  const processes = [sampledProcess(11, [use(4, { bytes: 100 }), use(2, { bytes: 200 })])];
  const taught = feedbackOf(input({ before: round([slot(11, rows)]), after, processes, gpuIndex: [4, 2] }));
  t.deepEqual(
    taught.map(({ gpu, residualBytes }) => [gpu, residualBytes]),
    [[1, 180]],
  );
});

test('a process of another PID namespace is dead only where it would be visible', (t) => {
  const elsewhere = slot(11, [held], { locked: false, pidNamespace: PID_NAMESPACE + 1 });
  const living = { ownPidNamespace: PID_NAMESPACE, isAlive: () => false };
  const asked: unknown[] = [];
  const inside =
    (alive: boolean) =>
    (...process: unknown[]) => {
      asked.push(process);
      return alive;
    };
  t.is(roundOf(ledgerOf([elsewhere]), living).dead.size, 0, 'no round sees it');
  t.is(roundOf(ledgerOf([elsewhere]), { ...living, isAliveInside: inside(true) }).dead.size, 0);
  t.deepEqual([...roundOf(ledgerOf([elsewhere]), { ...living, isAliveInside: inside(false) }).dead], [11n]);
  t.deepEqual(asked[0], [PID_NAMESPACE + 1, elsewhere.pid, elsewhere.startTicks]);
  t.deepEqual(
    [...roundOf(ledgerOf([{ ...elsewhere, lockedForLife: true }]), living).dead],
    [11n],
    'no look-up is needed',
  );
  const locked = { ...elsewhere, locked: true, lockedForLife: true };
  t.is(roundOf(ledgerOf([locked]), { ...living, isAliveInside: inside(false) }).dead.size, 0, 'its lock is held');
});

/** 1024 slots that a tenant made up, each other than the last time it was looked at. */
const madeUp = (turn: number, more: Partial<LedgerSlot> = {}): LedgerSlot[] =>
  Array.from({ length: 1024 }, (_, index) =>
    slot(11, [held], { index, stamp: BigInt(turn * 2000 + index + 1), locked: false, ...more }),
  );

test('few forged slots are looked up at a time', (t) => {
  for (const pidNamespace of [PID_NAMESPACE, 5]) {
    let asked = 0;
    const look = () => {
      asked += 1;
      return true;
    };
    const living = { ownPidNamespace: PID_NAMESPACE, isAlive: look, isAliveInside: look };
    roundOf(ledgerOf(madeUp(1, { pidNamespace })), living);
    t.is(asked, 64);
  }
});

test('few rows get feedback at a time, unchanged ones none, and in the end all do', (t) => {
  const slots = madeUp(1, { locked: true });
  const reported = new Set<number>();
  const sizes = Array.from({ length: 5 }, () => {
    const taught = feedbackOf(
      input({ before: round(slots), after: round(slots) }),
      ({ slot: index }) => !reported.has(index),
    );
    for (const { slot: index } of taught) reported.add(index);
    return taught.length;
  });
  t.deepEqual(sizes, [256, 256, 256, 256, 0]);
});

test('a process without a readable inner PID is identified by namespace and start time', (t) => {
  const { namespacePid: _, ...nameless } = process;
  t.is(feedbackOf(input({ processes: [nameless] }))[0]?.residualBytes, 50 * MIB);
  const later = { ...nameless, startTicks: 111 };
  t.is(feedbackOf(input({ processes: [later] }))[0]?.residualBytes, 50 * MIB, 'a tick early, in a time namespace');
  for (const startTicks of [109, 112]) t.deepEqual(feedbackOf(input({ processes: [{ ...nameless, startTicks }] })), []);
  t.deepEqual(feedbackOf(input({ processes: [{ ...nameless, pidNamespace: 1 }] })), []);
});
