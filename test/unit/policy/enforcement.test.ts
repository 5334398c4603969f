// Properties of the decision about one container at one sample, over random facts and over random minutes of a node.
import test from 'ava';
import fc from 'fast-check';
import { MODES, type Mode } from '../../../src/api/request.ts';
import {
  adopt,
  afterStop,
  type Decision,
  decide,
  type EnforcementFacts,
  type EnforcementPolicy,
  type EnforcementState,
  INITIAL,
} from '../../../src/policy/enforcement.ts';
import { DEFAULT_LADDER } from '../../../src/policy/ladder.ts';
import { evidenceStrength } from '../../../src/policy/memory-evidence.ts';
import { DEFAULT_TOLERANCE, type OverReason, type Verdict } from '../../../src/policy/memory-verdict.ts';
import { countStop, recentStops, type Stop } from '../../../src/policy/stop-rate.ts';

const POLICY: EnforcementPolicy = { ...DEFAULT_LADDER, ...DEFAULT_TOLERANCE, staleMs: 3000, mostStopsPerMinute: 6 };
const MIB = 2 ** 20;
const GPU = 'GPU-0';
const SIGNALS = ['kill', 'terminate'];

const memoryVerdict = (severity: 'soft' | 'hard', reason: Exclude<OverReason, 'over-share'>): Verdict => {
  const worst = { gpuUuid: GPU, limitBytes: 100 * MIB, usedBytes: 500 * MIB, bypassBytes: 500 * MIB };
  return { severity, reason, worst, overBytes: 400 * MIB };
};
const shareVerdict = (severity: 'soft' | 'hard'): Verdict => ({
  severity,
  reason: 'over-share',
  worst: { gpuUuid: GPU, limitRatio: 0.2, usedRatio: 0.9, chargedRatio: 0.1, seconds: 60 },
});
const VERDICTS: readonly Verdict[] = [
  { severity: 'within' },
  memoryVerdict('soft', 'over-limit'),
  memoryVerdict('hard', 'far-over-limit'),
  memoryVerdict('hard', 'bypass'),
  memoryVerdict('hard', 'no-room'),
  shareVerdict('soft'),
  shareVerdict('hard'),
];
const verdict = fc.constantFrom(...VERDICTS);

type Seen = Omit<EnforcementFacts, 'nowMs' | 'recentStops' | 'grant'>;
const seen: fc.Arbitrary<Seen> = fc.record({
  sampleAgeMs: fc.oneof(fc.integer({ min: 0, max: 400 }), fc.integer({ min: -9000, max: 9000 })),
  mode: fc.oneof(fc.constant<Mode>('enforce'), fc.constantFrom(...MODES)),
  isComplete: fc.boolean(),
  verdict,
  holdsMemory: fc.boolean(),
  afterSignal: fc.record({ holdsMemory: fc.boolean(), verdict }),
  evidence: fc
    .record({
      own: fc.array(fc.record({ bytes: fc.integer({ min: 0, max: 600 * MIB }), inLedger: fc.boolean() }), {
        maxLength: 3,
      }),
      allBytes: fc.integer({ min: 0, max: 2000 * MIB }),
      usedBytes: fc.integer({ min: 0, max: 2000 * MIB }),
      unlistedBytes: fc.integer({ min: 0, max: 500 * MIB }),
    })
    .map((evidence) => new Map([[GPU, evidence]])),
  releasing: fc.boolean().map((is) => new Set(is ? [GPU] : [])),
});
/** Stretches of equal samples: a soft excess has consequences only after some seconds. */
const stretch = fc
  .tuple(fc.integer({ min: 1, max: 25 }), fc.integer({ min: 10, max: 3000 }), seen)
  .map(([count, afterMs, one]) => Array.from({ length: count }, () => [afterMs, one] as const));
const steps = fc.array(stretch, { minLength: 1, maxLength: 8 }).map((all) => all.flat());

/** The decisions about one container, in order, and the facts of each; every signal counts as sent. */
function run(all: readonly (readonly [afterMs: number, seen: Seen])[], recent: readonly Stop[] = []) {
  let state: EnforcementState = INITIAL;
  let nowMs = 1_000_000;
  return all.flatMap(([afterMs, one]) => {
    nowMs += afterMs;
    const facts: EnforcementFacts = { ...one, nowMs, recentStops: recent, grant: { id: 'one', namespace: 'team' } };
    return [adopt, decide].map((next) => {
      const before = freeze(state);
      const decision: Decision = next(before, freeze(facts), POLICY);
      const isSignal = SIGNALS.includes(decision.action.kind);
      state = isSignal ? afterStop(decision.state, new Set(['1@1'])) : decision.state;
      return { before, facts, ...decision };
    });
  });
}

function freeze<T>(value: T): T {
  if (typeof value === 'object' && value !== null && !(value instanceof Map) && !(value instanceof Set)) {
    for (const one of Object.values(value)) freeze(one);
    Object.freeze(value);
  }
  return value;
}

const holds = (t: { notThrows(run: () => void): void }, property: (all: ReturnType<typeof run>) => void) =>
  t.notThrows(() =>
    fc.assert(
      fc.property(steps, (all) => property(run(all))),
      { numRuns: 500 },
    ),
  );

const signals = (all: ReturnType<typeof run>) => all.filter(({ action }) => SIGNALS.includes(action.kind));

test('random facts do lead to stops, refusals and closed gates', (t) => {
  const kinds = new Set(fc.sample(steps, 500).flatMap((all) => run(all).map(({ action }) => action.kind)));
  for (const kind of [
    'kill',
    'terminate',
    'refuse',
    'warn',
    'close-gate',
    'open-gate',
    'released',
    'stuck',
    'would-stop',
  ])
    t.true(kinds.has(kind as never), kind);
});

test('a stale sample leads only to a refusal, or to a gate that another mode opens', (t) => {
  holds(t, (all) => {
    for (const { facts, action } of all) {
      const isStale = Math.abs(facts.sampleAgeMs) > POLICY.staleMs;
      if (isStale && !['none', 'refuse', 'open-gate'].includes(action.kind)) throw new Error(action.kind);
    }
  });
});

test('doubtful evidence leads to no stop for memory', (t) => {
  holds(t, (all) => {
    for (const { facts, action } of signals(all)) {
      if (!('reason' in action) || action.verdict.severity === 'within' || action.verdict.reason === 'over-share')
        continue;
      const evidence = facts.evidence.get(action.verdict.worst.gpuUuid);
      if (evidence && evidenceStrength(action.verdict, evidence, POLICY) === 'doubtful') throw new Error(action.kind);
    }
  });
});

test('in modes off and report no gate is closed and no process is signaled', (t) => {
  holds(t, (all) => {
    for (const { facts, action } of all)
      if (facts.mode !== 'enforce' && [...SIGNALS, 'close-gate'].includes(action.kind)) throw new Error(action.kind);
  });
});

test('a container within its grant is signaled only for new processes after a stop', (t) => {
  holds(t, (all) => {
    for (const { before, facts, action } of signals(all)) {
      const isRestarted = before.signaled !== undefined && facts.afterSignal?.verdict.severity !== 'within';
      if (facts.verdict.severity === 'within' && !isRestarted) throw new Error(action.kind);
    }
  });
});

test('no stop follows from the first fresh sample over the grant', (t) => {
  holds(t, ([, first]) => {
    if (first && SIGNALS.includes(first.action.kind)) throw new Error(first.action.kind);
  });
});

test('incomplete data that shows no excess changes neither ladder nor counts', (t) => {
  holds(t, (all) => {
    for (const { before, facts, state, action, reason } of all) {
      if (reason !== 'incomplete') continue;
      if (facts.isComplete || action.kind !== 'none' || state !== before) throw new Error(JSON.stringify(state));
    }
  });
});

test('a refused stop leaves the ladder where it was', (t) => {
  holds(t, (all) => {
    for (const { before, state, action, reason } of all)
      if ((action.kind === 'refuse' || reason === 'rate-limited') && state.ladder !== before.ladder)
        throw new Error(reason);
  });
});

test('a used-up rate of stops allows no signal', (t) => {
  const stops = Array.from({ length: 6 }, (_, index) => ({ atMs: 0, grantId: `g${index}`, namespace: `n${index}` }));
  t.notThrows(() => {
    fc.assert(
      fc.property(steps, (all) => {
        if (signals(run(all, stops)).length > 0) throw new Error('a signal');
      }),
    );
  });
});

test('a node stops no more containers within a minute than its rate, whatever they do', (t) => {
  const minutes = fc.array(
    fc.record({
      afterMs: fc.integer({ min: 100, max: 2000 }),
      all: fc.array(fc.tuple(verdict, fc.boolean()), { minLength: 12, maxLength: 12 }),
    }),
    { minLength: 20, maxLength: 80 },
  );
  let most = 0;
  t.notThrows(() => {
    fc.assert(
      fc.property(minutes, (samples) => {
        const states = new Map<string, EnforcementState>();
        let stops: readonly Stop[] = [];
        let nowMs = 1_000_000;
        for (const { afterMs, all } of samples) {
          nowMs += afterMs;
          for (const [index, [found, isHeld]] of all.entries()) {
            const grant = { id: `g${index}`, namespace: `n${index % 3}` };
            const facts: EnforcementFacts = {
              nowMs,
              sampleAgeMs: 0,
              mode: 'enforce',
              isComplete: true,
              verdict: found,
              holdsMemory: isHeld,
              afterSignal: { holdsMemory: isHeld, verdict: found },
              evidence: new Map(),
              releasing: new Set(),
              recentStops: recentStops(stops, nowMs),
              grant,
            };
            for (const next of [adopt, decide]) {
              const { state, action } = next(states.get(grant.id) ?? INITIAL, facts, POLICY);
              const isSignal = SIGNALS.includes(action.kind);
              const attempt = { action: action.kind, result: 'sent', grantId: grant.id, namespace: grant.namespace };
              const counted = countStop(stops, attempt, state.isStopCounted === true, nowMs);
              if (action.kind !== 'none') stops = counted.stops;
              const isStopCounted = action.kind === 'none' ? state.isStopCounted : counted.isStopCounted;
              const after = isSignal ? afterStop(state, new Set(['1@1'])) : state;
              states.set(grant.id, { ...after, isStopCounted: isStopCounted === true });
            }
          }
          const inMinute = recentStops(stops, nowMs).length;
          most = Math.max(most, inMinute);
          if (inMinute > POLICY.mostStopsPerMinute) throw new Error(`${inMinute} stops within a minute`);
        }
      }),
      { numRuns: 100 },
    );
  });
  t.is(most, POLICY.mostStopsPerMinute, 'the rate was reached');
});
