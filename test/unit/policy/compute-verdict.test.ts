// Who is suspected of taking more compute than its share, and who fails the test that follows: with a driver that
// samples, whose sample names one of those that are on the GPU.
import test from 'ava';
import {
  judgeShare,
  type ShareLook,
  type ShareWatch,
  shareSeenAs,
  watchShare,
} from '../../../src/policy/compute-verdict.ts';

const WINDOW = 60;
const PERIOD_MS = 1000 / 7.2;

/** Numbers that look as if drawn by chance, the same in each run. */
function chance(seed: number): () => number {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return state / 2 ** 32;
  };
}

/** What is on the GPU: the one that is looked at, for so long, and then others. */
type Turn = { readonly onMs: number; readonly offMs: number };
type Program = {
  readonly limit: number;
  readonly next: (draw: () => number) => Turn;
  /** Of what it uses the arbiter knows this part. */
  readonly charged: number;
  /** With its gate closed it goes on. */
  readonly dodges?: boolean;
  /** The first sample is at 0. */
  readonly startMs?: number;
};

const honest = (limit: number, leastMs: number, mostMs: number): Program => ({
  limit,
  charged: 1,
  next(draw) {
    const onMs = leastMs + (mostMs - leastMs) * draw();
    return { onMs, offMs: onMs / limit - onMs };
  },
});
const dodger = (limit: number, takes: number): Program => ({
  ...honest(takes, 5, 15),
  limit,
  charged: 0,
  dodges: true,
});

/** A look each second, as the driver's samples and the arbiter tell it; the gate is closed five seconds after a
 * suspicion. */
function watch(program: Program, seconds: number, seed: number) {
  const draw = chance(seed);
  let [atMs, sampleMs, usedSeconds, chargedSeconds] = [program.startMs ?? 0, 0, 0, 0];
  let watching: ShareWatch | undefined;
  let gateClosedAt: number | undefined;
  let suspectedAt: number | undefined;
  const seen: string[] = [];
  let lookMs = 1000;
  while (atMs < seconds * 1000) {
    const runs = gateClosedAt === undefined || program.dodges;
    const { onMs, offMs } = runs ? program.next(draw) : { onMs: 0, offMs: 100 };
    for (; sampleMs <= atMs + onMs + offMs; sampleMs += PERIOD_MS) {
      if (sampleMs <= atMs + onMs) usedSeconds += PERIOD_MS / 1000;
    }
    atMs += onMs + offMs;
    chargedSeconds += (onMs * program.charged) / 1000;
    for (; lookMs <= atMs; lookMs += 1000) {
      const look = { usedSeconds, chargedSeconds, limitRatio: program.limit, gateClosed: gateClosedAt !== undefined };
      watching = watchShare(watching, { ...look, atMs: lookMs, gaps: 0 }, WINDOW);
      const { severity } = judgeShare('GPU-0', watching, WINDOW);
      if (severity !== 'within' && suspectedAt === undefined) {
        suspectedAt = lookMs;
        seen.push('suspected');
      }
      if (severity === 'within') {
        if (gateClosedAt !== undefined) seen.push('let go');
        suspectedAt = gateClosedAt = undefined;
      }
      if (severity !== 'within' && lookMs - (suspectedAt ?? lookMs) >= 5000) gateClosedAt ??= lookMs;
      if (severity === 'hard') return { seen: [...seen, 'failed'], atSeconds: lookMs / 1000 };
    }
  }
  return { seen, atSeconds: seconds };
}

for (const limit of [0.02, 0.1, 0.25, 0.5, 0.75]) {
  test(`a program within ${limit * 100} % is never suspected, whatever its kernels`, (t) => {
    for (const [least, most] of [
      [5, 15],
      [20, 200],
      [200, 200],
      [1000, 3000],
    ] as const)
      t.deepEqual(watch(honest(limit, least, most), 1200, 1).seen, [], `${least} to ${most} ms`);
  });
}

test('a program in step with the samples is suspected, and passes the closed-gate test', (t) => {
  const inStep = { ...honest(0.25, PERIOD_MS / 4, PERIOD_MS / 4), startMs: -10 };
  const { seen } = watch(inStep, 300, 1);
  t.deepEqual(new Set(seen), new Set(['suspected', 'let go']));
});

/** Flat out past the gate, and idle for as long as the gate is closed: what it had of the GPU, and how often its gate
 * was closed. `charged`: what its page reports of that. */
function pausing(
  limit: number,
  seconds: number,
  charged = 0,
): { readonly ratio: number; readonly closed: number; readonly killed: boolean } {
  let [usedSeconds, closed, suspectedMs] = [0, 0, Number.POSITIVE_INFINITY];
  let gateClosed = false;
  let watching: ShareWatch | undefined;
  for (let atMs = 1000; atMs <= seconds * 1000; atMs += 1000) {
    if (!gateClosed) usedSeconds += 1;
    const chargedSeconds = charged * usedSeconds;
    const look = { atMs, usedSeconds, chargedSeconds, limitRatio: limit, gateClosed, gaps: 0 };
    watching = watchShare(watching, look, WINDOW);
    const { severity } = judgeShare('GPU-0', watching, WINDOW);
    if (severity === 'hard') return { ratio: usedSeconds / seconds, closed, killed: true };
    suspectedMs = severity === 'within' ? Number.POSITIVE_INFINITY : Math.min(suspectedMs, atMs);
    const closes = severity !== 'within' && atMs - suspectedMs >= 5000;
    if (closes && !gateClosed) closed += 1;
    gateClosed = severity !== 'within' && (gateClosed || closes);
  }
  return { ratio: usedSeconds / seconds, closed, killed: false };
}

test('a program that pauses at a closed gate passes the test, within its share', (t) => {
  for (const limit of [0.02, 0.1, 0.25, 0.5, 0.75]) {
    const { ratio, closed, killed } = pausing(limit, 4 * 3600);
    t.false(killed, `${limit}`);
    t.true(closed > 1, `${limit}: its gate was closed ${closed} times`);
    // And what it has until the second suspicion has lasted, and until the next one after the account is even.
    t.true(ratio <= limit + 0.03, `${limit}: it had ${ratio}`);
  }
});

test('one whose page reports all that it uses is held to its share, too', (t) => {
  for (const limit of [0.05, 0.3, 0.5]) {
    const { ratio, closed, killed } = pausing(limit, 24 * 3600, 1);
    t.false(killed, `${limit}`);
    t.true(closed > 1, `${limit}: its gate was closed ${closed} times`);
    t.true(ratio <= limit + 0.03, `${limit}: it had ${ratio}`);
  }
});

test('a program that bypasses the gate is suspected, and fails the closed-gate test', (t) => {
  for (const [limit, takes, within] of [
    [0.02, 0.5, 90],
    [0.25, 1, 90],
    [0.25, 0.5, 120],
    [0.5, 1, 110],
    [0.25, 0.43, 700],
  ] as const) {
    const { seen, atSeconds } = watch(dodger(limit, takes), 3600, 7);
    t.is(seen.at(-1), 'failed', `${takes} of ${limit}`);
    t.true(atSeconds <= within, `${takes} of ${limit}: ${atSeconds} s`);
  }
});

const look = (atSeconds: number, usedSeconds: number, more: Partial<ShareLook> = {}): ShareLook => ({
  atMs: atSeconds * 1000,
  usedSeconds,
  chargedSeconds: 0,
  limitRatio: 0.25,
  gateClosed: false,
  gaps: 0,
  ...more,
});

/** Verdict after looks each second; `use`: per second. */
function after(seconds: number, lookOf: (second: number) => ShareLook): string {
  let watching: ShareWatch | undefined;
  for (let second = 0; second <= seconds; second++) watching = watchShare(watching, lookOf(second), WINDOW);
  return watching ? judgeShare('GPU-0', watching, WINDOW).severity : 'none';
}

test('only time without gaps counts', (t) => {
  t.is(
    after(59, (second) => look(second, second)),
    'within',
    'too short',
  );
  t.is(
    after(60, (second) => look(second, second)),
    'soft',
  );
  const changed: [string, (second: number) => ShareLook][] = [
    ['another limit', (second) => look(second, second, { limitRatio: second < 30 ? 0.2 : 0.25 })],
    ['a gap in the samples', (second) => look(second, second, { gaps: second < 30 ? 0 : 1 })],
    ['no sample was taken', (second) => look(second < 30 ? second : second + 11, second)],
    ['the clock was set back', (second) => look(second < 30 ? second + 100 : second, second)],
    ['a new sampler counts anew', (second) => look(second, second < 30 ? second : second - 30)],
  ];
  for (const [what, lookOf] of changed) {
    t.is(after(80, lookOf), 'within', what);
    t.is(after(100, lookOf), 'soft', what);
  }
});

test('GPU time that the arbiter granted is allowed, but not without end', (t) => {
  const says = (second: number) => look(second, second, { chargedSeconds: second });
  t.is(after(500, says), 'within', 'one long launch');
  t.is(after(610, says), 'soft');
});

test('at a closed gate pausing passes, going on fails, and a running launch may end', (t) => {
  const closed =
    (used: (second: number) => number, charged = (_: number) => 0) =>
    (second: number) =>
      look(second, used(second), { gateClosed: second > 70, chargedSeconds: charged(second) });
  const stops = closed((second) => Math.min(second, 70));
  t.is(after(70, stops), 'soft');
  t.is(after(80, stops), 'soft', 'what was under way may take ten seconds');
  t.is(after(86, stops), 'within');
  t.is(
    after(
      90,
      closed((second) => second),
    ),
    'hard',
  );
  t.is(
    after(
      90,
      closed((second) => Math.min(second, 79)),
    ),
    'within',
    'it ended in time',
  );
  t.is(
    after(
      90,
      closed(
        (second) => second,
        (second) => Math.max(0, second - 75),
      ),
    ),
    'within',
    'the arbiter knows of it',
  );
  t.is(
    after(90, (second) => look(second, second / 5, { gateClosed: second > 70 })),
    'within',
    'a gate that was closed for another reason is no test',
  );
});

test('past a closed gate use that a container reports is allowed as long as one launch', (t) => {
  // It has no gate, and its page reports all that it uses: suspected over ten windows, it passes the first test.
  let [usedSeconds, suspectedMs, closed] = [0, Number.POSITIVE_INFINITY, 0];
  let gateClosed = false;
  let watching: ShareWatch | undefined;
  const verdicts: string[] = [];
  for (let atMs = 0; atMs <= 1800 * 1000 && verdicts.at(-1) !== 'hard'; atMs += 1000) {
    usedSeconds += 1;
    const use = { usedSeconds, chargedSeconds: usedSeconds, gateClosed };
    watching = watchShare(watching, look(atMs / 1000, 0, use), WINDOW);
    const { severity } = judgeShare('GPU-0', watching, WINDOW);
    if (severity !== verdicts.at(-1)) verdicts.push(severity);
    suspectedMs = severity === 'within' ? Number.POSITIVE_INFINITY : Math.min(suspectedMs, atMs);
    const closes = atMs - suspectedMs >= 5000;
    if (closes && !gateClosed) closed += 1;
    gateClosed = severity !== 'within' && (gateClosed || closes);
  }
  t.deepEqual(verdicts, ['within', 'soft', 'within', 'soft', 'hard']);
  t.is(closed, 2);
  t.true(usedSeconds <= 2 * 600 + 2 * 15 + 10 + 65, `${usedSeconds} s`);
});

test('the shorter the time, the larger a share may look', (t) => {
  const points = (ratio: number, seconds: number) => Math.round((shareSeenAs(ratio, seconds) - ratio) * 100);
  t.deepEqual([points(0.25, 60), points(0.5, 60), points(0.02, 60), points(0.25, 600)], [17, 19, 7, 5]);
});
