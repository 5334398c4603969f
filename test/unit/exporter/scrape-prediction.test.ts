// When scrapes are expected: by the steps of those that came, whoever they are of.
import test from 'ava';
import { type Arrivals, expects, graceMs, isWanted, withArrival } from '../../../src/exporter/scrape-prediction.ts';

const SECOND = 1000;
const arrivalsOf = (times: readonly number[]): Arrivals => times.reduce(withArrival, [] as Arrivals);
const every = (stepMs: number, fromMs: number, untilMs: number): number[] =>
  Array.from({ length: Math.ceil((untilMs - fromMs) / stepMs) }, (_, turn) => fromMs + turn * stepMs);
/** Random numbers from 0 to 1 that are the same in each run. */
function numbers(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state * 1_103_515_245 + 12_345) % 2 ** 31;
    return state / 2 ** 31;
  };
}

/**
 * A node that is sampled once a second and scraped at these times: how many pages were made because a scrape was expected, and
 * which scrapes found none that was young enough.
 */
function play(scrapes: readonly number[], intervalMs = SECOND, phaseMs = 370) {
  let arrivals: Arrivals = [];
  let expected = 0;
  let page = Number.NEGATIVE_INFINITY;
  let sample = phaseMs;
  const missed: number[] = [];
  for (const at of scrapes.toSorted((a, b) => a - b)) {
    for (; sample <= at; sample += intervalMs) {
      if (!isWanted(arrivals, sample, intervalMs)) continue;
      expected += 1;
      page = sample;
    }
    const newest = sample - intervalMs;
    arrivals = withArrival(arrivals, at);
    if (page === newest || (page === newest - intervalMs && at - newest <= graceMs(intervalMs))) continue;
    missed.push(at);
    page = newest;
  }
  return { expected, missed };
}

const MINUTE = 60 * SECOND;
const UNTIL = 10 * MINUTE;
test('whoever comes in even steps finds a page from the fourth time on, and few are made for nobody', (t) => {
  const cases: [name: string, servers: readonly (readonly number[])[], mostPerScrape: number][] = [
    ['one server', [every(15 * SECOND, 4000, UNTIL)], 1.3],
    ['another interval', [every(60 * SECOND, 4000, UNTIL)], 1.3],
    ['a short interval', [every(5 * SECOND, 4321, UNTIL)], 1.3],
    ['as often as there are samples', [every(SECOND, 4321, UNTIL)], 1],
    ['a pair in turns', [every(15 * SECOND, 4000, UNTIL), every(15 * SECOND, 9700, UNTIL)], 1.3],
    ['a pair in even turns', [every(30 * SECOND, 4000, UNTIL), every(30 * SECOND, 19_000, UNTIL)], 1.3],
    ['a pair at once', [every(15 * SECOND, 4000, UNTIL), every(15 * SECOND, 4040, UNTIL)], 1.3],
    ['two intervals', [every(15 * SECOND, 4000, UNTIL), every(30 * SECOND, 11_200, UNTIL)], 1.3],
    ['three servers', [4000, 7300, 12_400].map((from) => every(15 * SECOND, from, UNTIL)), 1.6],
    // The second comes as long after the third as the first after the second: steps of nobody's.
    ['three in step', [4000, 7300, 13_200].map((from) => every(15 * SECOND, from, UNTIL)), 2.5],
  ];
  for (const [name, servers, mostPerScrape] of cases) {
    const scrapes = servers.flat();
    const learned = Math.max(...servers.map((times) => times[3] ?? 0));
    // Wherever in the second the samples are.
    const phases = every(100, 0, SECOND).map((phaseMs) => play(scrapes, SECOND, phaseMs));
    const missed = phases.flatMap((phase) => phase.missed.filter((at) => at >= learned));
    t.deepEqual(missed, [], name);
    const perScrape = phases.reduce((sum, { expected }) => sum + expected, 0) / phases.length / scrapes.length;
    t.true(perScrape <= mostPerScrape, `${name}: ${perScrape} pages for a scrape`);
    t.true(perScrape >= 0.5, `${name}: ${perScrape} pages for a scrape`);
  }
});

test('scrapes that come 50 ms early or late are expected all the same', (t) => {
  for (const seed of [1, 2, 3, 4, 5]) {
    const random = numbers(seed);
    const times = every(15 * SECOND, 4000, 30 * MINUTE).map((at) => at + (random() - 0.5) * 100);
    const { expected, missed } = play(times);
    t.deepEqual(
      missed.filter((at) => at > (times[3] ?? 0)),
      [],
    );
    t.true(expected <= 2 * times.length, `${expected} pages for ${times.length} scrapes`);
  }
});

test('a scrape that was missed costs none of those after it; a server that is gone is soon forgotten', (t) => {
  const times = every(15 * SECOND, 4000, UNTIL);
  const without = times.filter((_, index) => index !== 12);
  t.deepEqual(
    play(without).missed.filter((at) => at >= (times[3] ?? 0)),
    [],
  );
  const arrivals = arrivalsOf(times);
  const last = times.at(-1) ?? 0;
  const vain = every(SECOND, last + SECOND, last + 30 * MINUTE).filter((at) => isWanted(arrivals, at, SECOND));
  t.true(vain.length <= 30, `${vain.length} pages for nobody`);
  t.true((vain.at(-1) ?? 0) < last + 6 * MINUTE);
});

test('who looks in between is not expected again, and does not keep the others from being', (t) => {
  const random = numbers(7);
  const regular = every(15 * SECOND, 4000, UNTIL);
  const looks = Array.from({ length: 12 }, () => 2 * MINUTE + random() * 7 * MINUTE);
  const { expected, missed } = play([...regular, ...looks]);
  t.deepEqual(
    missed.filter((at) => at >= (regular[3] ?? 0) && regular.includes(at)),
    [],
  );
  t.true(expected <= 2 * regular.length, `${expected} pages`);
  t.is(play(looks).expected, 0, 'no two steps of theirs are alike');
});

test('two times are no step, whatever lies between them; three even ones are', (t) => {
  t.false(expects([], 0, UNTIL));
  t.false(expects([1000], 0, UNTIL));
  t.false(expects([1000, 16_000], 16_001, UNTIL));
  t.false(expects([1000, 16_000, 26_000], 26_001, UNTIL));
  const three = [1000, 16_000, 31_000];
  t.true(expects(three, 45_900, 46_100));
  t.false(expects(three, 31_001, 45_900));
  t.false(expects(three, 46_100, 60_000));
});

test('scrapes without a pause are always expected; many at once are one', (t) => {
  const dense = arrivalsOf(every(10, 0, 5000));
  t.true(dense.length <= 16);
  for (const intervalMs of [100, 250, 1000, 60_000]) t.true(isWanted(dense, 5000, intervalMs), String(intervalMs));
  t.is(arrivalsOf(Array.from({ length: 100 }, (_, index) => 1000 + index / 2)).length, 1);
});

test('what is old is forgotten, and times that do not go on are no times', (t) => {
  const old = arrivalsOf([0, 15_000, 30_000]);
  t.deepEqual(withArrival(old, 30_000 + 10 * MINUTE), [30_000 + 10 * MINUTE]);
  t.deepEqual(withArrival(old, 20_000), [0, 15_000, 20_000], 'what would be of the future is not kept');
  t.deepEqual(withArrival([5000], 0), [0]);
  t.deepEqual(withArrival([], -5), [-5]);
});

test('a page is handed out beyond its time for a quarter of an interval, and never for long', (t) => {
  t.is(graceMs(1000), 250);
  t.is(graceMs(100), 25);
  t.is(graceMs(60_000), 250);
  t.is(graceMs(0), 0);
});
