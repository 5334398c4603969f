// How rows are shown: what counts as met, and what a row says that could not be measured.
import test from 'ava';
import { jsonOf, type Row, tableOf } from '../../bench/row.ts';
import { median, medianDifference, quantile } from '../../bench/statistics.ts';

const row = (more: Partial<Row>): Row => ({
  name: 'a.b',
  value: 12,
  unit: 'ms',
  reference: { value: 4, what: 'beside' },
  ...more,
});

const VERDICTS: readonly (readonly [string, Partial<Row>, RegExp])[] = [
  ['a value below its goal', { goal: { most: 13 } }, /<= 13 met /],
  ['a value at its goal', { goal: { most: 12 } }, /<= 12 met /],
  ['a value above its goal', { goal: { most: 11 } }, /<= 11 MISSED /],
  ['a value above a goal whose floor is below it', { goal: { most: 11, floor: true } }, /<= 11 MISSED /],
  ['a value above a goal that the floor misses, too', { goal: { most: 3, floor: true } }, /<= 3 open: /],
  ['a value at a goal that it should reach', { goal: { least: 12 } }, />= 12 met /],
  ['a value below a goal that it should reach', { goal: { least: 13 } }, />= 13 MISSED /],
  [
    'a value that was not measured',
    { value: null, skipped: 'no tool', goal: { most: 3 } },
    /<= 3 not measured .*no tool$/,
  ],
];
for (const [what, more, expected] of VERDICTS) {
  test(`the table's verdict on ${what}`, (t) => {
    const [, line = ''] = tableOf([row(more)]).split('\n');
    t.regex(line, expected);
  });
}

const JSON_ROWS: readonly (readonly [string, Partial<Row>, object])[] = [
  ['a value and its reference', {}, { value: 12, unit: 'ms', reference: { value: 4, what: 'beside' }, ratio: 3 }],
  ['no reference', { reference: null }, { value: 12, unit: 'ms', reference: null, ratio: null }],
  [
    'a reference of nothing, which has no ratio',
    { reference: { value: 0, what: 'beside' } },
    { value: 12, unit: 'ms', reference: { value: 0, what: 'beside' }, ratio: null },
  ],
  [
    'more digits than mean anything',
    { value: 1 / 3, reference: { value: 2 / 3, what: 'beside' } },
    { value: 0.3333, unit: 'ms', reference: { value: 0.6667, what: 'beside' }, ratio: 0.5 },
  ],
  [
    'a row that was not measured: there all the same, with the reason',
    { value: null, reference: null, skipped: 'no tool' },
    { value: null, unit: 'ms', reference: { value: null, what: 'not measured: no tool' }, ratio: null },
  ],
];
for (const [what, more, expected] of JSON_ROWS) {
  test(`JSON of ${what}`, (t) => {
    t.deepEqual(JSON.parse(jsonOf(row(more))), { name: 'a.b', ...expected });
  });
}

test('quantiles are samples, an even median is between two, differences are pairwise', (t) => {
  t.is(median([3, 1, 2]), 2);
  t.is(median([4, 1, 2, 3]), 2.5);
  t.is(quantile([5, 1, 4, 2, 3], 0.99), 5);
  t.is(quantile([5, 1, 4, 2, 3], 0), 1);
  // A machine that slows down between rounds: each pair differs by 1, the medians of the two lists by more or less.
  t.is(medianDifference([11, 21, 101], [10, 20, 100]), 1);
  t.throws(() => median([]));
});
