// Where more is reported for processes than for the GPU: which container is over all the same.
import test from 'ava';
import { type EvidenceStrength, evidenceStrength, type MemoryEvidence } from '../../../src/policy/memory-evidence.ts';
import { DEFAULT_TOLERANCE, judge, type MemoryVerdict } from '../../../src/policy/memory-verdict.ts';

const GIB = 2 ** 30;
type Process = readonly [gib: number, inLedger: boolean];

/** A container of 20 GiB beside others for which so much is reported. */
function strength(
  own: readonly Process[],
  othersGib: number,
  usedGib: number,
  reason?: 'no-room',
  unlistedGib = 0,
): EvidenceStrength {
  const sum = own.reduce((all, [gib]) => all + gib, 0);
  const bypass = own.reduce((all, [gib, inLedger]) => all + (inLedger ? 0 : gib), 0);
  const use = { gpuUuid: 'GPU-0', limitBytes: 20 * GIB, usedBytes: sum * GIB, bypassBytes: bypass * GIB };
  const found = judge([use], DEFAULT_TOLERANCE);
  if (found.severity === 'within') throw new Error('it is not over');
  const verdict: Exclude<MemoryVerdict, { severity: 'within' }> = reason
    ? { ...found, severity: 'hard', reason }
    : found;
  const evidence: MemoryEvidence = {
    own: own.map(([gib, inLedger]) => ({ bytes: gib * GIB, inLedger })),
    allBytes: (sum + othersGib) * GIB,
    usedBytes: usedGib * GIB,
    unlistedBytes: unlistedGib * GIB,
  };
  return evidenceStrength(verdict, evidence, DEFAULT_TOLERANCE);
}

const CASES: readonly (readonly [what: string, expected: EvidenceStrength, ...Parameters<typeof strength>])[] = [
  ['nothing is reported twice', 'sure', [[30, true]], 10, 40],
  ['it is over by more than may be reported twice', 'sure', [[60, true]], 10, 60],
  ['a bypass beside others with memory that is reported twice', 'likely', [[25, false]], 20, 35],
  [
    'its processes share the memory of one',
    'doubtful',
    [
      [15, true],
      [15, true],
    ],
    0,
    16,
  ],
  [
    'so do they beside managed memory of others, which is in use and in no list',
    'doubtful',
    [
      [15, true],
      [15, true],
    ],
    0,
    36,
    undefined,
    20,
  ],
  ['more is in no list than is in use, and it went past the interposer', 'sure', [[30, false]], 0, 30, undefined, 40],
  [
    'several bypasses beside managed memory of others, which excuses none',
    'sure',
    [
      [15, false],
      [15, false],
    ],
    0,
    30,
    undefined,
    12,
  ],
  ['one process of the ledger, which has its memory but once', 'sure', [[30, true]], 0, 30, undefined, 20],
  ['managed memory of others, and nothing is reported twice', 'sure', [[30, true]], 10, 60, undefined, 20],
  // 60 GiB of another container's, which pays for them, and 10 of its own.
  ['it has opened memory of another container', 'doubtful', [[70, true]], 60, 70],
  [
    'several past the interposer, none over by itself',
    'doubtful',
    [
      [15, false],
      [15, false],
    ],
    20,
    32,
  ],
  [
    'one past the interposer, and one that is not',
    'likely',
    [
      [25, false],
      [5, true],
    ],
    20,
    40,
  ],
  ['more than the GPU has in use', 'doubtful', [[50, false]], 0, 20],
  ['over by a little, which would do for the step', 'sure', [[24, true]], 2, 25, 'no-room'],
  ['over by a little that may be reported twice', 'doubtful', [[24, true]], 6, 25, 'no-room'],
];

for (const [what, expected, ...words] of CASES)
  test(what, (t) => {
    t.is(strength(...words), expected);
  });
