// Counters of stops, one per outcome, which disappear a while after their container; and of decisions.
import test from 'ava';
import { createStopCounts, type StopCounts } from '../../../../src/agent/counters/stop-counts.ts';
import {
  type ActionName,
  type ActionRecord,
  type Outcome,
  readRecord,
  recordOf,
} from '../../../../src/agent/enforcement/action-record.ts';
import type { RefusalReason } from '../../../../src/policy/enforcement.ts';
import type { MemoryReason, Verdict } from '../../../../src/policy/memory-verdict.ts';
import { setUp } from '../enforcement/enforcing.ts';
import { compared, gpu, grantOf, reading, sampleOf } from '../node.ts';

const START = 1_700_000_000_000;
const grant = grantOf('one', 100, [0, 1]);
const see = (stops: StopCounts, second: number, ids: readonly string[] = ['one'], setSeconds = 0) =>
  stops.update(
    compared(
      sampleOf([gpu(0), gpu(1)], [], START + (second + setSeconds) * 1000, (second + 1e6) * 1e9),
      ids.map((id) => reading(grantOf(id, 100, [0, 1]))),
      {},
    ),
  );
const verdict = (reason: MemoryReason): Verdict => ({
  severity: 'hard',
  reason,
  worst: { gpuUuid: 'GPU-1', limitBytes: 1, usedBytes: 2, bypassBytes: 0 },
  overBytes: 1,
});
const record = (action: ActionName, result: Outcome, reason: MemoryReason = 'bypass', second = 1): ActionRecord =>
  recordOf({ grant, action, verdict: verdict(reason), atMs: START + second * 1000, result });
const refused = (action: ActionName, reason: RefusalReason, second = 1): ActionRecord =>
  recordOf({
    grant,
    action,
    verdict: verdict('bypass'),
    atMs: START + second * 1000,
    result: 'refused',
    refusal: { reason, detail: 'for a reason' },
  });
/** Counters above 0: "GPU action reason result count". */
const counted = (stops: StopCounts) =>
  stops
    .totals()
    .filter(({ count }) => count > 0)
    .map(({ gpuUuid, action, reason, result, count }) => [gpuUuid, action, reason, result, count].join(' '))
    .toSorted();
const decided = (stops: StopCounts) =>
  stops
    .decisions()
    .filter(({ count }) => count > 0)
    .map(({ decision, reason, count }) => `${decision} ${reason} ${count}`)
    .toSorted();

const REASONS = ['bypass', 'far-over-limit', 'no-room', 'over-limit', 'over-share'];

test('counters of decisions start at 0, and those of stops with the first stop', (t) => {
  const stops = createStopCounts();
  t.deepEqual(
    stops
      .decisions()
      .map(({ decision, reason, count }) => `${decision} ${reason} ${count}`)
      .toSorted(),
    ['evicted', 'killed', 'refused', 'would_kill']
      .flatMap((decision) => REASONS.map((reason) => `${decision} ${reason} 0`))
      .toSorted(),
  );
  t.deepEqual(stops.totals(), []);
  see(stops, 0);
  t.deepEqual(stops.totals(), [], 'stops have no counters before the first one');
});

test('rare outcomes of a container that goes on stay, however long ago they were', (t) => {
  const stops = createStopCounts();
  see(stops, 0);
  stops.add([record('kill', 'none-left')]);
  for (let second = 1; second <= 900; second += 60) see(stops, second);
  t.deepEqual(counted(stops), ['GPU-1 kill bypass none_left 1']);
  see(stops, 1000, []);
  t.deepEqual(counted(stops), ['GPU-1 kill bypass none_left 1'], 'gone since the last sample');
  see(stops, 1400, []);
  t.deepEqual(counted(stops), []);
});

test('a new agent starts at zero; a stuck stop has its reason from the audit log', (t) => {
  const recent = [record('kill', 'sent'), record('kill', 'sent', 'far-over-limit', 2)];
  const next = createStopCounts(recent);
  see(next, 3600);
  t.deepEqual([counted(next), decided(next)], [[], []]);
  next.add([
    recordOf({ grant, action: 'stuck', verdict: { severity: 'within' }, atMs: START + 3_601_000, result: 'stuck' }),
  ]);
  t.deepEqual(counted(next), ['GPU-1 kill far-over-limit stuck 1']);
});

test('each stop is counted under its action, reason and outcome', (t) => {
  const cases: [records: ActionRecord[], totals: string[], decisions: string[]][] = [
    [[record('kill', 'sent')], ['GPU-1 kill bypass released 1'], ['killed bypass 1']],
    [[record('kill', 'none-left')], ['GPU-1 kill bypass none_left 1'], ['killed bypass 1']],
    [[record('kill', 'interrupted')], ['GPU-1 kill bypass interrupted 1'], ['killed bypass 1']],
    [[record('kill', 'refused')], ['GPU-1 kill bypass refused 1'], ['killed bypass 1']],
    [[record('terminate', 'sent', 'over-limit')], ['GPU-1 terminate over-limit released 1'], []],
    [[record('would-stop', 'done')], [], ['would_kill bypass 1']],
    [[record('evict', 'sent')], [], ['evicted bypass 1']],
    [[refused('evict', 'eviction')], [], ['refused bypass 1']],
    [[record('evict', 'asked')], [], []],
    [[refused('refuse', 'stale')], [], ['refused bypass 1']],
    [
      [record('warn', 'done'), record('close-gate', 'done'), record('open-gate', 'done'), record('released', 'done')],
      [],
      [],
    ],
    [
      [record('kill', 'sent'), record('kill', 'sent', 'bypass', 2), record('kill', 'sent', 'far-over-limit', 3)],
      ['GPU-1 kill bypass released 2', 'GPU-1 kill far-over-limit released 1'],
      ['killed bypass 2', 'killed far-over-limit 1'],
    ],
  ];
  for (const [records, totals, decisions] of cases) {
    const stops = createStopCounts();
    see(stops, 0);
    stops.add(records);
    t.deepEqual(counted(stops), totals);
    t.deepEqual(decided(stops), decisions);
  }
});

test('a refusal is counted by its reason code, whatever its sentence says', (t) => {
  const stops = createStopCounts();
  const refusals = () => stops.refusals().map(({ reason, count }) => `${reason} ${count}`);
  t.deepEqual(refusals(), ['stale 0', 'inconsistent 0', 'rate-limited 0', 'eviction 0']);
  const { act, audit } = setUp(t, { policy: { mostStopsPerMinute: 0 } });
  const rogue = [{ id: 'one', mib: 2000 }];
  act(0, rogue);
  act(1, rogue, 0, 1000);
  act(20, rogue, 60_000);
  act(40, rogue);
  const own = audit.recent().filter(({ action }) => action === 'refuse');
  t.deepEqual(
    own.map(({ refusal }) => refusal),
    ['inconsistent', 'stale', 'rate-limited'],
  );
  stops.add(own.map((one) => ({ ...one, message: 'the data is old', detail: 'the data is old' })));
  stops.add([refused('evict', 'eviction'), record('evict', 'asked'), record('evict', 'sent')]);
  t.deepEqual(refusals(), ['stale 1', 'inconsistent 1', 'rate-limited 1', 'eviction 1']);
  t.deepEqual(decided(stops), ['evicted bypass 1', 'refused bypass 4']);
});

test('a line that is no record is not read', (t) => {
  t.is(readRecord({ ...record('kill', 'done'), result: 'none left' }), undefined);
  t.is(readRecord({ atMs: 'x', grantId: 'one' }), undefined);
});

test('a stop that released nothing counts as stuck under its own reason', (t) => {
  const stops = createStopCounts();
  see(stops, 0);
  stops.add([record('kill', 'sent', 'bypass')]);
  stops.add([
    recordOf({ grant, action: 'stuck', verdict: { severity: 'within' }, atMs: START + 16_000, result: 'stuck' }),
  ]);
  t.true(counted(stops).includes('GPU-1 kill bypass stuck 1'), counted(stops).join());
});

test('the time of the last stop is that of a stop, not of an attempt', (t) => {
  const stops = createStopCounts();
  see(stops, 0);
  stops.add([record('kill', 'sent', 'bypass', 5)]);
  stops.add([record('kill', 'refused', 'bypass', 9), refused('refuse', 'stale', 10)]);
  const times = stops
    .totals()
    .filter(({ count }) => count > 0)
    .map(({ result, lastMs }) => [result, lastMs]);
  t.deepEqual(times, [
    ['released', START + 5000],
    ['refused', 0],
  ]);
});

test('counters outlive their grant by five minutes; decisions stay', (t) => {
  const stops = createStopCounts();
  see(stops, 0);
  stops.add([record('kill', 'sent')]);
  see(stops, 300, []);
  t.deepEqual(counted(stops), ['GPU-1 kill bypass released 1']);
  see(stops, 302, ['two']);
  t.deepEqual(counted(stops), []);
  t.deepEqual(stops.totals(), []);
  t.deepEqual(decided(stops), ['killed bypass 1']);
});

test('a time of day that is set makes no counter older or younger', (t) => {
  for (const setSeconds of [-1e6, 1e6]) {
    const stops = createStopCounts();
    see(stops, 0);
    stops.add([record('kill', 'sent')]);
    see(stops, 1, [], setSeconds);
    see(stops, 299, [], setSeconds);
    t.deepEqual(counted(stops), ['GPU-1 kill bypass released 1']);
    see(stops, 320, [], setSeconds);
    t.deepEqual(counted(stops), []);
  }
});

test('unchanged containers are not counted again; five minutes begin at their end', (t) => {
  const stops = createStopCounts();
  const state = compared(sampleOf([gpu(0), gpu(1)], [], START), [reading(grant)], {});
  const at = (second: number): typeof state => ({
    ...state,
    sample: { ...state.sample, bootNs: state.sample.bootNs + second * 1e9 },
  });
  stops.update(at(0));
  stops.add([record('kill', 'sent')]);
  for (let second = 1; second <= 400; second += 1) stops.update(at(second));
  t.is(stops.totals().length, 1);
  const gone = (second: number) => stops.update({ ...at(second), containers: [] });
  gone(401);
  gone(699);
  t.is(stops.totals().length, 1);
  gone(720);
  t.is(stops.totals().length, 0);
});
