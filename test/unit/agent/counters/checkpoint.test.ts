// What is counted over the ends of agents: nothing comes back lower than it was shown, each stop counts once, and files that are
// damaged, of another start of the machine or of nobody cost no more than what they held.
import fs, {
  cpSync,
  existsSync,
  mkdirSync,
  readFileSync,
  renameSync,
  rmdirSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { syncBuiltinESMExports } from 'node:module';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import fc from 'fast-check';
import type { ComputeUse } from '../../../../src/agent/compute/usage-account.ts';
import { totalsOf } from '../../../../src/agent/counters/accumulate.ts';
import { openCounters } from '../../../../src/agent/counters/checkpoint.ts';
import {
  type AssignedTotals,
  type ContainerTotals,
  type ForeignTotals,
  NO_TOTALS,
  type Totals,
  totalsKey,
} from '../../../../src/agent/counters/totals.ts';
import { openCounting } from '../../../../src/agent/counters/with-audit.ts';
import { type ActionRecord, recordOf } from '../../../../src/agent/enforcement/action-record.ts';
import { openAudit } from '../../../../src/agent/enforcement/audit-log.ts';
import { temporaryFolder } from '../../../support/node.ts';
import { grantOf } from '../node.ts';

const ofContainer = (grantId: string, smSeconds: number, more: Partial<ContainerTotals> = {}): ContainerTotals => ({
  namespace: 'team',
  pod: `pod-${grantId}`,
  container: 'main',
  grantId,
  gpuUuid: 'GPU-0',
  gpuIndex: 0,
  smSeconds,
  memoryBusySeconds: smSeconds / 2,
  encoderSeconds: 0,
  decoderSeconds: 0,
  overLimitSeconds: smSeconds / 4,
  denied: 3,
  unknownEntryPoints: 1,
  peakBytes: 5,
  smPeakRatio: undefined,
  computeTold: true,
  seenMs: undefined,
  ...more,
});
const byKey = (containers: readonly ContainerTotals[]) =>
  new Map(containers.map((one) => [totalsKey(one.grantId, one.gpuUuid), one]));
const totals = (containers: readonly ContainerTotals[], more: Partial<Totals> = {}): Totals => ({
  ...NO_TOTALS,
  atMs: Date.now(),
  containers: byKey(containers),
  ...more,
});
const use = (chargedSeconds: number): ComputeUse => ({
  chargedSeconds,
  contendedSeconds: 1,
  throttledSeconds: 2,
  overruns: 3,
  faults: 0,
  guaranteeRatio: 0.5,
  limitRatio: 1,
});
const stop = (atMs = Date.now()): ActionRecord =>
  recordOf(
    grantOf('one', 100),
    'kill',
    {
      severity: 'hard',
      reason: 'bypass',
      worst: { gpuUuid: 'GPU-0', limitBytes: 1, usedBytes: 2, bypassBytes: 1 },
      overBytes: 1,
    },
    atMs,
    'sent',
  );

/** An agent as far as it counts; it ends without a word unless it is closed. `seconds`: its clock. */
function start(t: ExecutionContext, folder: string, bootId = 'this') {
  const told: string[] = [];
  let seconds = 0;
  const audit = openAudit(folder, (text) => told.push(text));
  const clock = () => seconds * 1000;
  const counters = openCounters({ stateFolder: folder, audit, bootId, clock, onProblem: (text) => told.push(text) });
  t.teardown(() => counters.close());
  return {
    ...counters,
    audit,
    told,
    at(second: number, of: Totals, uses: ReadonlyMap<string, ComputeUse> = new Map()) {
      seconds = second;
      counters.keep({ totals: of, uses, kills: () => ({ kills: [], decisions: [], refusals: [] }) });
    },
    seconds: () => counters.earlier.containers.map(({ grantId, smSeconds }) => [grantId, smSeconds]),
  };
}

const foreign: ForeignTotals = {
  gpuUuid: 'GPU-0',
  gpuIndex: 0,
  containerId: 'f00',
  podUid: '',
  namespace: '',
  pod: '',
  container: '',
  smSeconds: 3,
  memoryBusySeconds: 2,
  encoderSeconds: 1,
  decoderSeconds: 0,
  computeTold: true,
  seenMs: 1,
};

test('an agent that ends at any sample has left what that sample came to', (t) => {
  const folder = temporaryFolder(t);
  const first = start(t, folder);
  t.deepEqual(first.seconds(), []);
  const assigned: AssignedTotals = {
    ...ofContainer('', 7),
    mode: 'exclusive',
    peakBytes: 9,
    seenMs: 1,
  };
  const xids = [{ gpuUuid: 'GPU-0', gpuIndex: 0, xid: '31', count: 2, lastMs: 5 }];
  const others = { assigned: new Map([['x', assigned]]), foreign: new Map([['f00 GPU-0', foreign]]), xids };
  for (let second = 0; second < 35; second += 1) {
    const peak = second < 30 ? {} : { smPeakRatio: 0.5 };
    const now = totals([ofContainer('one', second / 3, peak), ofContainer('two', 5)], others);
    first.at(second, now, new Map([['one 0', use(second / 4)]]));
    const next = start(t, folder);
    t.deepEqual(next.seconds(), [
      ['one', second / 3],
      ['two', 5],
    ]);
    const { earlier } = next;
    t.is(earlier.containers[0]?.memoryBusySeconds, second / 6);
    t.is(earlier.containers[0]?.smPeakRatio, peak.smPeakRatio);
    t.like(earlier.uses[0], { grantId: 'one', gpu: 0, chargedSeconds: second / 4, overruns: 3 });
    t.like(earlier.assigned[0], { mode: 'exclusive', smSeconds: 7, peakBytes: 9 });
    t.like(earlier.foreign[0], { containerId: 'f00', smSeconds: 3 });
    t.deepEqual(earlier.xids, xids);
    t.deepEqual(next.told, []);
  }
});

test('what an agent before this one did not count yet begins at 0', (t) => {
  const folder = temporaryFolder(t);
  start(t, folder).at(0, totals([ofContainer('one', 1)], { foreign: new Map([['f00 GPU-0', foreign]]) }));
  const path = join(folder, 'counters.json');
  const kept = JSON.parse(readFileSync(path, 'utf8'));
  t.is(kept.foreign[0].memoryBusySeconds, 2);
  const since = ['memoryBusySeconds', 'encoderSeconds', 'decoderSeconds', 'namespace', 'pod', 'container'];
  for (const name of since) delete kept.foreign[0][name];
  for (const list of ['bases', 'refusals']) delete kept[list];
  writeFileSync(path, JSON.stringify(kept));
  const next = start(t, folder);
  t.deepEqual([next.told, next.seconds()], [[], [['one', 1]]]);
  const [of] = totalsOf(next.earlier, 2).foreign.values();
  t.deepEqual(of, { ...foreign, memoryBusySeconds: 0, encoderSeconds: 0, decoderSeconds: 0, seenMs: 2 });
});

test('whoever has come is in the file within five seconds, and those who have gone are out of it', (t) => {
  const folder = temporaryFolder(t);
  const first = start(t, folder);
  first.at(0, totals([ofContainer('one', 1)]));
  first.at(4, totals([ofContainer('one', 2), ofContainer('two', 7)]));
  t.deepEqual(start(t, folder).seconds(), [['one', 2]], 'nobody has counted two: it begins at 0, which is no increase');
  first.at(11, totals([ofContainer('one', 3), ofContainer('two', 8)]));
  t.deepEqual(start(t, folder).seconds(), [
    ['one', 3],
    ['two', 8],
  ]);
  first.at(22, totals([ofContainer('two', 9)]));
  t.deepEqual(start(t, folder).seconds(), [['two', 9]]);
  first.at(23, totals([ofContainer('three', 1)]));
  first.close();
  t.deepEqual(start(t, folder).seconds(), [['three', 1]], 'a clean end leaves all there is');
});

test('whoever comes under a name that is in the file is there at once, for the page has both as one counter', (t) => {
  const folder = temporaryFolder(t);
  const first = start(t, folder);
  first.at(0, totals([ofContainer('one', 33, { pod: 'web' })]));
  const both = [ofContainer('one', 33, { pod: 'web' }), ofContainer('two', 2, { pod: 'web' })];
  first.at(1, totals(both));
  const expected = [
    ['one', 33],
    ['two', 2],
  ];
  t.deepEqual(start(t, folder).seconds(), expected);
  // Of a name that only a base has, too.
  const base = { ...ofContainer('', 9, { pod: 'job' }), mode: 'shared' as const };
  first.at(7, totals(both, { bases: new Map([['x', base]]) }));
  first.at(8, totals([...both, ofContainer('three', 1, { pod: 'job' })], { bases: new Map([['x', base]]) }));
  t.deepEqual(start(t, folder).seconds(), [...expected, ['three', 1]]);
});

test('a file that is full is not written again as long as nobody makes room', (t) => {
  const folder = temporaryFolder(t);
  const first = start(t, folder);
  const stamp = () => statSync(join(folder, 'counters.json'), { bigint: true }).mtimeNs;
  const many = Array.from({ length: 2500 }, (_, index) => ofContainer(`grant${index}`, 1, { pod: 'web' }));
  const bases = (from: number) =>
    new Map(many.slice(from).map((one) => [one.grantId, { ...one, mode: 'shared' as const }] as const));
  const full = totals(many, { bases: bases(0) });
  first.at(0, full);
  const before = stamp();
  for (let second = 6; second < 30; second += 6) first.at(second, full);
  t.is(stamp(), before);
  first.at(40, { ...full, bases: bases(300) });
  t.not(stamp(), before, 'others of them have come in');
  t.is(start(t, folder).earlier.bases.length, 2000);
});

test('an Xid is in the file before anybody is told of it', (t) => {
  const folder = temporaryFolder(t);
  const first = start(t, folder);
  const xids = (count: number) => [{ gpuUuid: 'GPU-0', gpuIndex: 0, xid: '79', count, lastMs: 1 }];
  first.at(0, totals([], { xids: xids(0) }));
  first.at(1, totals([], { xids: xids(1) }));
  t.deepEqual(start(t, folder).earlier.xids, xids(1));
});

test('where nothing has moved nothing is written', (t) => {
  const folder = temporaryFolder(t);
  const first = start(t, folder);
  const same = totals([ofContainer('one', 1)]);
  first.at(0, same);
  const stamps = () =>
    ['counters.json', 'counters.values'].map((name) => statSync(join(folder, name), { bigint: true }).mtimeNs);
  const before = stamps();
  for (let second = 1; second < 100; second += 1) first.at(second, { ...same, atMs: second });
  t.deepEqual(stamps(), before);
  first.at(101, totals([ofContainer('one', 2)]));
  const [json, values] = stamps();
  t.is(json, before[0], 'the same rows');
  t.not(values, before[1]);
});

test('another start of the machine inherits nothing', (t) => {
  const folder = temporaryFolder(t);
  const first = start(t, folder);
  first.at(0, totals([ofContainer('one', 1)]));
  first.audit.add(stop());
  const next = start(t, folder, 'another');
  t.deepEqual(next.seconds(), []);
  t.deepEqual([next.uncounted, next.told], [[], []]);
  t.is(start(t, folder, 'another').uncounted.length, 0, 'nor does the one after it');
});

const DAMAGES: readonly (readonly [what: string, damage: (folder: string) => void, told: RegExp])[] = [
  ['cut', (folder) => truncateSync(join(folder, 'counters.json'), 40), /counters\.json is ignored, .*not JSON/],
  ['empty', (folder) => truncateSync(join(folder, 'counters.json')), /counters\.json is ignored/],
  [
    'of another shape',
    (folder) => {
      const path = join(folder, 'counters.json');
      writeFileSync(path, readFileSync(path, 'utf8').replace(/"kills": \[\]/, '"kills": [1]'));
    },
    /its kills\[0\] is none/,
  ],
];
for (const [what, damage, words] of DAMAGES) {
  test(`a file that is ${what} is told of once and put aside; stops are counted by the audit log`, (t) => {
    const folder = temporaryFolder(t);
    const first = start(t, folder);
    first.audit.add(stop(1));
    first.audit.add(stop());
    renameSync(join(folder, 'audit.log'), join(folder, 'audit.log.1'));
    first.audit.add(stop());
    first.at(0, totals([ofContainer('one', 1)]));
    damage(folder);
    const next = start(t, folder);
    t.deepEqual(next.seconds(), []);
    t.is(next.uncounted.length, 2, 'of both files, without what was before the start of the machine');
    t.is(next.told.length, 1);
    t.regex(next.told[0] ?? '', words);
    next.at(0, totals([ofContainer('one', 1)]));
    t.true(existsSync(join(folder, 'counters.json.unread')));
    const third = start(t, folder);
    t.deepEqual(third.seconds(), [['one', 1]]);
    t.is(third.uncounted.length, 0);
    t.deepEqual(third.told, []);
  });
}

test('a row that is none costs no other, and the others have the numbers of their own', (t) => {
  const folder = temporaryFolder(t);
  const first = start(t, folder);
  const ids = ['one', 'two', 'three', 'four'];
  const at = (seconds: number) => totals(ids.map((id, index) => ofContainer(id, seconds + index)));
  first.at(0, at(1));
  first.at(1, at(10));
  const path = join(folder, 'counters.json');
  const kept = JSON.parse(readFileSync(path, 'utf8'));
  kept.containers[0].gpuIndex = -1;
  kept.containers[1].seenMs = -5;
  kept.containers[3].pod = 7;
  writeFileSync(path, JSON.stringify(kept));
  const next = start(t, folder);
  t.deepEqual(next.seconds(), [['three', 12]]);
  t.is(next.told.length, 1);
  t.regex(next.told[0] ?? '', /containers\[0\], containers\[1\], containers\[3\] is none/);
});

test('numbers that are gone, cut or of another turn: all begin at 0, or stay as they were, and never fall', (t) => {
  const cases: [damage: (path: string) => void, expected: number | undefined, told: boolean][] = [
    [(path) => rmSync(path), undefined, true],
    [(path) => writeFileSync(path, new Uint8Array(80)), undefined, true],
    [(path) => truncateSync(path, 0), undefined, true],
    // The turn is right, and the rest is not there: as the other file has it.
    [(path) => truncateSync(path, 8), 1, false],
    [
      (path) => {
        const bytes = readFileSync(path);
        bytes.fill(0xff, 8);
        writeFileSync(path, bytes);
      },
      1,
      false,
    ],
  ];
  for (const [damage, expected, told] of cases) {
    const folder = temporaryFolder(t);
    const first = start(t, folder);
    first.at(0, totals([ofContainer('one', 1)]));
    first.at(1, totals([ofContainer('one', 2)]));
    damage(join(folder, 'counters.values'));
    const next = start(t, folder);
    t.is(next.earlier.containers[0]?.smSeconds, expected);
    t.is(next.told.length > 0, told);
  }
});

const WRITES = [
  'openSync',
  'writeSync',
  'writeFileSync',
  'ftruncateSync',
  'renameSync',
  'rmSync',
  'closeSync',
] as const;

/** Copies of the folder as it is before the work, and after each of its calls that may write: what an end just there leaves. */
function instantsOf(t: ExecutionContext, folder: string, work: () => void): readonly string[] {
  const copies: string[] = [];
  const originals = WRITES.map((name) => [name, fs[name]] as const);
  let isCopying = false;
  const copy = () => {
    if (isCopying) return;
    isCopying = true;
    const to = join(temporaryFolder(t), 'state');
    cpSync(folder, to, { recursive: true });
    copies.push(to);
    isCopying = false;
  };
  copy();
  for (const [name, original] of originals) {
    const copied = (...args: never[]) => {
      const result = (original as (...args: never[]) => unknown)(...args);
      copy();
      return result;
    };
    Object.assign(fs, { [name]: copied });
  }
  syncBuiltinESMExports();
  try {
    work();
  } finally {
    Object.assign(fs, Object.fromEntries(originals));
    syncBuiltinESMExports();
  }
  return copies;
}

test('at every instant of a write, the rows of before or the new ones can be read with the numbers of now', (t) => {
  const folder = temporaryFolder(t);
  const first = start(t, folder);
  first.at(0, totals([ofContainer('one', 1)]));
  for (let round = 1; round < 4; round += 1) {
    const [old, now] = [10 * round, 10 * round + 5];
    first.at(20 * round, totals([ofContainer(`grant-${round}`, old)]));
    const rows = [ofContainer(`grant-${round}`, now), ofContainer('two', 7)];
    const instants = instantsOf(t, folder, () => first.at(20 * round + 10, totals(rows)));
    t.true(instants.length > 5);
    const read = instants.map((instant) => {
      const { seconds, told } = start(t, instant);
      t.deepEqual(told, []);
      return JSON.stringify(seconds());
    });
    const states = [
      [[`grant-${round}`, old]],
      [[`grant-${round}`, now]],
      [
        [`grant-${round}`, now],
        ['two', 7],
      ],
    ].map((rows) => JSON.stringify(rows));
    for (const text of read) t.true(states.includes(text), text);
    t.is(read[0], states[0]);
    t.is(read.at(-1), states[2]);
    t.deepEqual(
      read,
      read.toSorted((a, b) => states.indexOf(a) - states.indexOf(b)),
      'and none after a newer one',
    );
  }
});

test('while no new rows can be written, those of before go on with their numbers, and all come once there is room', (t) => {
  for (const name of ['counters.json.new', 'counters.values.2']) {
    const folder = temporaryFolder(t);
    const first = start(t, folder);
    first.at(0, totals([ofContainer('one', 1)]));
    mkdirSync(join(folder, name)); // nobody can write there
    const both = (seconds: number) => totals([ofContainer('one', seconds), ofContainer('two', seconds)]);
    for (let second = 10; second < 30; second += 1) first.at(second, both(second));
    t.deepEqual(start(t, folder).seconds(), [['one', 29]], name);
    t.true(first.told.length > 0);
    for (const text of first.told) t.regex(text, /^what was counted is not kept for the next agent: EISDIR/);
    rmdirSync(join(folder, name));
    first.at(40, both(40));
    t.deepEqual(start(t, folder).seconds(), [
      ['one', 40],
      ['two', 40],
    ]);
  }
});

test('however many come and go, no file grows beyond its bound', (t) => {
  const folder = temporaryFolder(t);
  const first = start(t, folder);
  const many = (from: number) =>
    totals(Array.from({ length: 5000 }, (_, index) => ofContainer(`grant${from + index}`, index)));
  for (let turn = 0; turn < 3; turn += 1) first.at(turn * 11, many(turn * 5000));
  t.is(start(t, folder).earlier.containers.length, 2000);
  t.true(statSync(join(folder, 'counters.json')).size < 2 * 2 ** 20);
  for (const name of ['counters.values', 'counters.values.2']) t.true(statSync(join(folder, name)).size < 2 ** 18);
});

test('where the files cannot be written it is told once, and counting goes on', (t) => {
  const folder = join(temporaryFolder(t), 'state');
  const first = start(t, folder);
  rmSync(folder, { recursive: true });
  writeFileSync(folder, '');
  for (let second = 0; second < 50; second += 1) first.at(second, totals([ofContainer('one', second)]));
  t.is(first.told.length, 1);
  t.regex(first.told[0] ?? '', /^what was counted is not kept for the next agent: ENOTDIR/);
});

test('whenever agents end, each stop is counted once', (t) => {
  const step = fc.constantFrom('stop', 'keep', 'crash', 'rotate', 'end');
  fc.assert(
    fc.property(fc.array(step, { maxLength: 25 }), (steps) => {
      const folder = temporaryFolder(t);
      const open = () => openCounting(folder, { onProblem: (text) => t.fail(text), clock: () => 0 });
      let [agent, stops, seconds] = [open(), 0, 0];
      let rotated = false;
      for (const one of steps) {
        if (one === 'stop') {
          agent.audit.add(stop());
          stops += 1;
        } else if (one === 'keep') {
          rotated = !existsSync(join(folder, 'audit.log'));
          seconds += 1;
          agent.keep({
            totals: totals([], { xids: [{ gpuUuid: '', gpuIndex: 0, xid: '1', count: seconds, lastMs: 0 }] }),
            uses: new Map(),
          });
        } else if (one === 'rotate' && !rotated && existsSync(join(folder, 'audit.log'))) {
          // Once more before the next write would take 16 MiB of lines.
          renameSync(join(folder, 'audit.log'), join(folder, 'audit.log.1'));
          rotated = true;
        } else if (one === 'crash' || one === 'end') {
          if (one === 'end') agent.close();
          agent = open();
        }
        const [killed = 0] = agent.kills
          .decisions()
          .flatMap(({ decision, reason, count }) => (decision === 'killed' && reason === 'bypass' ? [count] : []));
        t.is(killed, stops, steps.join(' '));
      }
      agent.close();
    }),
    { numRuns: 60 },
  );
});

test('a stop that is counted before its line can be written is counted once', (t) => {
  const countsOf = (agent: ReturnType<typeof openCounting>) =>
    agent.kills.decisions().find(({ decision, reason }) => decision === 'killed' && reason === 'bypass')?.count;
  const told: string[] = [];
  const open = (folder: string) => openCounting(folder, { onProblem: (text) => told.push(text), clock: () => 0 });
  const keep = (agent: ReturnType<typeof openCounting>, count: number) =>
    agent.keep({
      totals: totals([], { xids: [{ gpuUuid: '', gpuIndex: 0, xid: '1', count, lastMs: 0 }] }),
      uses: new Map(),
    });
  for (const then of ['there is room', 'there is room and no sample', 'the agent ends']) {
    const folder = temporaryFolder(t);
    const [path, aside] = [join(folder, 'audit.log'), join(folder, 'aside')];
    const agent = open(folder);
    agent.audit.add(stop(Date.now() - 1000));
    renameSync(path, aside);
    mkdirSync(path); // nobody can write there
    const second = stop();
    agent.audit.begin(second);
    agent.audit.add(second);
    keep(agent, 1);
    t.is(countsOf(agent), 2);
    rmdirSync(path);
    renameSync(aside, path);
    if (then === 'there is room') keep(agent, 2);
    if (then === 'there is room and no sample') agent.audit.retry();
    const next = open(folder);
    // As the enforcer does.
    const { interrupted } = next.audit;
    t.is(interrupted !== undefined, then === 'the agent ends', then);
    if (interrupted) next.audit.add(interrupted);
    t.is(countsOf(next), 2, then);
    t.deepEqual(
      next.audit.recent().map(({ result }) => result),
      ['sent', then === 'the agent ends' ? 'interrupted' : 'sent'],
    );
    keep(next, 3);
    t.is(countsOf(open(folder)), 2, then);
  }
});

test('totals of before go on at the first sample, whatever time has passed', (t) => {
  const kept = {
    containers: [ofContainer('one', 5), ofContainer('gone', 6, { seenMs: 900_000 })],
    assigned: [{ ...ofContainer('', 7), mode: 'exclusive' as const, seenMs: 1_000_000 }],
    foreign: [],
    bases: [],
    xids: [],
  };
  const soon = totalsOf(kept, 1_010_000);
  t.deepEqual(
    [...soon.containers.values()].map(({ smSeconds, seenMs }) => [smSeconds, seenMs]),
    [
      [5, undefined],
      [6, undefined],
    ],
  );
  t.is(soon.assigned.size, 1);
  const late = totalsOf(kept, 1_000_000 + 3_600_000);
  t.is(late.containers.size, 2);
  t.is(late.assigned.size, 1);
});
