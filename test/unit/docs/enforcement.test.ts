// The page on enforcement: its tables agree with the ladder, the tolerances and the sampling error in src/policy.
import test from 'ava';
import { DEFAULTS } from '../../../src/agent/config.ts';
import type { Mode } from '../../../src/api/request.ts';
import { DEFAULT_SHARE_SECONDS, shareSeenAs } from '../../../src/policy/compute-verdict.ts';
import { CALM, DEFAULT_LADDER, type LadderState, step } from '../../../src/policy/ladder.ts';
import { DEFAULT_TOLERANCE, judge, judgeFreeMemory } from '../../../src/policy/memory-verdict.ts';
import { quoted, readPage, rowsWith, section } from '../../support/docs.ts';

const page = readPage('docs/operate/enforcement.md');
const MIB = 2 ** 20;
const LIMIT = 10_000 * MIB;

const usesOf = (usedBytes: number, bypassBytes = 0) => [
  { gpuUuid: 'GPU-0', limitBytes: LIMIT, usedBytes, bypassBytes },
];
const judged = (usedBytes: number, bypassBytes = 0) => judge(usesOf(usedBytes, bypassBytes), DEFAULT_TOLERANCE);
/** On a GPU without free memory for other containers. */
const crowded = (usedBytes: number) =>
  judgeFreeMemory(judged(usedBytes), usesOf(usedBytes), DEFAULT_TOLERANCE, () => ({ freeBytes: 0, owedBytes: MIB }));

/** The actions for a container whose use stays the same, at the agent's interval for such samples. */
function climb(usedBytes: number, mode: Mode): [seconds: number, action: string][] {
  const actions: [number, string][] = [];
  let state: LadderState = CALM;
  for (let ms = 0; ms <= 30_000; ms += DEFAULTS.urgentIntervalMs) {
    const next = step(
      state,
      { verdict: judged(usedBytes), holdsMemory: true, nowMs: 1e9 + ms },
      { ...DEFAULT_LADDER, mode },
    );
    state = next.state;
    if (next.action.kind !== 'none') actions.push([ms / 1000, next.action.kind]);
    if (next.action.kind === 'kill') break;
  }
  return actions;
}

test('the ladder on the page is that of the default settings', (t) => {
  const rows = rowsWith(page, 'path', 'after', 'action');
  const onPage = (path: string) =>
    rows
      .filter((row) => row.path === path)
      .map((row): [number, string] => [Number.parseFloat(row.after ?? ''), quoted(row.action)[0] ?? '']);
  t.deepEqual(onPage('soft'), climb(LIMIT * 1.1, 'enforce'));
  t.deepEqual(onPage('hard'), climb(LIMIT * 2, 'enforce'));
});

test('mode report ends with would-stop, and mode off takes no action', (t) => {
  t.deepEqual(climb(LIMIT * 1.1, 'report'), [
    [0, 'warn'],
    [10, 'would-stop'],
  ]);
  t.deepEqual(climb(LIMIT * 2, 'off'), []);
  t.deepEqual(
    rowsWith(page, 'mode', 'what happens').map((row) => quoted(row.mode)[0]),
    ['enforce', 'report', 'off'],
  );
});

test('the severities on the page are those of the default tolerance', (t) => {
  const rows = rowsWith(section(page, '## When a container is over'), 'severity', 'reason', 'when');
  const { ratio, bytes, hardRatio, reserveBytes } = DEFAULT_TOLERANCE;
  const samples = [
    judged(LIMIT * ratio + bytes),
    judged(LIMIT * ratio + bytes + 1),
    judged(LIMIT * hardRatio + bytes + 1),
    crowded(LIMIT * ratio + bytes + 1),
    judged(LIMIT + 1, 1),
  ];
  t.deepEqual(
    rows.map((row) => [row.severity, quoted(row.reason)[0]]),
    samples.map((verdict) => [verdict.severity, verdict.severity === 'within' ? undefined : verdict.reason]),
  );
  t.regex(rows[0]?.when ?? '', new RegExp(`${ratio} and ${bytes / MIB} MiB`));
  t.regex(rows[2]?.when ?? '', new RegExp(`${hardRatio} and ${bytes / MIB} MiB`));
  t.regex(rows[3]?.when ?? '', new RegExp(`\\(${reserveBytes / MIB} MiB\\)`));
  t.is(judged(LIMIT, LIMIT).severity, 'within');
});

test('the sampling errors on the page are those that compute is judged with', (t) => {
  const text = section(page, '## When a container takes more than its share').replaceAll('\n', ' ');
  const seen = (percent: number, seconds: number) => shareSeenAs(percent / 100, seconds) * 100;
  const [, share, minute, tenMinutes] =
    /A share of (\d+) % may look like (\d+) % over a minute, and like (\d+) % over ten/.exec(text)?.map(Number) ?? [];
  t.deepEqual(
    [60, 600].map((seconds) => Math.round(seen(share ?? 0, seconds))),
    [minute, tenMinutes],
  );
  const [, points, of, more, ofMore] =
    /it is (\d+) points for a share of (\d+) %, (\d+) for one of (\d+) %/.exec(text)?.map(Number) ?? [];
  t.deepEqual(
    [Math.round(seen(of ?? 0, 60)) - (of ?? 0), Math.round(seen(ofMore ?? 0, 60)) - (ofMore ?? 0)],
    [points, more],
  );
  const [, most = 0] = /more than (\d+) % of a GPU can take the rest unseen/.exec(text)?.map(Number) ?? [];
  t.true(seen(most, DEFAULT_SHARE_SECONDS) < 100 && seen(most + 2, DEFAULT_SHARE_SECONDS) > 100);
  t.true(text.includes(`\`shareSeconds\` (${DEFAULT_SHARE_SECONDS})`));
});
