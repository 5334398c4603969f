// When the enforcer refuses to act: old data, too many stops, figures that do not add up. Whom a stop hits, with real
// processes, is tested with a real agent; here nobody is touched: there is nobody, or one process that takes every signal.
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import type { Owner } from '../../../src/agent/attribution/attribute.ts';
import { createEnforcer, ENFORCER_LIMITS, type EnforcerPolicy } from '../../../src/agent/enforcement/enforcer.ts';
import { type Audit, openAudit } from '../../../src/agent/enforcement/record.ts';
import { heldPage } from '../../../src/agent/grants/files.ts';
import type { Grant } from '../../../src/agent/grants/grant.ts';
import type { LiveGrant, Registry } from '../../../src/agent/grants/registry.ts';
import type { Native, ProcessFacts } from '../../../src/agent/native.ts';
import { DEFAULT_LADDER } from '../../../src/quota/ladder.ts';
import { MIB } from '../../../src/request/quantity.ts';
import { card, compared, grantOf, ledgerOf, reading, row, sampledProcess, sampleOf, slot, use } from './node.ts';

const START = 1_700_000_000_000;

/** A /proc without anybody: a stop finds no one left. `touched` says which native calls were made. */
function emptyNode() {
  const touched: string[] = [];
  const native = new Proxy({} as Native, {
    get: (_, name) => () => {
      touched.push(String(name));
      if (name === 'readProcess') return undefined;
      throw new Error(`${String(name)} must not be called`);
    },
  });
  return { native, touched };
}

/** In the place of a tenant's: a process that is there for as long as the test runs. */
const STAND_IN = Number(
  readdirSync('/proc').find((name) => /^\d+$/.test(name) && ![1, process.pid].includes(Number(name))),
);
/** Owners of grants: process 1, whose child the stand-in passes for, and one that is not there. */
const OWNER = { pid: 1, startTicks: 5, cgroup: '' };
const NOBODYS = { pid: 2 ** 30, startTicks: 5, cgroup: '' };

/** A /proc in which each grant of OWNER has one process; `signalled`: what it is told each time, and what it answers. */
function peopledNode(answers: readonly string[] = []) {
  const signalled: string[] = [];
  const facts = { state: 'S', command: 'held', cgroup: '', pidNamespace: 1 };
  const native = {
    readProcess(pid: number): ProcessFacts | undefined {
      if (pid === 1) return { ...facts, startTicks: OWNER.startTicks, parent: 0, namespacePid: 1 };
      return pid === STAND_IN ? { ...facts, startTicks: 77, parent: 1, namespacePid: pid } : undefined;
    },
    signalExact(pid: number, startTicks: number, _: string, signal: number): string {
      signalled.push(`${pid === STAND_IN && startTicks === 77 ? 'stand-in' : pid} ${signal}`);
      return answers[signalled.length - 1] ?? 'sent';
    },
  } as unknown as Native;
  return { native, signalled };
}

function registryOf(grants: readonly Grant[]): Registry {
  const live = new Map(
    grants.map((grant): [string, LiveGrant] => [
      grant.id,
      {
        grant,
        folder: '',
        page: heldPage(-1),
        ledgerPath: '',
        ledgerFd: -1,
        engines: [],
        engine: undefined,
        gateClosed: false,
        compute: false,
        leased: false,
        ledgerTurn: 0,
      },
    ]),
  );
  return { get: (id: string) => live.get(id), touch: () => {} } as unknown as Registry;
}

/** `known`: its ledger knows the process, so that what is too much is no bypass. */
type Holding = { readonly id: string; readonly mib: number; readonly known?: boolean };
type Options = {
  readonly policy?: Partial<EnforcerPolicy>;
  readonly audit?: Audit;
  readonly grants?: readonly Grant[];
  /** Instead of a node without anybody. */
  readonly people?: Native;
  /** When it starts. */
  readonly second?: number;
};
const NOBODY_THERE = ['one', 'two', 'three'].map((id) => grantOf(id, 100));
const there = (id: string, more: Partial<Grant> = {}): Grant => grantOf(id, 100, [0], { owner: OWNER, ...more });

/** An enforcer over grants of 100 MiB each. */
function setUp(t: ExecutionContext, { policy = {}, audit, grants = NOBODY_THERE, people, second = 0 }: Options = {}) {
  const folder = mkdtempSync(join(tmpdir(), 'cotenant-enforcer-'));
  t.teardown(() => rmSync(folder, { recursive: true, force: true }));
  const { native, touched } = emptyNode();
  let nowMs = START + second * 1000;
  let jumpedMs = 0;
  const kept = audit ?? openAudit(folder, (text) => t.fail(text));
  const registry = registryOf(grants);
  const enforcer = createEnforcer(
    registry,
    people ?? native,
    kept,
    { ...DEFAULT_LADDER, ...ENFORCER_LIMITS, ...policy },
    { now: () => nowMs + jumpedMs, steady: () => nowMs - START },
  );
  /** One sample, taken `ageMs` before it is acted upon; what was done: "action grant". */
  const act = (
    second: number,
    holdings: readonly Holding[],
    ageMs = 0,
    usedMib?: number,
    more: Parameters<typeof card>[1] = {},
  ): string[] => {
    nowMs = START + second * 1000;
    const processes = holdings.map(({ mib }, index) => sampledProcess(10 + index, [use(0, { bytes: mib * MIB })]));
    const sum = holdings.reduce((total, { mib }) => total + mib, 0);
    const owners = Object.fromEntries(
      holdings.map(({ id }, index): [number, Owner] => [10 + index, { kind: 'grant', id }]),
    );
    const sample = sampleOf(
      [card(0, { usedBytes: (usedMib ?? sum) * MIB, ...more })],
      processes,
      nowMs + jumpedMs - ageMs,
    );
    const state = compared(
      sample,
      grants.map((grant) => {
        const slots = holdings.flatMap(({ id, known }, index) =>
          known && id === grant.id ? [slot(10 + index, [row()])] : [],
        );
        return reading(grant, ledgerOf(slots));
      }),
      owners,
    );
    return enforcer.act(state).map(({ action, grantId }) => `${action} ${grantId}`);
  };
  const jump = (seconds: number) => {
    jumpedMs += seconds * 1000;
  };
  return { act, audit: kept, touched, folder, jump, live: registry.get };
}
const cheat = [{ id: 'one', mib: 500 }];

test('two fresh samples over the grant stop it, the worst first', (t) => {
  const { act, audit, touched } = setUp(t);
  const both = [
    { id: 'one', mib: 500 },
    { id: 'two', mib: 900 },
  ];
  t.deepEqual(act(0, both), ['warn two', 'warn one']);
  t.deepEqual(touched, []);
  t.deepEqual(act(1, both), ['kill two', 'kill one']);
  t.true(touched.every((name) => name === 'readProcess') && touched.length > 0);
  t.deepEqual(
    audit
      .recent()
      .map(({ action, result }) => `${action} ${result}`)
      .slice(2),
    ['kill nobody left', 'kill nobody left'],
  );
});

test('old data is no ground for a stop, and is none of the fresh samples that a stop needs', (t) => {
  const { act, touched } = setUp(t);
  t.deepEqual(act(0, cheat, 3001), [], 'not even a warning');
  t.deepEqual(act(1, cheat), ['warn one'], 'the first fresh one');
  t.deepEqual(act(2, cheat, 60_000), ['refuse one']);
  t.deepEqual(act(3, cheat, -3001), [], 'a sample of the future is as bad; refusals are written down now and then');
  t.deepEqual(touched, [], 'nobody was looked up');
  t.deepEqual(act(4, cheat, 3000), ['kill one'], 'the second fresh one');
});

test('old data does not call off what fresh data began, either', (t) => {
  const { act } = setUp(t);
  t.deepEqual(act(0, cheat), ['warn one']);
  t.deepEqual(act(1, [], 5000), []);
  t.deepEqual(act(2, cheat), ['kill one']);
});

test('what the driver does not tell is no memory given back: it neither calms nor counts as released', (t) => {
  const unlisted = { lists: ['graphics'] };
  const { act } = setUp(t, { policy: { releaseSeconds: 3 } });
  t.deepEqual(act(0, cheat), ['warn one']);
  t.deepEqual(act(1, [], 0, 500, unlisted), []);
  t.deepEqual(act(2, cheat), ['kill one'], 'the second fresh one');
  t.deepEqual(act(3, [], 0, 500, unlisted), []);
  t.deepEqual(act(4, [], 0, 500, { healthy: false }), []);
  t.deepEqual(act(5, cheat), ['stuck one'], 'it was there all the time');
  const other = setUp(t);
  t.deepEqual(other.act(0, cheat), ['warn one']);
  t.deepEqual(other.act(1, cheat), ['kill one']);
  t.deepEqual(other.act(2, []), ['released one']);
});

test('a refusal is written down at most every ten seconds, with its reason', (t) => {
  const { act, audit } = setUp(t);
  act(0, cheat);
  const said = Array.from({ length: 25 }, (_, index) => act(1 + index, cheat, 9000)).flat();
  t.deepEqual(said, ['refuse one', 'refuse one', 'refuse one']);
  t.deepEqual(
    audit
      .recent()
      .slice(1)
      .map(({ result }) => result),
    Array(3).fill('the data is 9000 ms old'),
  );
  t.regex(audit.recent().at(-1)?.message ?? '', /it is not stopped$/);
});

test('no more containers than the rate are stopped within a minute; who waits is stopped after it', (t) => {
  const grants = ['one', 'two', 'three'].map((id) => there(id));
  const { act, audit } = setUp(t, { policy: { mostStopsPerMinute: 2 }, grants, people: peopledNode().native });
  const all = ['one', 'two', 'three'].map((id, index) => ({ id, mib: 900 - index * 100 }));
  act(0, all);
  t.deepEqual(act(1, all), ['kill one', 'kill two', 'refuse three']);
  t.is(audit.recent().at(-1)?.result, '2 containers were stopped within a minute');
  const left = all.slice(2);
  for (let second = 2; second < 61; second++)
    t.deepEqual(
      act(second, left).filter((what) => what.startsWith('kill')),
      [],
      `${second} s`,
    );
  t.deepEqual(act(61, left), ['kill three']);
});

test('a stop that reaches nobody uses up none of the rate', (t) => {
  const grants = [there('gone', { owner: NOBODYS }), there('other', { owner: NOBODYS }), there('held')];
  const { act } = setUp(t, {
    policy: { mostStopsPerMinute: 1 },
    grants,
    people: peopledNode(['refused: no', 'sent']).native,
  });
  const all = ['gone', 'other', 'held'].map((id, index) => ({ id, mib: 900 - index * 100 }));
  act(0, all);
  t.deepEqual(act(1, all), ['kill gone', 'kill other', 'kill held'], 'the last one is refused by the kernel');
  act(2, []);
  act(3, all);
  t.deepEqual(act(4, all), ['kill gone', 'kill other', 'kill held']);
  act(5, []);
  act(6, all);
  t.deepEqual(act(7, all), ['refuse gone', 'refuse other', 'refuse held'], 'the one that was reached has used it up');
});

test('decoys that are stopped over and over keep neither their own cheat nor another namespace from being stopped', (t) => {
  const grants = [
    ...['decoy-1', 'decoy-2'].map((id) => there(id, { namespace: 'team' })),
    there('cheat', { namespace: 'team' }),
    there('stranger', { namespace: 'elsewhere' }),
  ];
  const { act, audit } = setUp(t, { grants, people: peopledNode().native });
  const decoys = ['decoy-1', 'decoy-2'].map((id) => ({ id, mib: 5000 }));
  const quiet = [
    { id: 'cheat', mib: 300 },
    { id: 'stranger', mib: 200 },
  ];
  // They hold too much for two samples, are stopped, are started anew.
  const done = (from: number, to: number, others: readonly Holding[]) => {
    const kills: string[] = [];
    for (let second = from; second < to; second += 3) {
      for (const [index, holdings] of [decoys, decoys, []].entries())
        kills.push(...act(second + index, [...holdings, ...others]).filter((what) => what.startsWith('kill')));
    }
    return kills;
  };
  t.deepEqual(done(0, 20, []), ['kill decoy-1', 'kill decoy-2', 'kill decoy-1', 'kill decoy-2']);
  t.regex(audit.recent().at(-1)?.result ?? '', /^4 containers were stopped .* is for those that were not$/);
  t.deepEqual(done(21, 24, quiet), ['kill cheat', 'kill stranger']);
});

test('one namespace leaves room for others, however many containers it has', (t) => {
  const many = Array.from({ length: 8 }, (_, index) => there(`many-${index}`, { namespace: 'team' }));
  const grants = [...many, there('stranger', { namespace: 'elsewhere' })];
  const { act, audit } = setUp(t, { grants, people: peopledNode().native });
  const all = grants.map(({ id }, index) => ({ id, mib: 1000 - index * 100 }));
  act(0, all);
  const done = act(1, all);
  t.deepEqual(
    done.filter((what) => what.startsWith('kill')),
    [...many.slice(0, 5).map(({ id }) => `kill ${id}`), 'kill stranger'],
  );
  t.is(
    audit.recent().find(({ action }) => action === 'refuse')?.result,
    '5 containers of its namespace were stopped within a minute',
  );
});

test('who waits longest is stopped first, however much worse those are that come later', (t) => {
  const grants = ['later', 'first', 'waiting'].map((id) => there(id));
  const { act } = setUp(t, { policy: { mostStopsPerMinute: 1 }, grants, people: peopledNode().native });
  const both = [
    { id: 'first', mib: 900 },
    { id: 'waiting', mib: 500 },
  ];
  act(0, both);
  t.deepEqual(act(1, both), ['kill first', 'refuse waiting']);
  const late = [
    { id: 'waiting', mib: 500 },
    { id: 'later', mib: 5000 },
  ];
  act(59, late);
  t.deepEqual(
    act(60.9, late).filter((what) => what.startsWith('kill')),
    [],
  );
  t.deepEqual(
    act(61.1, late).filter((what) => what.startsWith('kill')),
    ['kill waiting'],
  );
});

test('a process that got its signal is not sent another one while it ends; one that had moved is', (t) => {
  const cases: [answers: string[], signals: number][] = [
    [['sent'], 1],
    [['refused: no'], 1],
    [['moved', 'moved', 'sent'], 3],
    [Array(20).fill('moved'), 10],
  ];
  for (const [answers, signals] of cases) {
    const { native, signalled } = peopledNode(answers);
    const { act } = setUp(t, { grants: [there('one')], people: native });
    act(0, cheat);
    t.deepEqual(act(1, cheat), ['kill one']);
    t.deepEqual(signalled, Array(signals).fill('stand-in 9'));
  }
});

test('figures that do not add up stop nobody: more is told for processes than for the card', (t) => {
  const { act, audit, touched } = setUp(t);
  const all = [
    { id: 'one', mib: 2000 },
    { id: 'two', mib: 50 },
  ];
  act(0, all);
  t.deepEqual(act(1, all, 0, 1800), ['refuse one']);
  t.regex(
    audit.recent().at(-1)?.result ?? '',
    /^processes are said to hold \d+ bytes of a card of which \d+ are used$/,
  );
  t.deepEqual(touched, []);
  // 5 % and 64 MiB are what readings a moment apart may differ by.
  t.deepEqual(act(2, all, 0, 1892), ['kill one']);
});

test('a stop of before a restart counts for the cool-down and the rate', (t) => {
  const people = { grants: ['one', 'two'].map((id) => there(id)), people: peopledNode().native };
  const first = setUp(t, { policy: { mostStopsPerMinute: 1 }, ...people });
  first.act(0, cheat);
  t.deepEqual(first.act(1, cheat), ['kill one']);
  const audit = openAudit(first.folder, (text) => t.fail(text));
  const second = setUp(t, { policy: { mostStopsPerMinute: 1 }, audit, second: 2, ...people });
  const soft = [{ id: 'one', mib: 180, known: true }];
  const done = Array.from({ length: 29 }, (_, index) => second.act(2 + index, soft)).flat();
  t.deepEqual(done, ['warn one'], 'left alone in its cool-down');
  t.deepEqual(second.act(31, soft), ['refuse one'], 'SIGTERM would be due, but one container a minute is the rate');
  t.deepEqual(second.act(32, [{ id: 'two', mib: 500 }]), ['warn two']);
  t.deepEqual(second.act(33, [{ id: 'two', mib: 500 }]), ['refuse two']);
});

test('in modes off and report nobody is looked up, let alone stopped', (t) => {
  for (const [mode, expected] of [
    ['off', []],
    ['report', ['warn one', 'would-stop one']],
  ] as const) {
    const { act, touched } = setUp(t, { policy: { mode } });
    const done = Array.from({ length: 60 }, (_, second) => act(second, cheat)).flat();
    t.deepEqual(done, [...expected]);
    t.deepEqual(touched, []);
  }
});

for (const [what, seconds] of [
  ['later', 3600],
  ['earlier', -3600],
] as const)
  test(`a clock that is set an hour ${what} neither hastens a stop nor holds one up`, (t) => {
    const slowly = [{ id: 'one', mib: 180, known: true }];
    const { act, jump } = setUp(t, { policy: { mostStopsPerMinute: 6 } });
    t.deepEqual(act(0, slowly), ['warn one']);
    jump(seconds);
    for (const second of [1, 2, 3, 4]) t.deepEqual(act(second, slowly), [], String(second));
    t.deepEqual(act(5, slowly), ['close-gate one']);
    jump(seconds);
    for (const second of [6, 7, 8, 9]) t.deepEqual(act(second, slowly), [], String(second));
    t.deepEqual(act(10, slowly), ['terminate one']);
    t.deepEqual(act(20, slowly), ['kill one']);
    jump(seconds);
    // What was stopped before counts for a minute of the steady clock.
    t.deepEqual(act(21, []), ['released one']);
    t.deepEqual(act(22, [{ id: 'two', mib: 500 }]), ['warn two']);
    t.deepEqual(act(23, [{ id: 'two', mib: 500 }]), ['kill two']);
  });

test('each container goes by its own mode, and by no more than the node’s', (t) => {
  const said = (id: string, mode: 'off' | 'report' | 'enforce') =>
    grantOf(id, 100, [0], { enforcement: { mode, by: 'namespace' } });
  const grants = [said('one', 'off'), said('two', 'report'), said('three', 'enforce'), grantOf('four', 100)];
  const all = ['one', 'two', 'three', 'four'].map((id, index) => ({ id, mib: 900 - index * 100 }));
  const minute = (mode: 'off' | 'report' | 'enforce') => {
    const { act } = setUp(t, { grants, policy: { mode } });
    return [act(0, all), act(1, all)].flat();
  };
  t.deepEqual(minute('enforce'), ['warn two', 'warn three', 'warn four', 'would-stop two', 'kill three', 'kill four']);
  t.deepEqual(
    minute('report'),
    ['warn', 'would-stop'].flatMap((action) => ['two', 'three', 'four'].map((id) => `${action} ${id}`)),
  );
  t.deepEqual(minute('off'), [], 'a node that is switched off stops nobody, whoever asks for it');
});

test('with another mode all counts start anew, and a gate that was closed opens', (t) => {
  const grant = grantOf('one', 100);
  const books = [grant];
  const { act, live } = setUp(t, { grants: books });
  const soft = [{ id: 'one', mib: 180, known: true }];
  const say = (mode: 'off' | 'report' | 'enforce' | undefined) => {
    (live('one') as { grant: Grant }).grant = { ...grant, enforcement: mode && { mode, by: 'administrator' } };
  };
  t.deepEqual(act(0, soft), ['warn one']);
  t.deepEqual(act(5, soft), ['close-gate one']);
  t.true(live('one')?.gateClosed);
  say('off');
  t.deepEqual(act(6, soft), ['open-gate one']);
  t.false(live('one')?.gateClosed);
  for (let second = 7; second < 40; second++) t.deepEqual(act(second, soft), []);
  say('report');
  t.deepEqual(act(40, soft), ['warn one']);
  say(undefined);
  t.deepEqual(act(60, soft), ['warn one'], 'what it did while nothing would have come of it is no ground');
  t.deepEqual([act(61, soft), act(62, soft), act(65, soft)].flat(), ['close-gate one']);
});
