// What holds of the ladder whatever a container holds, sample by sample.
import test from 'ava';
import fc from 'fast-check';
import { MIB } from '../../../src/common/quantity.ts';
import { CALM, type LadderPolicy, type LadderState, step } from '../../../src/policy/ladder.ts';
import type { Verdict } from '../../../src/policy/memory-verdict.ts';
import { BYPASS, FAR, HONEST_BYPASS, LIMIT, NOTHING, type Sample, SOFT, verdictOf, WITHIN } from './held.ts';

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
