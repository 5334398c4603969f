import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, ftruncateSync, openSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { type LedgerReading, loadNative } from '../../../../src/agent/os/addon.ts';
import { runLedger } from '../../../support/native/ledger.ts';
import { BUILD, temporaryFolder } from '../../../support/native/node.ts';

test('concurrent requests of several processes never pass the grant and leave nothing', (t) => {
  for (const [processes, threads] of [
    [1, 16],
    [4, 4],
    [16, 1],
  ] as const) {
    const result = runLedger(t, BUILD, { processes, threads, rounds: 10_000 });
    t.true(result.granted > 10_000 && result.refused > 1000 && result.failed > 1000, `${processes} x ${threads}`);
  }
});

/** Without when it was said. */
const saidBy = ({ readNs: _, locksNs: __, ...said }: LedgerReading) => said;

test('a ledger is read again only where its content or a lock has changed', async (t) => {
  const native = loadNative();
  const path = join(temporaryFolder(t), 'ledger');
  const fd = openSync(path, 'w+');
  t.teardown(() => closeSync(fd));
  native.initLedger(fd, 8, 1);
  const put = (at: number, value: bigint, bytes: 4 | 8 = 8) => {
    const word = Buffer.alloc(8);
    word.writeBigUInt64LE(value);
    writeSync(fd, word, 0, bytes, at);
  };
  const SLOTS_USED = 20;
  const slot = (index: number) => 128 + index * 128; // native/shared-memory/ledger.h, for one GPU
  put(SLOTS_USED, 2n, 4);
  put(slot(0), 5n);
  put(slot(0) + 64, 4096n);
  let last = native.readLedger(fd, 8, 1);
  t.true(last.whole);
  t.deepEqual(
    last.slots.map(({ index, gpus }) => [index, gpus[0]?.heldBytes]),
    [[0, 4096]],
  );
  const again = native.readLedger(fd, 8, 1, last);
  t.is(again.slots, last.slots);
  t.is(again.denied, last.denied);
  t.true(again.readNs >= last.readNs);
  const changes: Readonly<Record<string, () => unknown>> = {
    'what a process holds': () => put(slot(0) + 64, 8192n),
    'a slot that is taken': () => put(slot(1), 7n),
    'a slot that was never in use before': () => {
      put(slot(2), 9n);
      put(SLOTS_USED, 3n, 4);
    },
    'a refusal': () => put(64, 1n),
    'an entry point': () => put(24, 1n),
    'a lock': async () => {
      const holder = spawn(join(BUILD, 'tests/hold_locks'), [path, '1:1'], { stdio: ['ignore', 'pipe', 'inherit'] });
      t.teardown(() => holder.kill('SIGKILL'));
      await once(holder.stdout, 'data');
    },
    'a file that is cut short behind the slots in use': () => ftruncateSync(fd, 128 + 7 * 128),
    'a header that was overwritten': () => put(0, 0n),
  };
  for (const [what, change] of Object.entries(changes)) {
    await change();
    const reading = native.readLedger(fd, 8, 1, last);
    t.not(reading.slots, last.slots, what);
    const said = saidBy(reading);
    const anew = saidBy(native.readLedger(fd, 8, 1));
    t.deepEqual(said, anew, what);
    last = reading;
  }
  t.false(last.whole);
});

test('slots beyond slots_used are not read; slots_used is bounded by the slot count', (t) => {
  const native = loadNative();
  const fd = openSync(join(temporaryFolder(t), 'ledger'), 'w+');
  t.teardown(() => closeSync(fd));
  native.initLedger(fd, 8, 1);
  for (let index = 0; index < 8; index++) writeSync(fd, Buffer.from([1]), 0, 1, 128 + index * 128);
  for (const [said, read] of [
    [0, 0],
    [3, 3],
    [8, 8],
    [0xffffffff, 8],
  ] as const) {
    const word = Buffer.alloc(4);
    word.writeUInt32LE(said);
    writeSync(fd, word, 0, 4, 20);
    const reading = native.readLedger(fd, 8, 1);
    t.true(reading.whole);
    t.is(reading.slots.length, read, `${said} said`);
  }
});
