// When the enforcer refuses to act: old data, too many stops, figures that do not add up. Whom a stop hits, with real
// processes, is tested with a real agent; here nobody may be reached at all, so the native part answers with a failure.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import type { Owner } from '../../../src/agent/attribution/attribute.ts';
import { createEnforcer, ENFORCER_LIMITS, type EnforcerPolicy } from '../../../src/agent/enforcement/enforcer.ts';
import { type Audit, openAudit } from '../../../src/agent/enforcement/record.ts';
import { heldPage } from '../../../src/agent/grants/files.ts';
import type { Grant } from '../../../src/agent/grants/grant.ts';
import type { LiveGrant, Registry } from '../../../src/agent/grants/registry.ts';
import type { Native } from '../../../src/agent/native.ts';
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

function registryOf(grants: readonly Grant[]): Registry {
  const live = new Map(
    grants.map((grant): [string, LiveGrant] => [
      grant.id,
      { grant, folder: '', page: heldPage(-1), ledgerPath: '', ledgerFd: -1, gateClosed: false },
    ]),
  );
  return { get: (id: string) => live.get(id), touch: () => {} } as unknown as Registry;
}

/** `known`: its ledger knows the process, so that what is too much is no bypass. */
type Holding = { readonly id: string; readonly mib: number; readonly known?: boolean };
type Options = { readonly policy?: Partial<EnforcerPolicy>; readonly audit?: Audit; readonly ids?: readonly string[] };

/** An enforcer over grants of 100 MiB each. */
function setUp(t: ExecutionContext, { policy = {}, audit, ids = ['one', 'two', 'three'] }: Options = {}) {
  const folder = mkdtempSync(join(tmpdir(), 'cotenant-enforcer-'));
  t.teardown(() => rmSync(folder, { recursive: true, force: true }));
  const grants = ids.map((id) => grantOf(id, 100));
  const { native, touched } = emptyNode();
  let nowMs = START;
  const kept = audit ?? openAudit(folder, (text) => t.fail(text));
  const enforcer = createEnforcer(
    registryOf(grants),
    native,
    kept,
    { ...DEFAULT_LADDER, ...ENFORCER_LIMITS, ...policy },
    () => nowMs,
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
    const sample = sampleOf([card(0, { usedBytes: (usedMib ?? sum) * MIB, ...more })], processes, nowMs - ageMs);
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
  return { act, audit: kept, touched, folder };
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
  const { act, audit } = setUp(t, { policy: { mostStopsPerMinute: 2 } });
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
  const first = setUp(t, { policy: { mostStopsPerMinute: 1 } });
  first.act(0, cheat);
  t.deepEqual(first.act(1, cheat), ['kill one']);
  const audit = openAudit(first.folder, (text) => t.fail(text));
  const second = setUp(t, { policy: { mostStopsPerMinute: 1 }, audit });
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
