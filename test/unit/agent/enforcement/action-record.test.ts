// How an action is recorded, what its message says, and how a later agent reads the file.
import { appendFileSync, existsSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import {
  type ActionName,
  type ActionRecord,
  describe,
  recordOf,
} from '../../../../src/agent/enforcement/action-record.ts';
import { openAudit } from '../../../../src/agent/enforcement/audit-log.ts';
import { MIB } from '../../../../src/common/quantity.ts';
import type { MemoryReason, Verdict } from '../../../../src/policy/memory-verdict.ts';
import { loggerTo } from '../../../support/product/logger.ts';
import { grantOf } from '../node.ts';

const grant = grantOf('abc123', 1024, [0], { pod: 'rogue' });
const verdict = (reason: MemoryReason, bypassMib = 0): Verdict => ({
  severity: 'hard',
  reason,
  worst: { gpuUuid: 'GPU-0', limitBytes: 1024 * MIB, usedBytes: 3000 * MIB - 1, bypassBytes: bypassMib * MIB },
  overBytes: 1976 * MIB,
});
const overShare = (severity: 'soft' | 'hard'): Verdict => ({
  severity,
  reason: 'over-share',
  worst: { gpuUuid: 'GPU-0', limitRatio: 0.25, usedRatio: 0.979, chargedRatio: 0, seconds: 60.4 },
});

function folder(t: ExecutionContext): string {
  const path = mkdtempSync(join(tmpdir(), 'cotenant-audit-'));
  t.teardown(() => rmSync(path, { recursive: true, force: true }));
  return path;
}

test('the message names container, reason, use, limit, GPU and consequence', (t) => {
  const cases: [ActionName, Verdict, string][] = [
    [
      'kill',
      verdict('bypass', 2900),
      'local/rogue/main exceeds its GPU memory grant: 3000 MiB of 1024 MiB on GPU-0, 2900 MiB of it past the interposer; the agent stops it',
    ],
    [
      'warn',
      verdict('over-limit'),
      'local/rogue/main exceeds its GPU memory grant: 3000 MiB of 1024 MiB on GPU-0; the agent stops it if this lasts',
    ],
    [
      'would-stop',
      verdict('far-over-limit'),
      'local/rogue/main far exceeds its GPU memory grant: 3000 MiB of 1024 MiB on GPU-0; in enforce mode the agent would stop it',
    ],
    [
      'close-gate',
      overShare('soft'),
      'local/rogue/main exceeds its GPU compute share: 98 % of 25 % on GPU-0 over 60 s; the agent holds back its kernels',
    ],
    [
      'kill',
      overShare('hard'),
      'local/rogue/main exceeds its GPU compute share: 98 % of 25 % on GPU-0 over 60 s, and launches kernels past its closed gate; the agent stops it',
    ],
    ['released', { severity: 'within' }, 'local/rogue/main: its GPU memory is free again'],
    ['open-gate', { severity: 'within' }, 'local/rogue/main: its kernels may run again'],
  ];
  for (const [action, given, expected] of cases) t.is(describe(grant, action, given), expected);
});

test('a record is about compute, also when the excess has ended', (t) => {
  t.like(recordOf({ grant, action: 'kill', verdict: overShare('hard'), atMs: 1, result: 'sent' }), {
    reason: 'over-share',
    resource: 'compute',
    gpuUuid: 'GPU-0',
    usedRatio: 0.979,
    limitRatio: 0.25,
    usedBytes: 0,
  });
  const within: Verdict = { severity: 'within' };
  t.like(recordOf({ grant, action: 'open-gate', verdict: within, atMs: 1, result: 'done', after: 'over-share' }), {
    reason: 'none',
    resource: 'compute',
  });
  t.like(recordOf({ grant, action: 'open-gate', verdict: within, atMs: 1, result: 'done', after: 'over-limit' }), {
    reason: 'none',
    resource: 'memory',
  });
});

test('a record holds the figures of the worst GPU and each process that was signaled', (t) => {
  const hit = { pid: 7, startTicks: 70, command: 'client', cgroup: '0::/x', result: 'sent' };
  t.deepEqual(
    recordOf({ grant, action: 'kill', verdict: verdict('bypass', 2900), atMs: 1234, result: 'sent', processes: [hit] }),
    {
      atMs: 1234,
      action: 'kill',
      grantId: 'abc123',
      namespace: 'local',
      pod: 'rogue',
      podUid: '',
      container: 'main',
      gpuUuid: 'GPU-0',
      reason: 'bypass',
      usedBytes: 3000 * MIB - 1,
      limitBytes: 1024 * MIB,
      bypassBytes: 2900 * MIB,
      usedRatio: 0,
      limitRatio: 0,
      resource: 'memory',
      message: describe(grant, 'kill', verdict('bypass', 2900)),
      result: 'sent',
      processes: [{ pid: 7, startTicks: 70, command: 'client', result: 'sent' }],
    },
  );
  t.like(recordOf({ grant, action: 'released', verdict: { severity: 'within' }, atMs: 1, result: 'done' }), {
    gpuUuid: 'GPU-0',
    reason: 'none',
    usedBytes: 0,
  });
});

const record = (atMs: number): ActionRecord =>
  recordOf({ grant, action: 'kill', verdict: verdict('bypass'), atMs, result: 'sent' });
const quiet = (t: ExecutionContext) => loggerTo({ push: (text) => t.fail(text) });

test('records from before a restart are read back in order, and the file only grows', (t) => {
  const state = folder(t);
  const audit = openAudit(state, quiet(t));
  t.deepEqual(audit.recent(), []);
  for (let at = 1; at <= 3; at++) audit.add(record(at));
  const later = openAudit(state, quiet(t));
  t.deepEqual(later.recent(), audit.recent());
  later.add(record(4));
  t.deepEqual(
    later.recent().map(({ atMs }) => atMs),
    [1, 2, 3, 4],
  );
  const lines = readFileSync(join(state, 'audit.log'), 'utf8').trimEnd().split('\n');
  t.deepEqual(
    lines.map((line) => (JSON.parse(line) as ActionRecord).atMs),
    [1, 2, 3, 4],
  );
  t.is(statSync(join(state, 'audit.log')).mode & 0o007, 0, 'not for everybody to read');
});

test('only the latest records are kept in memory, also after a restart', (t) => {
  const state = folder(t);
  const audit = openAudit(state, quiet(t));
  for (let at = 1; at <= 450; at++) audit.add(record(at));
  t.is(audit.recent().length, 200);
  t.is(audit.recent()[0]?.atMs, 251);
  t.deepEqual(openAudit(state, quiet(t)).recent(), audit.recent());
});

test('lines that cannot be read are reported and skipped; the others count', (t) => {
  const state = folder(t);
  const path = join(state, 'audit.log');
  const odd = [
    '{"atMs":1,"grantId":"abc',
    'null',
    '[]',
    '7',
    '"text"',
    '{}',
    '{"atMs":"1","grantId":"a"}',
    '\u0000\u0000',
    '{"atMs":5}',
  ];
  writeFileSync(path, [JSON.stringify(record(1)), ...odd, JSON.stringify(record(2)), ''].join('\n'));
  const problems: string[] = [];
  const audit = openAudit(state, loggerTo(problems));
  t.deepEqual(
    audit.recent().map(({ atMs }) => atMs),
    [1, 2],
  );
  t.is(problems.length, odd.length);
  for (const problem of problems) t.regex(problem, /^audit\.log: a line cannot be read: /);
});

test("a record interrupted by an agent's end does not damage the next one", (t) => {
  const state = folder(t);
  const path = join(state, 'audit.log');
  writeFileSync(path, `${JSON.stringify(record(1))}\n${JSON.stringify(record(2)).slice(0, 30)}`);
  const problems: string[] = [];
  openAudit(state, loggerTo(problems)).add(record(3));
  t.is(problems.length, 1);
  const later = openAudit(state, loggerTo([]));
  t.deepEqual(
    later.recent().map(({ atMs }) => atMs),
    [1, 3],
  );
});

test('a full file is renamed and a new one begun', (t) => {
  const state = folder(t);
  const path = join(state, 'audit.log');
  writeFileSync(path, `${JSON.stringify(record(1))}\n${' '.repeat(16 * MIB)}\n`);
  const audit = openAudit(state, loggerTo([]));
  audit.add(record(2));
  t.is(statSync(path, { throwIfNoEntry: false }), undefined);
  t.true(statSync(`${path}.1`).size > 16 * MIB);
  audit.add(record(3));
  t.is(readFileSync(path, 'utf8').trimEnd().split('\n').length, 1);
  t.deepEqual(
    audit.recent().map(({ atMs }) => atMs),
    [1, 2, 3],
  );
});

test('where the file cannot be written, the record is logged and still counts', (t) => {
  const state = folder(t);
  const problems: string[] = [];
  const audit = openAudit(state, loggerTo(problems));
  rmSync(state, { recursive: true });
  audit.add(record(1));
  t.is(audit.recent().length, 1);
  t.regex(problems[0] ?? '', /^audit\.log: ENOENT.*the record: \{"atMs":1/s);
});

/** A disk with so many bytes free for the log: the rest of what is written is refused, as a real one does it. */
function smallDisk(bytes: number) {
  const disk = { bytes };
  const append = (path: string, text: string): void => {
    const size = statSync(path, { throwIfNoEntry: false })?.size ?? 0;
    const part = text.slice(0, Math.max(0, disk.bytes - size));
    if (part !== '') appendFileSync(path, part);
    if (part.length < text.length) throw new Error('ENOSPC: no space left on device, write');
  };
  return { disk, append };
}
const timesIn = (state: string): readonly (number | undefined)[] =>
  readFileSync(join(state, 'audit.log'), 'utf8')
    .trimEnd()
    .split('\n')
    .map((line) => (JSON.parse(line) as Partial<ActionRecord>).atMs);

test('on a full disk no line is lost or cut: lines wait in order until there is space', (t) => {
  const state = folder(t);
  const { disk, append } = smallDisk(1000);
  const problems: string[] = [];
  const audit = openAudit(state, loggerTo(problems), append);
  for (let at = 1; at <= 5; at++) audit.add(record(at));
  const full = timesIn(state);
  t.true(full.length > 0 && full.length < 5, String(full));
  t.is(problems.length, 5 - full.length, 'each is reported with its text');
  audit.retry();
  t.is(problems.length, 5 - full.length, 'once');
  t.deepEqual(timesIn(state), full);
  t.is(audit.recent().length, 5);
  disk.bytes = 1600; // some of it
  audit.retry();
  t.true(timesIn(state).length > full.length && timesIn(state).length < 5);
  disk.bytes = 100_000;
  audit.add(record(6));
  t.deepEqual(timesIn(state), [1, 2, 3, 4, 5, 6]);
  t.deepEqual(openAudit(state, quiet(t)).recent(), audit.recent());
});

test('the next agent finds a stop whose line waits for disk space', (t) => {
  const state = folder(t);
  const { disk, append } = smallDisk(100);
  const audit = openAudit(state, loggerTo([]), append);
  audit.begin(record(7));
  audit.add(record(7));
  t.true(existsSync(join(state, 'stopping.json')));
  t.like(openAudit(state, quiet(t)).interrupted, { atMs: 7, result: 'interrupted' });
  disk.bytes = 100_000;
  audit.retry();
  t.false(existsSync(join(state, 'stopping.json')));
  t.is(openAudit(state, quiet(t)).interrupted, undefined);
});

test('records that wait for disk space have a bound; beyond it only the log has them', (t) => {
  const state = folder(t);
  const { disk, append } = smallDisk(0);
  const problems: string[] = [];
  const audit = openAudit(state, { warn: (text) => void problems.push(text) }, append);
  const big = { ...record(0), message: 'x'.repeat(2 ** 20) };
  for (let at = 1; at <= 6; at++) audit.add({ ...big, atMs: at });
  t.is(problems.filter((text) => text.includes('the oldest one is only in this log')).length, 3);
  t.true([1, 2, 3].every((at) => problems.some((text) => text.includes(`"atMs":${at},`))));
  disk.bytes = 2 ** 30;
  audit.retry();
  t.deepEqual(timesIn(state), [4, 5, 6]);
});
