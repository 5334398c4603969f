// Which slots of a ledger are reported as locked, and how long that may take, whatever locks a container holds on the
// file.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, openSync, readFileSync, renameSync, rmSync, symlinkSync, writeFileSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { type LedgerReading, loadNative } from '../../../../src/agent/os/addon.ts';
import { BUILD, temporaryFolder } from '../../../support/native/node.ts';

const native = loadNative();
const SLOTS = 1024;
const HEADER = 128;
const SLOT = 128;

/** A ledger for one GPU in which these slots are in use. */
function ledger(t: ExecutionContext, used: readonly number[]) {
  const path = join(temporaryFolder(t), 'ledger');
  const fd = openSync(path, 'w+');
  t.teardown(() => closeSync(fd));
  native.initLedger(fd, SLOTS, 1);
  const ever = Buffer.alloc(4);
  ever.writeUInt32LE(SLOTS);
  writeSync(fd, ever, 0, 4, 20); // slots_used of native/shared-memory/ledger.h
  for (const slot of used) writeSync(fd, Buffer.from([1]), 0, 1, HEADER + slot * SLOT);
  return { path, fd, read: () => native.readLedger(fd, SLOTS, 1) };
}
const all = Array.from({ length: SLOTS }, (_, slot) => slot);

/** A process that holds locks: FROM:LENGTH[:STEP:COUNT], in bytes of the file. */
async function hold(t: ExecutionContext, path: string, ...ranges: readonly string[]) {
  const child = spawn(join(BUILD, 'tests/hold_locks'), [path, ...ranges], { stdio: ['ignore', 'pipe', 'inherit'] });
  t.teardown(() => child.kill('SIGKILL'));
  const failed = once(child, 'exit').then(([code]) => Promise.reject(new Error(`locks ended with ${code}`)));
  failed.catch(() => {});
  await Promise.race([once(child.stdout, 'data'), failed]);
  return child;
}

test('exactly the used slots whose bytes are locked are reported as locked', async (t) => {
  const used = all.filter((slot) => slot % 3 !== 1);
  const { path, read } = ledger(t, used);
  const locked = () =>
    read()
      .slots.filter((slot) => slot.locked)
      .map(({ index }) => index);
  t.deepEqual(locked(), []);
  await hold(t, path, '7:1', '0:1', '100:5', '1020:1');
  await hold(t, path, '300:2:4:20', '8:1');
  const held = (slot: number) =>
    [0, 7, 8, 1020].includes(slot) ||
    (slot >= 100 && slot < 105) ||
    (slot >= 300 && slot < 380 && (slot - 300) % 4 < 2);
  t.deepEqual(locked(), used.filter(held));
  t.true(read().whole);
  await hold(t, path, '1021:0'); // to the end, whatever that will be
  t.deepEqual(
    locked(),
    used.filter((slot) => held(slot) || slot >= 1021),
  );
});

test('locks of an earlier reading are reused only in a quiet, fully locked ledger', async (t) => {
  const { path, fd } = ledger(t, [0, 1]);
  const holder = await hold(t, path, '0:2');
  const locked = ({ slots }: LedgerReading) => slots.flatMap(({ index, locked: is }) => (is ? [index] : []));
  const all = native.readLedger(fd, SLOTS, 1);
  t.deepEqual(locked(all), [0, 1]);
  const ended = once(holder, 'exit');
  holder.kill('SIGKILL');
  await ended;
  const believed = native.readLedger(fd, SLOTS, 1, all, path, 60_000);
  t.is(believed.slots, all.slots, 'as they were');
  t.is(believed.locksNs, all.locksNs);
  t.true(believed.readNs > all.readNs);
  t.deepEqual(locked(native.readLedger(fd, SLOTS, 1, all, path)), [], 'they are asked for where nothing is said');
  t.deepEqual(locked(native.readLedger(fd, SLOTS, 1, all, path, 0)), []);
  const old = { ...all, locksNs: (all.locksNs ?? 0) - 61e9 };
  t.deepEqual(locked(native.readLedger(fd, SLOTS, 1, old, path, 60_000)), [], 'a minute has passed');
  const { seen: _, ...unseen } = all;
  t.deepEqual(locked(native.readLedger(fd, SLOTS, 1, unseen, path, 60_000)), [], 'what was there is unknown');

  // A slot without a lock is read each time, as a process that takes it locks it first.
  const free = native.readLedger(fd, SLOTS, 1);
  await hold(t, path, '1:1');
  t.deepEqual(locked(native.readLedger(fd, SLOTS, 1, free, path, 60_000)), [1]);
  // So it is where a byte of the ledger has changed.
  const other = await hold(t, path, '0:1');
  const both = native.readLedger(fd, SLOTS, 1);
  t.deepEqual(locked(both), [0, 1]);
  const gone = once(other, 'exit');
  other.kill('SIGKILL');
  await gone;
  writeSync(fd, Buffer.from([7]), 0, 1, HEADER + 64);
  t.deepEqual(locked(native.readLedger(fd, SLOTS, 1, both, path, 60_000)), [1]);
});

test('a ledger whose path leads to another file, or none, is reported', (t) => {
  const { path, fd } = ledger(t, [0]);
  const first = native.readLedger(fd, SLOTS, 1, undefined, path);
  t.true(first.untouched);
  renameSync(path, `${path}.away`);
  const without = native.readLedger(fd, SLOTS, 1, first, path, 60_000);
  t.false(without.untouched);
  symlinkSync(`${path}.away`, path);
  t.false(native.readLedger(fd, SLOTS, 1, without, path, 60_000).untouched, 'a link to it is not it');
  rmSync(path);
  renameSync(`${path}.away`, path);
  t.true(native.readLedger(fd, SLOTS, 1, without, path, 60_000).untouched);
  writeFileSync(`${path}.other`, readFileSync(path));
  renameSync(`${path}.other`, path);
  t.false(native.readLedger(fd, SLOTS, 1, first, path, 60_000).untouched, 'the same bytes in another file');
});

const fastest = (read: () => unknown): number =>
  Math.min(
    ...Array.from({ length: 20 }, () => {
      const start = performance.now();
      read();
      return performance.now() - start;
    }),
  );

test('thousands of locks of a container do not make its ledger slow to read', async (t) => {
  t.timeout(180_000);
  const honest = ledger(t, all);
  await hold(t, honest.path, `0:${SLOTS}`);
  const usual = fastest(honest.read);
  const above = ledger(t, all);
  const within = ledger(t, all);
  await hold(t, above.path, '2000:1:2:12000');
  await hold(t, within.path, '2000:1:2:12000', '0:1:2:512');
  const ms = { usual, above: fastest(above.read), within: fastest(within.read) };
  t.log(ms);
  t.true(ms.above < 4 * usual && ms.within < 4 * usual + 10, JSON.stringify(ms));

  const free = above.read();
  t.true(free.whole && free.slots.every((slot) => !slot.locked), 'locks outside of the slots are no processes');
  const { slots, whole } = within.read();
  t.false(whole, 'an incomplete reading is reported as such');
  t.is(slots.length, SLOTS);
  t.true(
    slots.every(({ index, locked }) => locked || index % 2 === 1),
    'no running process is reported as ended',
  );
});
