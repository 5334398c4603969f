// The ladder as tables of samples in time.
import test from 'ava';
import { CALM, DEFAULT_LADDER, type LadderPolicy, type LadderState, step } from '../../../src/policy/ladder.ts';
import { BYPASS, FAR, type Held, HONEST_BYPASS, NOTHING, type Sample, SOFT, verdictOf, WITHIN } from './held.ts';

/** What happens at each sample: 'second action [reason]', samples without an action left out. */
function climb(samples: readonly Sample[], policy: LadderPolicy): string[] {
  let state: LadderState = CALM;
  return samples.flatMap(([atMs, held]) => {
    const next = step(state, { verdict: verdictOf(held), holdsMemory: held[0] > 0, nowMs: atMs }, policy);
    state = next.state;
    const { action } = next;
    if (action.kind === 'none') return [];
    return [[atMs / 1000, action.kind, ...('reason' in action ? [action.reason] : [])].join(' ')];
  });
}

/** One sample a second from `from` to `to`, both included. Times start away from 0, as wall clocks do. */
const each = (from: number, to: number, held: Held, seconds = 1): Sample[] =>
  Array.from({ length: Math.floor((to - from) / seconds) + 1 }, (_, index) => [(from + index * seconds) * 1000, held]);

// Defaults: soft after 10 s and 5 samples, hard after 2, grace 10 s, cool-down 30 s, stuck after 15 s.
const ENFORCED: [what: string, samples: Sample[], expected: string[]][] = [
  ['within its grant', each(100, 200, WITHIN), []],
  ['past the interposer but within its grant', each(100, 200, HONEST_BYPASS), []],
  [
    'soft: warning, gate, SIGTERM, grace, SIGKILL, release',
    [...each(100, 120, SOFT), ...each(121, 122, NOTHING)],
    [
      '100 warn over-limit',
      '105 close-gate over-limit',
      '110 terminate over-limit',
      '120 kill over-limit',
      '121 released',
    ],
  ],
  [
    'soft, sampled every 4 s: ten seconds have passed at 112, the fifth sample is that of 116',
    each(100, 128, SOFT, 4),
    ['100 warn over-limit', '108 close-gate over-limit', '116 terminate over-limit', '128 kill over-limit'],
  ],
  [
    'soft, sampled four times a second: many samples are no reason to be quicker',
    each(100, 110, SOFT, 0.25),
    ['100 warn over-limit', '105 close-gate over-limit', '110 terminate over-limit'],
  ],
  ['far over: two samples, no grace', each(100, 101, FAR), ['100 warn far-over-limit', '101 kill far-over-limit']],
  ['past the interposer, a MiB over', each(100, 101, BYPASS), ['100 warn bypass', '101 kill bypass']],
  [
    'one sample far over is not two: what lies between makes the next one the first',
    [
      [100_000, FAR],
      [101_000, WITHIN],
      [102_000, FAR],
      [103_000, WITHIN],
    ],
    ['100 warn far-over-limit', '102 warn far-over-limit'],
  ],
  [
    'far over at every other sample only: the third one is enough',
    Array.from({ length: 21 }, (_, index): Sample => [(100 + index) * 1000, index % 2 === 0 ? FAR : SOFT]),
    ['100 warn far-over-limit', '104 kill far-over-limit', '119 stuck', '120 warn far-over-limit'],
  ],
  [
    'past the interposer again and again, and within in between: the third one is enough',
    [100, 106, 112].flatMap((second): Sample[] => [
      [second * 1000, BYPASS],
      [second * 1000 + 250, WITHIN],
    ]),
    ['100 warn bypass', '106 warn bypass', '112 kill bypass'],
  ],
  [
    'past the interposer every eleven seconds: each time is the first',
    [100, 111, 122, 133].flatMap((second): Sample[] => [
      [second * 1000, BYPASS],
      [second * 1000 + 250, WITHIN],
    ]),
    ['100 warn bypass', '111 warn bypass', '122 warn bypass', '133 warn bypass'],
  ],
  [
    'back within: the gate opens, and the next time all is counted anew',
    [...each(100, 107, SOFT), ...each(108, 109, WITHIN), ...each(110, 120, SOFT)],
    [
      '100 warn over-limit',
      '105 close-gate over-limit',
      '108 open-gate',
      '110 warn over-limit',
      '115 close-gate over-limit',
      '120 terminate over-limit',
    ],
  ],
  [
    'a short excess is warned of and forgotten',
    [...each(100, 103, SOFT), ...each(104, 140, WITHIN)],
    ['100 warn over-limit'],
  ],
  [
    'it heeds SIGTERM in its grace',
    [...each(100, 115, SOFT), ...each(116, 140, NOTHING)],
    ['100 warn over-limit', '105 close-gate over-limit', '110 terminate over-limit', '116 open-gate'],
  ],
  [
    'far over while in grace: the grace ends',
    [...each(100, 111, SOFT), ...each(112, 113, FAR)],
    ['100 warn over-limit', '105 close-gate over-limit', '110 terminate over-limit', '113 kill far-over-limit'],
  ],
  [
    'memory that stays after SIGKILL: stuck after 15 s, and no second stop before the cool-down ends',
    each(100, 131, FAR),
    [
      '100 warn far-over-limit',
      '101 kill far-over-limit',
      '116 stuck',
      '117 warn far-over-limit',
      '131 kill far-over-limit',
    ],
  ],
  [
    'over again softly at once after a stop: left alone until the cool-down ends',
    [...each(100, 101, FAR), [102_000, NOTHING], ...each(103, 131, SOFT)],
    [
      '100 warn far-over-limit',
      '101 kill far-over-limit',
      '102 released',
      '103 warn over-limit',
      '131 terminate over-limit',
    ],
  ],
  [
    'past the interposer again at once after a stop that released: stopped again',
    [...each(100, 101, BYPASS), [102_000, NOTHING], ...each(103, 104, BYPASS)],
    ['100 warn bypass', '101 kill bypass', '102 released', '103 warn bypass', '104 kill bypass'],
  ],
];

test('enforced: each sequence of samples takes exactly its steps', (t) => {
  for (const [what, samples, expected] of ENFORCED) t.deepEqual(climb(samples, DEFAULT_LADDER), expected, what);
});

test('reported: a warning, once the would-be stop, and nothing else', (t) => {
  const report: LadderPolicy = { ...DEFAULT_LADDER, mode: 'report' };
  const cases: [Sample[], string[]][] = [
    [each(100, 160, WITHIN), []],
    [each(100, 160, HONEST_BYPASS), []],
    [each(100, 160, BYPASS), ['100 warn bypass', '101 would-stop bypass']],
    [each(100, 160, FAR), ['100 warn far-over-limit', '101 would-stop far-over-limit']],
    [each(100, 160, SOFT), ['100 warn over-limit', '110 would-stop over-limit']],
    [
      [...each(100, 112, SOFT), ...each(113, 114, WITHIN), ...each(115, 130, FAR)],
      ['100 warn over-limit', '110 would-stop over-limit', '115 warn far-over-limit', '116 would-stop far-over-limit'],
    ],
  ];
  for (const [samples, expected] of cases) t.deepEqual(climb(samples, report), expected);
});

test('off: no action, whatever is held', (t) => {
  const off: LadderPolicy = { ...DEFAULT_LADDER, mode: 'off' };
  for (const held of [WITHIN, SOFT, FAR, BYPASS]) t.deepEqual(climb(each(100, 200, held), off), []);
});

test('an action carries the verdict that it follows from', (t) => {
  const verdict = verdictOf(BYPASS);
  const warned = step(CALM, { verdict, holdsMemory: true, nowMs: 1000 }, DEFAULT_LADDER);
  const killed = step(warned.state, { verdict, holdsMemory: true, nowMs: 2000 }, DEFAULT_LADDER);
  t.deepEqual(warned.action, { kind: 'warn', reason: 'bypass', verdict });
  t.deepEqual(killed.action, { kind: 'kill', reason: 'bypass', verdict });
});
