// GPU-hours of namespaces as `cotenant showback` prints them.
import test from 'ava';
import { showbackLines } from '../../../src/cli/output/showback-table.ts';
import { type Kind, showbackOf } from '../../../src/policy/chargeback.ts';

const AMOUNTS = { granted: 4, used: 1, wasted: 3 };
const hours = (names: readonly string[], factor = 1) =>
  showbackOf(
    (kind: Kind, amount) =>
      new Map(
        names.map((name, index) => [name, AMOUNTS[amount] * factor * (kind === 'memory' ? 1 : 0.5) * (1 + index)]),
      ),
    20 * factor,
  );

test('the most expensive namespace is the first, and the sums are parts of all hours', (t) => {
  t.deepEqual(showbackLines(hours(['web', 'research']), 'http://prometheus'), [
    '            MEMORY                COMPUTE',
    'NAMESPACE  GRANTED  USED  WASTED  GRANTED  USED  WASTED',
    'research      8.00  2.00    6.00     4.00  1.00    3.00',
    'web           4.00  1.00    3.00     2.00  0.50    1.50',
    'all          12.00  3.00    9.00     6.00  1.50    4.50',
    '',
    'GPU-hours, of 20.00 that the GPUs had: 60% of the memory was granted, and 75% of that left idle; 30% of the compute was granted, and 75% of that left idle.',
    'http://prometheus',
  ]);
});

test('the table of 50 namespaces fits a terminal', (t) => {
  const names = Array.from({ length: 50 }, (_, index) => `department-of-long-names-and-numbers-${index}`);
  const result = hours(names, 9);
  for (const width of [54, 80, 120]) {
    const lines = showbackLines(result, 'http://prometheus', width);
    const table = lines.slice(0, lines.indexOf(''));
    t.is(table.length, 2 + 50 + 1);
    t.true(Math.max(...table.map((line) => line.length)) <= width);
    t.regex(table[2] ?? '', /numbers-49 .*1800\.00 .* 675\.00$/, `${width}`);
    t.regex(table.at(-1) ?? '', /^all +45900\.00 /);
  }
});

test('without a container there is a sentence', (t) => {
  t.deepEqual(showbackLines(hours([]), 'x\ny'), ['x y: no container with a grant was found.']);
});
