// Which grants launch by the arbiter, what it is told of them, and what its words come to.
import test from 'ava';
import { advanceAccount, NO_ACCOUNT, parseTold, type Told, useKey } from '../../../src/agent/compute/account.ts';
import { leasedGrants, type Planned, planLines } from '../../../src/agent/compute/plan.ts';
import type { ComputePolicy } from '../../../src/request/request.ts';

const card = (gpuUuid: string, coresPercent: number) => ({
  gpuUuid,
  memoryBytes: 1,
  limitBytes: 1,
  coresPercent,
});
const grants = {
  quarter: { id: 'quarter', cards: [card('A', 25)] },
  silent: { id: 'silent', cards: [card('A', 0)] },
  both: { id: 'both', cards: [card('A', 0), card('B', 0)] },
  apart: { id: 'apart', cards: [card('C', 0)] },
};
type Name = keyof typeof grants;

const CASES: readonly [ComputePolicy, readonly Name[], readonly Name[]][] = [
  ['native', ['quarter', 'silent'], []],
  ['fixed', ['silent', 'apart'], []],
  ['fixed', ['quarter', 'silent', 'both', 'apart'], ['quarter', 'silent', 'both']],
  ['soft', ['quarter', 'apart'], ['quarter']],
  ['weighted', ['silent', 'apart'], ['silent', 'apart']],
  ['average', ['apart'], ['apart']],
  ['preemptive', [], []],
];
for (const [policy, names, leased] of CASES) {
  test(`${policy}: of ${names.join(', ') || 'nobody'}, ${leased.join(', ') || 'nobody'} launches by the arbiter`, (t) => {
    t.deepEqual(
      [
        ...leasedGrants(
          policy,
          names.map((name) => grants[name]),
        ),
      ].toSorted(),
      [...leased].toSorted(),
    );
  });
}

test('the arbiter is told the policy of cards that are divided, and native for the others of a grant', (t) => {
  const entry = (name: Name, leased: boolean, ledgerTurn = 0): Planned => ({
    grant: grants[name],
    leased,
    ledgerPath: `/grants/${name}/ledger`,
    ledgerTurn,
  });
  const entries = [entry('quarter', true), entry('both', true, 2), entry('apart', false)];
  const lines = planLines('fixed', 50, 1024, entries, (gpuUuid) => gpuUuid.charCodeAt(0) - 65);
  t.deepEqual(lines, [
    'card 0 3 50',
    'card 1 5 50',
    'page quarter.0 1024 1 /grants/quarter/ledger',
    'on 0 250000 0 25 0 0',
    'page both.2 1024 2 /grants/both/ledger',
    'on 0 0 0 0 0 0',
    'on 1 0 0 0 0 0',
  ]);
});

const told = (id: string, chargedNs: number, faults = 0): Told => ({
  plan: 1,
  pages: [
    {
      id,
      broken: undefined,
      cards: [{ chargedNs, contendedNs: 0, throttledNs: 2 * chargedNs, overruns: 0, faults, limitPpm: 250_000 }],
    },
  ],
});

test('counts go on where a page was made anew or the arbiter began again, and end with their grant', (t) => {
  const grantOf = (id: string) => id.split('.')[0];
  const isLive = () => true;
  let account = advanceAccount(NO_ACCOUNT, told('g.0', 1e9), grantOf, isLive);
  account = advanceAccount(account, told('g.0', 3e9, 1), grantOf, isLive);
  t.like(account.uses.get(useKey('g', 0)), { chargedSeconds: 3, throttledSeconds: 6, faults: 1, limitRatio: 0.25 });
  account = advanceAccount(account, told('g.1', 1e9), grantOf, isLive);
  t.is(account.uses.get(useKey('g', 0))?.chargedSeconds, 4, 'another page counts from nothing');
  account = advanceAccount(account, told('g.1', 5e8), grantOf, isLive);
  t.is(account.uses.get(useKey('g', 0))?.chargedSeconds, 4, 'what was counted is not taken back');
  account = advanceAccount(
    account,
    told('other.0', 1),
    () => undefined,
    () => false,
  );
  t.is(account.uses.size, 0);
});

test('a line of the arbiter is read as it is written, and what is none is a problem', (t) => {
  const line =
    '{"plan":3,"lateNs":5,"pages":[{"id":"a.0","broken":"it was shortened","cards":[{"chargedNs":7,"contendedNs":1,"throttledNs":2,"launches":9,"overruns":3,"faults":4,"guaranteePpm":1,"limitPpm":500000,"high":false,"native":false}]}]}';
  t.deepEqual(parseTold(line), {
    plan: 3,
    pages: [
      {
        id: 'a.0',
        broken: 'it was shortened',
        cards: [{ chargedNs: 7, contendedNs: 1, throttledNs: 2, overruns: 3, faults: 4, limitPpm: 500_000 }],
      },
    ],
  });
  t.deepEqual(parseTold('{"problem":"card: want CARD"}'), { problem: 'card: want CARD' });
  t.true('problem' in parseTold('{"plan":'));
});
