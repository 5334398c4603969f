import test from 'ava';
import fc from 'fast-check';
import {
  floorUnits,
  formatBytes,
  formatCount,
  parseQuantity,
  parseWhole,
  sameQuantity,
  wholeUnits,
} from '../../../src/common/quantity.ts';

const EXACT: [text: unknown, thousandths: bigint][] = [
  ['0', 0n],
  ['1', 1_000n],
  [7, 7_000n],
  ['-3', -3_000n],
  ['+3', 3_000n],
  ['4G', 4_000_000_000_000n],
  ['4Gi', 4_294_967_296_000n],
  ['1.5Gi', 1_610_612_736_000n],
  ['.5', 500n],
  ['5.', 5_000n],
  ['500m', 500n],
  ['3000u', 3n],
  ['1e3', 1_000_000n],
  ['1E3', 1_000_000n],
  ['1E', 1_000_000_000_000_000_000_000n],
  ['25e-2', 250n],
  ['12k', 12_000_000n],
  ['1e30', 10n ** 33n],
  [1e30, 10n ** 33n],
  ['9223372036854775807', 9_223_372_036_854_775_807_000n],
  ['0009', 9_000n],
];

test('a quantity is read exactly, whatever suffix it has', (t) => {
  for (const [text, thousandths] of EXACT) {
    const parsed = parseQuantity(text);
    if (!parsed.ok) {
      t.fail(`${text}: ${parsed.error}`);
      continue;
    }
    const { numerator, denominator } = parsed.value;
    t.is((numerator * 1000n) / denominator, thousandths, String(text));
  }
});

const NO_QUANTITIES: unknown[] = [
  '',
  ' 1',
  '1 ',
  '1,5',
  'Gi',
  '4GB',
  '4gi',
  '4K',
  '4 Gi',
  '1e',
  '1e1.5',
  '--1',
  '0x10',
  '١',
  'NaN',
  'Infinity',
  '1e999999999',
  '1e-999999999',
  '9'.repeat(1000),
  '.',
  '+',
  null,
  undefined,
  true,
  {},
  [],
  ['1'],
  Number.NaN,
];

test('a text that is not a quantity, or too long for one, is refused with a reason', (t) => {
  for (const value of NO_QUANTITIES) {
    const parsed = parseQuantity(value);
    t.false(parsed.ok, String(value));
    if (!parsed.ok) t.regex(parsed.error, /^is /);
  }
});

test('a whole number says which end of the range was missed', (t) => {
  t.deepEqual(parseWhole('25', 1, 100), { ok: true, value: 25 });
  t.deepEqual(parseWhole('2500m', 1, 100), {
    ok: false,
    error: { wrong: 'is not a whole number', right: 'write a whole number from 1 to 100' },
  });
  t.is(wrongOf('0'), 'is less than 1');
  t.is(wrongOf('-5'), 'is less than 1');
  t.is(wrongOf('101'), 'is more than 100');
  t.is(wrongOf('1e30'), 'is more than 100');
  t.deepEqual(parseWhole('2000m', 1, 100), { ok: true, value: 2 });

  function wrongOf(text: string): string {
    const parsed = parseWhole(text, 1, 100);
    return parsed.ok ? 'accepted' : parsed.error.wrong;
  }
});

test('equal values are the same quantity however they are written', (t) => {
  for (const [one, other] of [
    ['1Gi', '1024Mi'],
    ['1k', 1000],
    ['0.5', '500m'],
    ['1e3', '1k'],
  ]) {
    t.true(sameQuantity(one, other), `${one} ${other}`);
  }
  t.false(sameQuantity('4G', '4Gi'));
  t.false(sameQuantity('x', 'x'), 'what is no quantity equals nothing');
});

test('amounts in a unit are exact, or rounded down for suggestions', (t) => {
  const parsed = parseQuantity('1536Ki');
  t.true(parsed.ok);
  if (!parsed.ok) return;
  t.is(wholeUnits(parsed.value, 1n << 20n), undefined);
  t.is(floorUnits(parsed.value, 1n << 20n), 1n);
  t.is(wholeUnits(parsed.value, 1n << 10n), 1536n);
  const negative = parseQuantity('-1536Ki');
  t.is(negative.ok ? floorUnits(negative.value, 1n << 20n) : 0n, -2n);
});

test('canonical text is the one that Kubernetes writes', (t) => {
  t.deepEqual([0, 1, 1023, 1024, 1536 * 2 ** 20, 12 * 2 ** 30, 2 ** 50].map(formatBytes), [
    '0',
    '1',
    '1023',
    '1Ki',
    '1536Mi',
    '12Gi',
    '1Pi',
  ]);
  t.deepEqual([0, 1, 64, 1000, 1500, 6400, 2_000_000].map(formatCount), ['0', '1', '64', '1k', '1500', '6400', '2M']);
});

test('text that is formatted reads back to the same number', (t) => {
  t.notThrows(() => {
    fc.assert(
      fc.property(fc.maxSafeNat(), (count) => {
        for (const text of [formatBytes(count), formatCount(count)]) {
          const parsed = parseWhole(text, 0, Number.MAX_SAFE_INTEGER);
          if (!parsed.ok || parsed.value !== count) throw new Error(`${text} is not ${count}`);
        }
      }),
    );
  });
});

test('decimal text agrees with arithmetic on its digits', (t) => {
  const digits = fc.stringMatching(/^\d{1,12}$/);
  t.notThrows(() => {
    fc.assert(
      fc.property(digits, digits, fc.integer({ min: -20, max: 20 }), (whole, fraction, exponent) => {
        const parsed = parseQuantity(`${whole}.${fraction}e${exponent}`);
        if (!parsed.ok) throw new Error(parsed.error);
        // value = digits x 10^(exponent - places); compare after scaling both sides by 10^40
        const { numerator, denominator } = parsed.value;
        const expected = BigInt(whole + fraction) * 10n ** BigInt(40 + exponent - fraction.length);
        if (numerator * 10n ** 40n !== expected * denominator) throw new Error(`${numerator}/${denominator}`);
      }),
    );
  });
});
