// Verdicts on one sample: what is within, what is soft, what is hard, and which GPU decides.
import test from 'ava';
import fc from 'fast-check';
import { MIB } from '../../../src/common/quantity.ts';
import {
  DEFAULT_TOLERANCE,
  type FreeMemory,
  type GpuUse,
  judge,
  judgeFreeMemory,
  type Verdict,
} from '../../../src/policy/memory-verdict.ts';

const use = (usedBytes: number, limitBytes: number, bypassBytes = 0, gpuUuid = 'GPU-a'): GpuUse => ({
  gpuUuid,
  limitBytes,
  usedBytes,
  bypassBytes,
});
const said = (verdict: Verdict): string =>
  verdict.severity === 'within' ? 'within' : `${verdict.severity} ${verdict.reason}`;

// A grant of 1000 MiB: soft above 1000 x 1.02 + 64 = 1084 MiB, hard above 1000 x 1.25 + 64 = 1314 MiB.
const SOFT = 1084 * MIB;
const HARD = 1314 * MIB;
const CASES: [what: string, used: number, limit: number, bypass: number, expected: string][] = [
  ['nothing held', 0, 1000 * MIB, 0, 'within'],
  ['the grant to its last byte', 1000 * MIB, 1000 * MIB, 0, 'within'],
  ['one byte over: what rounding may cost', 1000 * MIB + 1, 1000 * MIB, 0, 'within'],
  ['the tolerance to its last byte', SOFT, 1000 * MIB, 0, 'within'],
  ['one byte over the tolerance', SOFT + 1, 1000 * MIB, 0, 'soft over-limit'],
  ['the last byte that is not far', HARD, 1000 * MIB, 0, 'soft over-limit'],
  ['far over', HARD + 1, 1000 * MIB, 0, 'hard far-over-limit'],
  ['all of it past the interposer, within the grant', 1000 * MIB, 1000 * MIB, 1000 * MIB, 'within'],
  ['one byte over, one byte of it past the interposer: no tolerance', 1000 * MIB + 1, 1000 * MIB, 1, 'hard bypass'],
  ['far over with a bypass: the bypass is the reason', HARD + 1, 1000 * MIB, 1, 'hard bypass'],
  ['a small grant is not far over before it is over', 64 * MIB + 64 * MIB, 64 * MIB, 0, 'within'],
  ['a small grant, over', 64 * MIB + 70 * MIB, 64 * MIB, 0, 'soft over-limit'],
  ['no grant on this GPU at all, and nothing held', 0, 0, 0, 'within'],
];

test('one GPU: within, soft above tolerance, hard far above or with a bypass', (t) => {
  for (const [what, used, limit, bypass, expected] of CASES) {
    t.is(said(judge([use(used, limit, bypass)], DEFAULT_TOLERANCE)), expected, what);
  }
});

test('a verdict names the GPU that decides and how much is held over its grant there', (t) => {
  const small = use(1100 * MIB, 1000 * MIB, 0, 'GPU-small');
  const big = use(1200 * MIB, 1000 * MIB, 0, 'GPU-big');
  const bypass = use(1001 * MIB, 1000 * MIB, MIB, 'GPU-bypass');
  const farther = use(3000 * MIB, 1000 * MIB, 0, 'GPU-far');
  const calm = use(10 * MIB, 1000 * MIB, 10 * MIB, 'GPU-calm');
  const cases: [GpuUse[], GpuUse, string, number][] = [
    [[small, big], big, 'soft', 200 * MIB],
    [[big, small, calm], big, 'soft', 200 * MIB],
    [[big, bypass], bypass, 'hard', MIB],
    [[bypass, big], bypass, 'hard', MIB],
    [[bypass, farther, big], farther, 'hard', 2000 * MIB],
  ];
  for (const [uses, worst, severity, overBytes] of cases) {
    t.like(judge(uses, DEFAULT_TOLERANCE), { severity, worst, overBytes });
  }
  t.deepEqual(judge([], DEFAULT_TOLERANCE), { severity: 'within' });
  t.deepEqual(judge([calm, calm], DEFAULT_TOLERANCE), { severity: 'within' });
});

test('a soft excess is hard on a GPU without free memory for other grants', (t) => {
  const over = use(1100 * MIB, 1000 * MIB);
  const verdictOf = (uses: readonly GpuUse[], memory: FreeMemory | undefined, reserveBytes = 64 * MIB) => {
    const tolerance = { ...DEFAULT_TOLERANCE, reserveBytes };
    const memoryOn = (gpuUuid: string) =>
      gpuUuid === 'GPU-a' ? memory : { freeBytes: 10_000 * MIB, owedBytes: 10_000 * MIB };
    return judgeFreeMemory(judge(uses, tolerance), uses, tolerance, memoryOn);
  };
  const memory = (free: number, owed: number): FreeMemory => ({ freeBytes: free * MIB, owedBytes: owed * MIB });
  const cases: [string, readonly GpuUse[], FreeMemory | undefined, string][] = [
    ['nothing left', [over], memory(0, 500), 'hard no-room'],
    ['just below the reserve', [over], { freeBytes: 64 * MIB - 1, owedBytes: 500 * MIB }, 'hard no-room'],
    ['the reserve is there', [over], memory(64, 500), 'soft over-limit'],
    ['others have all that is theirs', [over], memory(0, 0), 'soft over-limit'],
    ['what is left is enough for others', [over], memory(10, 10), 'soft over-limit'],
    ['what is left is not enough for others', [over], { freeBytes: 10 * MIB - 1, owedBytes: 10 * MIB }, 'hard no-room'],
    ['the driver does not tell what is left', [over], undefined, 'soft over-limit'],
    ['within the tolerance', [use(1084 * MIB, 1000 * MIB)], memory(0, 500), 'within'],
    ['far over', [use(2000 * MIB, 1000 * MIB)], memory(0, 500), 'hard far-over-limit'],
    ['past the interposer', [use(1001 * MIB, 1000 * MIB, MIB)], memory(0, 500), 'hard bypass'],
  ];
  for (const [what, uses, left, expected] of cases) t.is(said(verdictOf(uses, left)), expected, what);
  t.is(said(verdictOf([over], memory(0, 500), 0)), 'soft over-limit', 'switched off');
  const elsewhere = use(1200 * MIB, 1000 * MIB, 0, 'GPU-b');
  t.like(verdictOf([elsewhere, over], memory(0, 500)), { reason: 'no-room', worst: over, overBytes: 100 * MIB });
  t.is(said(verdictOf([elsewhere, use(1000 * MIB, 1000 * MIB)], memory(0, 500))), 'soft over-limit');
});

test('the severity is the worst of the GPUs in any order', (t) => {
  const gpu = fc.record({
    gpuUuid: fc.constantFrom('GPU-a', 'GPU-b'),
    limitBytes: fc.integer({ min: 0, max: 4000 }).map((mib) => mib * MIB),
    usedBytes: fc.integer({ min: 0, max: 6000 }).map((mib) => mib * MIB),
    bypassBytes: fc.constantFrom(0, 0, MIB, 500 * MIB),
  });
  const tolerance = fc.record({
    ratio: fc.constantFrom(1, 1.02, 1.5),
    bytes: fc.constantFrom(0, 64 * MIB),
    hardRatio: fc.constantFrom(1.5, 2, 10),
    reserveBytes: fc.constant(0),
  });
  t.notThrows(() => {
    fc.assert(
      fc.property(fc.array(gpu, { maxLength: 8 }), tolerance, (gpus, allowed) => {
        const over = gpus.filter(({ usedBytes, limitBytes }) => usedBytes > limitBytes);
        const beyond = (ratio: number) =>
          over.filter(({ usedBytes, limitBytes }) => usedBytes - allowed.bytes > limitBytes * ratio);
        const hard = [...over.filter(({ bypassBytes }) => bypassBytes > 0), ...beyond(allowed.hardRatio)];
        const expected = hard.length > 0 ? 'hard' : beyond(allowed.ratio).length > 0 ? 'soft' : 'within';
        const found = judge(gpus, allowed);
        const turned = judge(gpus.toReversed(), allowed);
        if (found.severity !== expected) throw new Error(`${found.severity} instead of ${expected}`);
        if (turned.severity !== expected) throw new Error('the order of GPUs decided');
        if (found.severity === 'within' || turned.severity === 'within') return;
        const most = Math.max(
          ...(expected === 'hard' ? hard : beyond(allowed.ratio)).map((entry) => entry.usedBytes - entry.limitBytes),
        );
        if (found.overBytes !== most || turned.overBytes !== most) throw new Error('not the worst GPU');
        if (found.worst.usedBytes - found.worst.limitBytes !== most) throw new Error('the GPU named is another one');
      }),
      { numRuns: 2000 },
    );
  });
});
