// What a canary's answers prove, and what a node says of it.
import test from 'ava';
import {
  type CanaryRun,
  type CanaryVerdict,
  driverVerdictOf,
  fenceState,
  isDriversAlone,
  isUnclear,
  unfencedBy,
  verdictOf,
} from '../../../src/policy/isolation-check.ts';

const refused = { handle: 2, default: 2, table: 2 };
const good: CanaryRun = { loaded: true, within: 0, beyond: refused };
const bare: CanaryRun = { loaded: false, within: 0, beyond: { handle: 0, default: 0, table: 0 } };
const noContext: CanaryRun = { loaded: true, failed: 'making a context', code: 2 };
const killed: CanaryRun = { broken: 'it was ended by SIGBUS' };
const bareNoContext: CanaryRun = { loaded: false, failed: 'making a context', code: 2 };

const CASES: readonly [what: string, run: CanaryRun, alone: CanaryRun | undefined, verdict: CanaryVerdict][] = [
  ['all is refused that exceeds', good, undefined, { result: 'holds', why: '' }],
  ['the loader passed it over', bare, undefined, { result: 'fails', why: 'the interposer is not in the process' }],
  [
    'one way leads past it',
    { ...good, beyond: { ...refused, table: 0 } },
    undefined,
    { result: 'fails', why: 'a request beyond the grant succeeded (table)' },
  ],
  [
    'one way is answered with something else',
    { ...good, beyond: { ...refused, default: 500 } },
    undefined,
    { result: 'fails', why: 'a request beyond the grant was answered with 500 (default)' },
  ],
  [
    'what is granted is refused, too',
    { ...good, within: 2 },
    undefined,
    { result: 'fails', why: 'a request within the grant was answered with 2', breaks: true },
  ],
  [
    'no context behind it, one without it',
    noContext,
    bare,
    { result: 'fails', why: 'making a context failed with 2; without the interposer it works', breaks: true },
  ],
  ['no context at all', noContext, bareNoContext, { result: 'untried', why: 'making a context failed with 2' }],
  [
    'it dies behind it alone',
    killed,
    bare,
    { result: 'fails', why: 'it was ended by SIGBUS; without the interposer it works', breaks: true },
  ],
  ['it dies in any case', killed, killed, { result: 'untried', why: 'it was ended by SIGBUS' }],
];

test('isolation holds when excess and only excess is refused', (t) => {
  for (const [what, run, alone, verdict] of CASES) {
    t.deepEqual(verdictOf(run, alone), verdict, what);
    t.is(isUnclear(run), alone !== undefined, what);
  }
});

test('the condition is True when limits hold on each GPU, absent until all are known', (t) => {
  const of = (...results: (CanaryVerdict['result'] | undefined)[]) =>
    fenceState(
      results.map((result, index) => ({
        gpuUuid: `GPU-${index}`,
        interposer: result && { result, why: `why ${index}` },
      })),
    );
  t.is(of(), undefined);
  t.is(of('holds', undefined), undefined);
  t.is(of('untried', undefined), undefined);
  t.like(of('holds', 'holds'), { status: 'True', reason: 'FencesHold' });
  t.deepEqual(of('holds', 'untried'), { status: 'Unknown', reason: 'FenceNotTried', message: 'GPU-1: why 1' });
  t.deepEqual(of('fails', undefined, 'fails', 'untried'), {
    status: 'False',
    reason: 'FenceFails',
    message: 'GPU-0: why 0; GPU-2: why 2',
  });
});

test('a driver limit holds when it refuses a program without the interposer', (t) => {
  const behind: CanaryRun = { loaded: false, within: 0, beyond: refused };
  const cases: [CanaryRun, CanaryRun | undefined, CanaryVerdict][] = [
    [behind, undefined, { result: 'holds', why: '' }],
    [bare, undefined, { result: 'fails', why: 'a request beyond the grant succeeded (handle)' }],
    [good, undefined, { result: 'untried', why: 'the interposer is in the process' }],
    [
      bareNoContext,
      bare,
      { result: 'fails', why: 'making a context failed with 2; without the limit it works', breaks: true },
    ],
    [bareNoContext, bareNoContext, { result: 'untried', why: 'making a context failed with 2' }],
    [
      { loaded: false, failed: 'entering the group', code: 13 },
      { loaded: false, failed: 'starting CUDA', code: 100 },
      { result: 'untried', why: 'entering the group failed with 13' },
    ],
  ];
  for (const [run, alone, verdict] of cases) t.deepEqual(driverVerdictOf(run, alone), verdict);
});

test('a GPU is cordoned when no isolation holds or programs fail under the interposer', (t) => {
  const verdict = (result: CanaryVerdict['result'], more: Partial<CanaryVerdict> = {}) => ({
    result,
    why: 'w',
    ...more,
  });
  const [holds, fails, untried] = [verdict('holds'), verdict('fails'), verdict('untried')];
  const broken = verdict('fails', { breaks: true });
  const cases: [CanaryVerdict | undefined, CanaryVerdict | undefined, string | undefined, alone: boolean][] = [
    [holds, holds, undefined, false],
    [holds, fails, undefined, false],
    [holds, undefined, undefined, false],
    [untried, fails, undefined, false],
    [undefined, undefined, undefined, false],
    [fails, undefined, 'w', false],
    [fails, untried, 'w', false],
    [fails, fails, "w; nor are the driver's limits enforced: w", false],
    [fails, holds, undefined, true],
    [broken, holds, 'w', false],
  ];
  for (const [interposer, driver, why, alone] of cases) {
    t.is(unfencedBy({ interposer, driver }), why);
    t.is(isDriversAlone({ interposer, driver }), alone);
  }
  const state = (interposer: CanaryVerdict, driver: CanaryVerdict) =>
    fenceState([{ gpuUuid: 'GPU-0', interposer, driver }]);
  t.deepEqual(state(holds, fails), {
    status: 'True',
    reason: 'FencesHold',
    message: "what exceeds a grant is refused; GPU-0: not by the driver's limits: w",
  });
  t.deepEqual(state(fails, holds), {
    status: 'True',
    reason: 'FencesHold',
    message:
      "what exceeds a grant is refused; GPU-0: only by the driver's limits, because the interposer does not hold: w",
  });
  t.like(state(fails, fails), { status: 'False', reason: 'FenceFails' });
  t.like(state(broken, holds), { status: 'False', reason: 'FenceFails' });
});
