// The ladder as tables of samples in time, and what holds for every sequence of samples.
import test from 'ava';
import fc from 'fast-check';
import { MIB } from '../../../src/common/quantity.ts';
import type { ShareVerdict } from '../../../src/policy/compute-verdict.ts';
import { CALM, DEFAULT_LADDER, type LadderPolicy, type LadderState, step } from '../../../src/policy/ladder.ts';
import { DEFAULT_TOLERANCE, harder, judge, type Verdict } from '../../../src/policy/memory-verdict.ts';

const LIMIT = 1000 * MIB;
/** What a container of 1000 MiB holds: in MiB, and how many of them past the interposer. */
type Held = readonly [usedMiB: number, bypassMiB?: number];
const WITHIN: Held = [900];
const SOFT: Held = [1100];
const FAR: Held = [2000];
const BYPASS: Held = [1001, 1];
const HONEST_BYPASS: Held = [1000, 1000];
const NOTHING: Held = [0];

type Sample = readonly [atMs: number, held: Held];
const verdictOf = ([usedMiB, bypassMiB = 0]: Held): Verdict =>
  judge(
    [{ gpuUuid: 'GPU-a', limitBytes: LIMIT, usedBytes: usedMiB * MIB, bypassBytes: bypassMiB * MIB }],
    DEFAULT_TOLERANCE,
  );

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

const overShare = (severity: 'soft' | 'hard'): ShareVerdict => ({
  severity,
  reason: 'over-share',
  worst: { gpuUuid: 'GPU-a', limitRatio: 0.25, usedRatio: 1, chargedRatio: 0, seconds: 60 },
});

/** What happens, a sample a second; `until`: the verdict holds up to that second. */
function climbShare(steps: readonly (readonly [until: number, verdict: Verdict])[], policy: LadderPolicy): string[] {
  let state: LadderState = CALM;
  let second = 100;
  return steps.flatMap(([until, verdict]) => {
    const history: string[] = [];
    for (; second <= until; second++) {
      const next = step(state, { verdict, holdsMemory: true, nowMs: second * 1000 }, policy);
      state = next.state;
      const { action } = next;
      if (action.kind !== 'none')
        history.push([second, action.kind, ...('after' in action ? ['after', action.after] : [])].join(' '));
    }
    return history;
  });
}

test('suspected compute overuse is gated, gets no SIGTERM, and is killed after a test', (t) => {
  const soft = overShare('soft');
  t.deepEqual(climbShare([[200, soft]], DEFAULT_LADDER), ['100 warn', '105 close-gate']);
  t.deepEqual(
    climbShare(
      [
        [115, soft],
        [130, { severity: 'within' }],
      ],
      DEFAULT_LADDER,
    ),
    ['100 warn', '105 close-gate', '116 open-gate after over-share'],
  );
  t.deepEqual(
    climbShare(
      [
        [115, soft],
        [117, overShare('hard')],
      ],
      DEFAULT_LADDER,
    ),
    ['100 warn', '105 close-gate', '117 kill'],
  );
  t.deepEqual(climbShare([[200, soft]], { ...DEFAULT_LADDER, mode: 'report' }), ['100 warn', '110 would-stop']);
});

test('time over a compute share does not count as time over a memory grant', (t) => {
  const over = verdictOf(SOFT);
  t.deepEqual(
    climbShare(
      [
        [175, overShare('soft')],
        [190, over],
      ],
      DEFAULT_LADDER,
    ),
    ['100 warn', '105 close-gate', '186 terminate'],
  );
});

test('the harder of memory and compute verdict counts, memory if equal', (t) => {
  const [within, softly, hard] = [verdictOf(WITHIN), verdictOf(SOFT), verdictOf(FAR)] as Parameters<typeof harder>[0][];
  const said = (memory: typeof within, share: ShareVerdict) => {
    const verdict = harder(memory as Parameters<typeof harder>[0], share);
    return verdict.severity === 'within' ? 'within' : verdict.reason;
  };
  t.deepEqual(
    [within, softly, hard].map((memory) =>
      [{ severity: 'within' } as const, overShare('soft'), overShare('hard')].map((share) => said(memory, share)),
    ),
    [
      ['within', 'over-share', 'over-share'],
      ['over-limit', 'over-limit', 'over-share'],
      ['far-over-limit', 'far-over-limit', 'far-over-limit'],
    ],
  );
});

test('an action carries the verdict that it follows from', (t) => {
  const verdict = verdictOf(BYPASS);
  const warned = step(CALM, { verdict, holdsMemory: true, nowMs: 1000 }, DEFAULT_LADDER);
  const killed = step(warned.state, { verdict, holdsMemory: true, nowMs: 2000 }, DEFAULT_LADDER);
  t.deepEqual(warned.action, { kind: 'warn', reason: 'bypass', verdict });
  t.deepEqual(killed.action, { kind: 'kill', reason: 'bypass', verdict });
});

const held = fc.constantFrom(WITHIN, SOFT, FAR, BYPASS, HONEST_BYPASS, NOTHING);
// Runs of the same kind, so that the long ways are walked, too.
const samples = fc
  .array(fc.tuple(held, fc.integer({ min: 1, max: 30 }), fc.integer({ min: 50, max: 4000 })), { maxLength: 12 })
  .map((runs) => {
    let at = 1_700_000_000_000;
    return runs.flatMap(([what, count, everyMs]) =>
      Array.from({ length: count }, (): Sample => {
        at += everyMs;
        return [at, what];
      }),
    );
  });
const policy = (mode: fc.Arbitrary<LadderPolicy['mode']>) =>
  fc.record<LadderPolicy>({
    mode,
    softSeconds: fc.constantFrom(0, 1, 10),
    softSamples: fc.integer({ min: 2, max: 6 }),
    hardSamples: fc.integer({ min: 2, max: 4 }),
    graceSeconds: fc.constantFrom(0, 5, 10),
    coolDownSeconds: fc.constantFrom(0, 30),
    releaseSeconds: fc.constantFrom(1, 15),
  });

type Step = { readonly atMs: number; readonly severity: Verdict['severity']; readonly action: string };
function walk(list: readonly Sample[], rules: LadderPolicy): Step[] {
  let state: LadderState = CALM;
  return list.map(([atMs, what]) => {
    const verdict = verdictOf(what);
    const next = step(state, { verdict, holdsMemory: what[0] > 0, nowMs: atMs }, rules);
    const again = step(
      JSON.parse(JSON.stringify(state)) as LadderState,
      { verdict, holdsMemory: what[0] > 0, nowMs: atMs },
      rules,
    );
    if (JSON.stringify(again) !== JSON.stringify(next)) throw new Error('a stored state goes on otherwise');
    state = next.state;
    return { atMs, severity: verdict.severity, action: next.action.kind };
  });
}
/** Hard samples up to and with `index`, since the last stop, none of which came more than 10 s after the one before. */
function hardApart(steps: readonly Step[], index: number): number {
  const start = steps.slice(0, index).findLastIndex(({ action }) => action === 'kill') + 1;
  const hard = steps.slice(start, index + 1).filter(({ severity }) => severity === 'hard');
  const gap = hard.findLastIndex(({ atMs }, at) => at > 0 && atMs - (hard[at - 1]?.atMs ?? 0) > 10_000);
  return hard.length - Math.max(0, gap);
}
/** The samples up to and with `index` that were over without one within between them. */
function overRun(steps: readonly Step[], index: number): readonly Step[] {
  const start = steps.slice(0, index + 1).findLastIndex(({ severity }) => severity === 'within') + 1;
  return steps.slice(start, index + 1);
}
const fail = (why: string): never => {
  throw new Error(why);
};

test('in any mode but enforce nothing is ever done to a container', (t) => {
  const allowed = { off: ['none'], report: ['none', 'warn', 'would-stop'] };
  t.notThrows(() => {
    fc.assert(
      fc.property(samples, policy(fc.constantFrom('off', 'report')), (list, rules) => {
        for (const { action } of walk(list, rules)) {
          if (!allowed[rules.mode as 'off' | 'report'].includes(action)) fail(`${action} in mode ${rules.mode}`);
        }
      }),
      { numRuns: 500 },
    );
  });
});

test('nothing is ever done to a container that was within its grant in every sample', (t) => {
  const innocent = samples.map((list) => list.filter(([, what]) => what[0] * MIB <= LIMIT));
  t.notThrows(() => {
    fc.assert(
      fc.property(innocent, policy(fc.constantFrom('off', 'report', 'enforce')), (list, rules) => {
        for (const { action } of walk(list, rules)) if (action !== 'none') fail(action);
      }),
      { numRuns: 500 },
    );
  });
});

test('every stop follows from the samples right before it', (t) => {
  t.notThrows(() => {
    fc.assert(
      fc.property(samples, policy(fc.constant('enforce')), (list, rules) => {
        const steps = walk(list, rules);
        for (const [index, { atMs, action }] of steps.entries()) {
          const run = overRun(steps, index);
          if (action === 'terminate') {
            if (run.length < rules.softSamples) fail(`terminated after ${run.length} samples`);
            if (atMs - (run[0]?.atMs ?? 0) < rules.softSeconds * 1000) fail('terminated too early');
          }
          if (action !== 'kill') continue;
          const isHard = steps[index]?.severity === 'hard';
          if (isHard && hardApart(steps, index) > rules.hardSamples) continue;
          if (run.length < 2) fail('killed after one sample');
          const hard = run.slice(-rules.hardSamples).filter(({ severity }) => severity === 'hard').length;
          const asked = run.findLast((entry) => entry.action === 'terminate');
          const graceOver = asked !== undefined && atMs - asked.atMs >= rules.graceSeconds * 1000;
          if (hard < rules.hardSamples && !graceOver) fail('killed without a reason');
        }
      }),
      { numRuns: 1000 },
    );
  });
});

test('a stop has its outcome before the next one, and only a closed gate is opened', (t) => {
  t.notThrows(() => {
    fc.assert(
      fc.property(samples, policy(fc.constant('enforce')), (list, rules) => {
        let open = true;
        let pending = false;
        for (const { action } of walk(list, rules)) {
          if (action === 'released' || action === 'stuck') {
            if (!pending) fail(`${action} without a stop`);
            pending = false;
          } else if (action !== 'none' && pending) fail(`${action} while a stop is under way`);
          if (action === 'kill') {
            pending = true;
            open = true; // the next process starts with an open gate
          }
          if (action === 'close-gate' && !open) fail('closed twice');
          if (action === 'open-gate' && open) fail('opened twice');
          if (action === 'close-gate' || action === 'terminate') open = false;
          if (action === 'open-gate') open = true;
        }
      }),
      { numRuns: 1000 },
    );
  });
});

test('a lasting excess is stopped in time: hard at the last sample, soft after a grace', (t) => {
  const every = fc.integer({ min: 50, max: 4000 });
  t.notThrows(() => {
    fc.assert(
      fc.property(policy(fc.constant('enforce')), every, fc.constantFrom(FAR, BYPASS), (rules, everyMs, what) => {
        const list = Array.from({ length: rules.hardSamples }, (_, index): Sample => [1e6 + index * everyMs, what]);
        // Whichever path is the shorter one; it is never longer than the hard path.
        const stop = walk(list, rules).findIndex(({ action }) => action === 'kill');
        if (stop === -1) fail('far over, and not stopped');
      }),
      { numRuns: 300 },
    );
    fc.assert(
      fc.property(policy(fc.constant('enforce')), every, (rules, everyMs) => {
        const longestMs = Math.max(rules.softSeconds * 1000, (rules.softSamples - 1) * everyMs) + everyMs;
        const boundMs = longestMs + rules.graceSeconds * 1000 + everyMs;
        const count = Math.ceil(boundMs / everyMs) + 1;
        const list = Array.from({ length: count }, (_, index): Sample => [1e6 + index * everyMs, SOFT]);
        if (!walk(list, rules).some(({ action }) => action === 'kill')) fail('over, and not stopped');
      }),
      { numRuns: 300 },
    );
  });
});
