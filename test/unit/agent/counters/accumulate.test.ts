// Counters that grow over samples: what is added, what is not made up, and that nothing ever falls.
import test from 'ava';
import fc from 'fast-check';
import { accumulate } from '../../../../src/agent/counters/accumulate.ts';
import { NO_TOTALS } from '../../../../src/agent/counters/totals.ts';
import type { SampledProcess } from '../../../../src/agent/sampling/sample.ts';
import { MIB } from '../../../../src/common/quantity.ts';
import {
  compared,
  gpu,
  grantOf,
  ledgerOf,
  owners,
  reading,
  row,
  sampledProcess,
  sampleOf,
  slot,
  use,
} from '../node.ts';
import { busy, foreign, ONE, OWNERS, one, run, START, type Tick } from './ticks.ts';

test('engine seconds grow by what each process used since the sample before', (t) => {
  const cases: [what: string, ticks: Tick[], smSeconds: number[]][] = [
    ['no process runs: 0, and not absent', [{ second: 0 }, { second: 1 }], [0, 0]],
    [
      'one process',
      [
        { second: 0, processes: [busy(11, 0)] },
        { second: 1, processes: [busy(11, 250_000)] },
        { second: 2, processes: [busy(11, 1_250_000)] },
      ],
      [0, 0.25, 1.25],
    ],
    [
      'what a process used before it was first seen counts: it used it',
      [{ second: 0 }, { second: 1, processes: [busy(11, 500_000)] }],
      [0, 0.5],
    ],
    [
      'two processes are added',
      [
        { second: 0, processes: [busy(11, 0), busy(12, 0)] },
        { second: 1, processes: [busy(11, 400_000), busy(12, 500_000)] },
      ],
      [0, 0.9],
    ],
    [
      'a process that ended keeps what it used; a later one of its pid adds its own',
      [
        { second: 0, processes: [busy(11, 600_000)] },
        { second: 1 },
        { second: 2, processes: [{ ...busy(11, 100_000), startTicks: 999 }] },
      ],
      [0.6, 0.6, 0.7],
    ],
    [
      'another sampler counts from the last report, be it more or less than that one had',
      [
        { second: 0, processes: [busy(11, 600_000), busy(12, 600_000)] },
        { second: 9, processes: [busy(11, 100_000), busy(12, 900_000)], round: 1 },
        { second: 10, processes: [busy(11, 300_000), busy(12, 900_000)] },
      ],
      [1.2, 2.2, 2.4],
    ],
    [
      'so it has where its first sample was not used',
      [
        { second: 0, processes: [busy(11, 600_000)], round: 9 },
        { second: 9, processes: [busy(11, 900_000)], round: 2 },
        { second: 10, processes: [busy(11, 1_000_000)], round: 3 },
      ],
      [0.6, 1.5, 1.6],
    ],
    [
      'a new process of the same pid between two samples',
      [
        { second: 0, processes: [busy(11, 600_000)] },
        { second: 1, processes: [{ ...busy(11, 700_000), startTicks: 999 }] },
      ],
      [0.6, 1.3],
    ],
    [
      'a new sampler counts from zero again',
      [
        { second: 0, processes: [busy(11, 900_000)] },
        { second: 1, processes: [busy(11, 100_000)] },
        { second: 2, processes: [busy(11, 300_000)] },
      ],
      [0.9, 1, 1.2],
    ],
    [
      'a gap in the samples loses nothing that the sampler counted',
      [
        { second: 0, processes: [busy(11, 0)] },
        { second: 60, processes: [busy(11, 30_000_000)] },
      ],
      [0, 30],
    ],
    [
      'no longer listed, still reported once',
      [
        { second: 0, processes: [busy(11, 0)] },
        { second: 1, processes: [busy(11, 200_000, { listed: false })] },
      ],
      [0, 0.2],
    ],
    [
      'a process without a container adds to none',
      [{ second: 0 }, { second: 1, processes: [busy(99, 1_000_000)] }],
      [0, 0],
    ],
  ];
  for (const [what, ticks, expected] of cases) {
    const totals = run(ticks);
    t.deepEqual(
      totals.map((each) => Math.round((one(each)?.smSeconds ?? -1) * 1e6) / 1e6),
      expected,
      what,
    );
    t.deepEqual(
      totals.map((each) => Math.round((one(each)?.memoryBusySeconds ?? -1) * 1e6) / 1e6),
      expected.map((seconds) => seconds / 2),
      `${what}: memory`,
    );
  }
});

test('a container over its limit is reported for each GPU separately', (t) => {
  const held = (first: number, second: number) => [
    sampledProcess(11, [use(0, { bytes: first * MIB }), use(1, { bytes: second * MIB })]),
  ];
  let totals = NO_TOTALS;
  const at = (second: number, processes: readonly SampledProcess[], isolateMemory = true) => {
    const grant = grantOf('one', 1000, [0, 1], { isolateMemory });
    const grants = [reading(grant, ledgerOf([slot(11, [row(), row()])]))];
    const sample = sampleOf([gpu(0), gpu(1)], processes, START + second * 1000, (second + 1e6) * 1e9);
    const state = compared(sample, grants, OWNERS);
    totals = accumulate(totals, state, owners(OWNERS));
    return state.containers[0]?.gpus.map(({ over }) => over);
  };
  // 1001 MiB are within what is tolerated.
  t.deepEqual(at(0, held(3000, 1001)), [true, false]);
  t.deepEqual(at(1, held(3000, 1001)), [true, false]);
  t.deepEqual(at(2, held(1001, 3000)), [false, true]);
  t.deepEqual(at(3, held(3000, 3000)), [true, true]);
  t.deepEqual(at(4, held(3000, 3000), false), [false, false], 'without isolation neither is');
  const seconds = [0, 1].map((index) => totals.containers.get(`one GPU-${index}`)?.overLimitSeconds);
  t.deepEqual(seconds, [2, 2]);
});

test('seconds over the limit are the time between samples; long gaps are not filled', (t) => {
  const over = [sampledProcess(11, [use(0, { bytes: 2000 * MIB })])];
  const tolerated = [sampledProcess(11, [use(0, { bytes: 110 * MIB })])];
  const cases: [what: string, ticks: Tick[], seconds: number[]][] = [
    ['over', [0, 1, 2].map((second) => ({ second, processes: over })), [0, 1, 2]],
    ['within the tolerance', [0, 1].map((second) => ({ second, processes: tolerated })), [0, 0]],
    [
      'over in between',
      [{ second: 0 }, { second: 1, processes: over }, { second: 1.25, processes: over }, { second: 9 }],
      [0, 1, 1.25, 1.25],
    ],
    ['after a minute of silence', [0, 60].map((second) => ({ second, processes: over })), [0, 10]],
    [
      'the clock is set back, and forth',
      [0, -3000, 3000].map((setSeconds, second) => ({ second, setSeconds, processes: over })),
      [0, 1, 2],
    ],
  ];
  for (const [what, ticks, expected] of cases) {
    t.deepEqual(
      run(ticks).map((totals) => one(totals)?.overLimitSeconds),
      expected,
      what,
    );
  }
});

test('peaks, refusals and unknown entry points never fall, whatever a ledger says', (t) => {
  const holding = (mib: number) => [sampledProcess(11, [use(0, { bytes: mib * MIB })])];
  const totals = run([
    { second: 0, processes: holding(50), denied: 2, unknown: 9 },
    { second: 1, processes: holding(90), denied: 7, unknown: 1 },
    { second: 2, processes: holding(10), denied: 0 },
  ]);
  t.deepEqual(
    totals.map((each) => [(one(each)?.peakBytes ?? 0) / MIB, one(each)?.denied, one(each)?.unknownEntryPoints]),
    [
      [50, 2, 9],
      [90, 7, 9],
      [90, 7, 9],
    ],
  );
});

test('the peak includes managed memory, up to the free part of the grant', (t) => {
  const peakOf = (usedMib: number, managedMib: number) => {
    const process = sampledProcess(11, [use(0, { bytes: usedMib * MIB })]);
    const slots = [slot(11, [row({ managedBytes: managedMib * MIB })])];
    const state = compared(sampleOf([gpu(0)], [process], START), [reading(grantOf('one', 100), ledgerOf(slots))], {
      11: ONE,
    });
    return (one(accumulate(NO_TOTALS, state, owners(OWNERS)))?.peakBytes ?? 0) / MIB;
  };
  t.is(peakOf(30, 40), 70);
  t.is(peakOf(30, 4000), 100);
  t.is(peakOf(130, 40), 130);
});

test('the peak of compute is that of whole minutes, and of none that was not watched', (t) => {
  const minute = (from: number, share: number) =>
    Array.from({ length: 6 }, (_, step) => ({ second: from + step * 10, share }));
  const ticks = [...minute(0, 0.25), ...minute(60, 0.75), ...minute(120, 0.5), { second: 400, share: 0 }];
  let smUs = 0;
  let before = 0;
  const peaks = run(
    ticks.map(({ second, share }) => {
      smUs += (second - before) * share * 1e6;
      before = second;
      return { second, processes: [busy(11, smUs)] };
    }),
  ).map((totals) => one(totals)?.smPeakRatio);
  t.deepEqual([peaks[0], peaks[5]], [undefined, undefined]);
  // Each step counts for what came before it: the first of a minute still ends the one before.
  t.is(Math.round((peaks[6] ?? 0) * 60), Math.round(0.25 * 50 + 0.75 * 10));
  t.is(Math.round((peaks[12] ?? 0) * 60), Math.round(0.75 * 50 + 0.5 * 10));
  t.is(peaks.at(-1), peaks[12]);
});

test('a minute with missing data has no peak, and data after a long gap is in none', (t) => {
  const grants = [reading(grantOf('one', 100))];
  const { hasProcessUtilization: _, ...silent } = gpu(0);
  let totals = NO_TOTALS;
  const at = (second: number, smUs: number, hasProcessUtilization = true) => {
    const on = hasProcessUtilization ? { ...silent, hasProcessUtilization } : silent;
    const state = compared(sampleOf([on], [busy(11, smUs)], START + second * 1000), grants, OWNERS);
    totals = accumulate(totals, state, owners(OWNERS));
    return one(totals);
  };
  for (let second = 0; second <= 60; second += 1) at(second, second * 125_000);
  t.is(one(totals)?.smPeakRatio?.toFixed(3), '0.125');
  for (let second = 61; second < 150; second += 1) {
    const utilizationKnown = second <= 70;
    t.like(at(second, 7_500_000, false), { utilizationKnown, smSeconds: 7.5 }, String(second));
  }
  for (let second = 150; second < 240; second += 1) at(second, 15_000_000);
  t.is(one(totals)?.smPeakRatio?.toFixed(3), '0.125', 'not the ten seconds at once');
  t.is(one(totals)?.smSeconds, 15);
});

test('each engine counts for foreign use, up to its end', (t) => {
  const at = (second: number, smUs: number, more = {}): Tick => ({
    second,
    processes: [busy(21, smUs, { encoderUs: smUs / 5, decoderUs: smUs / 10, ...more })],
  });
  const totals = run([at(0, 1_000_000), at(1, 2_000_000), { second: 2 }]);
  t.deepEqual(
    totals.map((each) => {
      const { smSeconds, memoryBusySeconds, encoderSeconds, decoderSeconds } = foreign(each) ?? {};
      return [smSeconds, memoryBusySeconds, encoderSeconds, decoderSeconds];
    }),
    [
      [1, 0.5, 0.2, 0.1],
      [2, 1, 0.4, 0.2],
      [2, 1, 0.4, 0.2],
    ],
  );
});

test('no counter falls, and engine seconds are the sum of all processes', (t) => {
  const tick = fc.record({
    gapMs: fc.oneof(fc.integer({ min: 100, max: 100_000 }), fc.integer({ min: 300_000, max: 100_000_000 })),
    setSeconds: fc.oneof(fc.constant(0), fc.integer({ min: -1e7, max: 1e7 })),
    grown: fc.array(fc.integer({ min: 0, max: 1_000_000 }), { minLength: 2, maxLength: 2 }),
    seen: fc.array(fc.boolean(), { minLength: 2, maxLength: 2 }),
    restarted: fc.boolean(),
    bytes: fc.integer({ min: 0, max: 3000 }),
    denied: fc.integer({ min: 0, max: 100 }),
  });
  t.notThrows(() => {
    fc.assert(
      fc.property(fc.array(tick, { maxLength: 20 }), (ticks) => {
        let second = 1000;
        let expected = 0;
        const counted = new Map<number, number>();
        const list = ticks.map(({ gapMs, setSeconds, grown, seen, restarted, bytes, denied }): Tick => {
          second += gapMs / 1000;
          // The sampler's own rule: what it does not see, or saw before its start, it has forgotten.
          if (restarted) counted.clear();
          const processes = [11, 12].flatMap((pid, index) => {
            if (!seen[index]) {
              counted.delete(pid);
              return [];
            }
            const now = (counted.get(pid) ?? 0) + (grown[index] ?? 0);
            // A start from zero that has already passed the old figure cannot be distinguished from going on.
            counted.set(pid, now);
            return [busy(pid, now, { bytes: bytes * MIB })];
          });
          return { second, setSeconds, processes, denied };
        });
        let last: ReturnType<typeof one>;
        for (const [index, totals] of run(list).entries()) {
          const now = one(totals);
          for (const name of ['smSeconds', 'memoryBusySeconds', 'overLimitSeconds', 'denied', 'peakBytes'] as const) {
            if ((now?.[name] ?? -1) < (last?.[name] ?? 0)) throw new Error(`${name} fell`);
          }
          if (!ticks.some((each) => each.restarted)) {
            for (const [place, grown] of (ticks[index]?.grown ?? []).entries())
              if (ticks[index]?.seen[place]) expected += grown;
            if (Math.abs((now?.smSeconds ?? -1) - expected / 1e6) > 1e-6) throw new Error('not the sum');
          }
          last = now;
        }
      }),
      { numRuns: 500 },
    );
  });
});
