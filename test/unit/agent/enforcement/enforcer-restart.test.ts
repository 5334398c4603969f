// The ladder of an agent that takes over from one that ended at some point of it: what was begun is gone on with, each
// step is reported once, and processes that have started since are judged anew.
import test, { type ExecutionContext } from 'ava';
import { type ActionName, type Outcome, recordOf } from '../../../../src/agent/enforcement/action-record.ts';
import { openAudit } from '../../../../src/agent/enforcement/audit-log.ts';
import type { OverReason, Verdict } from '../../../../src/policy/memory-verdict.ts';
import { temporaryFolder } from '../../../support/native/node.ts';
import { loggerTo } from '../../../support/product/logger.ts';
import { type Holding, peopledNode, setUp, there } from './enforcing.ts';

const START = 1_700_000_000_000;
const verdict = (reason: OverReason): Verdict =>
  reason === 'over-share'
    ? {
        severity: 'hard',
        reason,
        worst: { gpuUuid: 'GPU-0', limitRatio: 0.2, usedRatio: 0.9, chargedRatio: 0.1, seconds: 60 },
      }
    : {
        severity: 'hard',
        reason,
        worst: { gpuUuid: 'GPU-0', limitBytes: 1, usedBytes: 2, bypassBytes: 0 },
        overBytes: 1,
      };
/** The first process of a sample, as `setUp` makes them. */
const ITS = { pid: 10, startTicks: 100, command: 'program-10', cgroup: '', result: 'sent' };
const ANOTHER = { ...ITS, startTicks: 99 };

type Written = readonly [second: number, action: ActionName, reason?: OverReason, result?: Outcome, hit?: typeof ITS];
const HARD: Holding[] = [{ id: 'one', mib: 500 }];
const SOFT: Holding[] = [{ id: 'one', mib: 180, known: true }];
const WITHIN: Holding[] = [{ id: 'one', mib: 50, known: true }];

/** What the next agent does, a sample a second from `from` on: "second action". */
function goOn(t: ExecutionContext, written: readonly Written[], from: number, holdings: readonly Holding[][]) {
  const folder = temporaryFolder(t);
  const before = openAudit(folder, loggerTo({ push: (text) => t.fail(text) }));
  const grant = there('one');
  for (const [second, action, reason, result = 'done', hit] of written) {
    const of: Verdict = reason ? verdict(reason) : { severity: 'within' };
    before.add(
      recordOf({ grant, action, verdict: of, atMs: START + second * 1000, result, processes: hit ? [hit] : [] }),
    );
  }
  const audit = openAudit(folder, loggerTo({ push: (text) => t.fail(text) }));
  const { native, signaled } = peopledNode();
  const next = setUp(t, { audit, second: from, grants: [grant], people: native });
  const records = holdings.flatMap((holding, index) =>
    next.act(from + index, holding).map((action) => `${from + index} ${action.split(' ')[0]}`),
  );
  return { records, signaled, audit };
}
const times = (count: number, holding: Holding[]): Holding[][] => Array.from({ length: count }, () => holding);

const CASES: readonly (readonly [
  what: string,
  written: Written[],
  from: number,
  holdings: Holding[][],
  records: string[],
])[] = [
  [
    'killed, and its memory is back: reported',
    [
      [0, 'warn', 'bypass'],
      [1, 'kill', 'bypass', 'sent', ITS],
    ],
    3,
    [[], []],
    ['3 released'],
  ],
  [
    'killed, and its memory is still held: stuck when due, and no second stop',
    [
      [0, 'warn', 'bypass'],
      [1, 'kill', 'bypass', 'sent', ITS],
    ],
    10,
    times(20, HARD),
    ['16 stuck', '17 warn'],
  ],
  [
    'killed, and another process is over now: memory is back, the other is stopped',
    [
      [0, 'warn', 'bypass'],
      [1, 'kill', 'bypass', 'sent', ANOTHER],
    ],
    40,
    times(3, HARD),
    ['40 released', '41 warn', '42 kill'],
  ],
  [
    'killed, restarted and within its grant: nothing is stuck',
    [
      [0, 'warn', 'bypass'],
      [1, 'kill', 'bypass', 'sent', ANOTHER],
    ],
    3,
    times(20, WITHIN),
    ['3 released'],
  ],
  [
    'the release was reported: not again',
    [
      [1, 'kill', 'bypass', 'sent', ITS],
      [2, 'released'],
    ],
    3,
    [[], []],
    [],
  ],
  [
    'stuck was reported: no other signal before the cool-down ends',
    [
      [1, 'kill', 'bypass', 'sent', ITS],
      [16, 'stuck'],
    ],
    18,
    times(14, HARD),
    ['18 warn', '31 kill'],
  ],
  [
    'a stop with an unknown result, and the process runs: repeated at once',
    [
      [0, 'warn', 'bypass'],
      [1, 'kill', 'bypass', 'interrupted', ITS],
    ],
    2,
    times(2, HARD),
    ['2 warn', '3 kill'],
  ],
  [
    'a stop with an unknown result, and its memory is back',
    [
      [0, 'warn', 'bypass'],
      [1, 'kill', 'bypass', 'interrupted', ITS],
    ],
    2,
    [[], []],
    ['2 released'],
  ],
  [
    'SIGTERM sent and still over: its grace starts again, and no second SIGTERM',
    [
      [0, 'warn', 'over-limit'],
      [5, 'close-gate', 'over-limit'],
      [10, 'terminate', 'over-limit', 'sent', ITS],
    ],
    15,
    times(12, SOFT),
    ['25 kill'],
  ],
  [
    'asked to end, has done so, and another is over: judged from the beginning',
    [
      [0, 'warn', 'over-limit'],
      [10, 'terminate', 'over-limit', 'sent', ANOTHER],
    ],
    15,
    times(12, SOFT),
    ['15 warn', '20 close-gate', '25 terminate'],
  ],
  [
    'SIGTERM perhaps sent: treated as sent, because none is sent twice',
    [
      [0, 'warn', 'over-limit'],
      [10, 'terminate', 'over-limit', 'interrupted', ITS],
    ],
    12,
    times(11, SOFT),
    ['22 kill'],
  ],
  [
    'with its gate closed: the opening is reported, and the rest starts again',
    [
      [0, 'warn', 'over-share'],
      [5, 'close-gate', 'over-share'],
    ],
    7,
    times(3, WITHIN),
    ['7 open-gate'],
  ],
  [
    'with its gate closed, and still over',
    [
      [0, 'warn', 'over-limit'],
      [5, 'close-gate', 'over-limit'],
    ],
    7,
    times(7, SOFT),
    ['7 open-gate', '7 warn', '12 close-gate'],
  ],
  ['warned', [[0, 'warn', 'bypass']], 5, times(2, HARD), ['5 warn', '6 kill']],
];
for (const [what, written, from, holdings, expected] of CASES) {
  test(what, (t) => {
    const { records, signaled } = goOn(t, written, from, holdings);
    t.deepEqual(records, expected);
    t.is(signaled.length, expected.filter((one) => /kill|terminate/.test(one)).length);
  });
}

test('the record of a gate that opened says why it was closed', (t) => {
  const { audit } = goOn(t, [[5, 'close-gate', 'over-share']], 7, [WITHIN]);
  t.like(audit.recent().at(-1), { action: 'open-gate', resource: 'compute' });
});
