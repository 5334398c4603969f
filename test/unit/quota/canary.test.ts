// What a canary's answers prove, and what a node says of it.
import test from 'ava';
import { type CanaryRun, type CanaryVerdict, fenceState, isUnclear, verdictOf } from '../../../src/quota/canary.ts';

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
    { result: 'fails', why: 'a request within the grant was answered with 2' },
  ],
  [
    'no context behind it, one without it',
    noContext,
    bare,
    { result: 'fails', why: 'making a context failed with 2; without the interposer it works' },
  ],
  ['no context at all', noContext, bareNoContext, { result: 'untried', why: 'making a context failed with 2' }],
  [
    'it dies behind it alone',
    killed,
    bare,
    { result: 'fails', why: 'it was ended by SIGBUS; without the interposer it works' },
  ],
  ['it dies in any case', killed, killed, { result: 'untried', why: 'it was ended by SIGBUS' }],
];

test('a fence holds when all that exceeds is refused and nothing else; it fails by its own fault alone', (t) => {
  for (const [what, run, alone, verdict] of CASES) {
    t.deepEqual(verdictOf(run, alone), verdict, what);
    t.is(isUnclear(run), alone !== undefined, what);
  }
});

test('a node says that limits hold when they do on each card, and is silent until all are known', (t) => {
  const of = (...results: (CanaryVerdict['result'] | undefined)[]) =>
    fenceState(
      results.map((result, index) => ({
        gpuUuid: `GPU-${index}`,
        verdict: result && { result, why: `why ${index}` },
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
