// Feeds the addon's readers and writers with ledgers that a tenant could have written, and with invalid requests. Runs
// in a process of its own with the sanitizer's runtime: addon-files.ts ADDON FOLDER
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, ftruncateSync, openSync, readFileSync, writeSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import type { LedgerReading, Native } from '../../src/agent/os/addon.ts';

const [addon = '', folder = ''] = process.argv.slice(2);
const native = createRequire(import.meta.url)(addon) as Native;
const SLOTS = 8;
const GPUS = 3;
const LENGTH = 64 + GPUS * 64 + SLOTS * (64 + GPUS * 64);

let state = 1n;
function random(): bigint {
  state ^= (state << 13n) & 0xffffffffffffffffn;
  state ^= state >> 7n;
  state ^= (state << 17n) & 0xffffffffffffffffn;
  return state;
}

const counts = { readings: 0, whole: 0, slots: 0, refused: 0, foundWrong: [] as string[] };

/** Holds for every reading, whatever the file contains. */
function judge(reading: LedgerReading): void {
  counts.readings++;
  counts.whole += reading.whole ? 1 : 0;
  counts.slots += reading.slots.length;
  const numbers = [
    ...reading.denied,
    ...reading.slots.flatMap((slot) => [
      slot.startTicks,
      slot.pidNamespace,
      ...slot.gpus.flatMap((row) => [row.heldBytes, row.pendingBytes, row.freedBytes, row.poolBytes]),
    ]),
  ];
  if (!numbers.every((value) => Number.isInteger(value) && value >= 0 && value <= 2 ** 53)) {
    counts.foundWrong.push(`a number of ${numbers}`);
  }
  if (reading.denied.length !== GPUS || reading.slots.length > SLOTS) counts.foundWrong.push('a shape');
  if (!reading.slots.every((slot) => slot.index < SLOTS && slot.gpus.length === GPUS && slot.stamp !== 0n)) {
    counts.foundWrong.push('a slot');
  }
}

function refused(what: string, request: () => unknown): void {
  try {
    request();
    counts.foundWrong.push(`${what} was not refused`);
  } catch {
    counts.refused++;
  }
}

const fd = openSync(join(folder, 'ledger'), 'w+');
native.initLedger(fd, SLOTS, GPUS);
const fresh = readFileSync(join(folder, 'ledger'));
fresh.writeUInt32LE(SLOTS, 20); // slots_used of native/shared-memory/ledger.h
let last = native.readLedger(fd, SLOTS, GPUS);
judge(last);
for (let round = 0; round < 2000; round++) {
  const bytes = Buffer.from(fresh);
  if (round % 2 === 0) for (let i = 64; i < LENGTH; i += 8) bytes.writeBigUInt64LE(random(), i);
  else for (let k = 0; k < 20; k++) bytes.writeBigUInt64LE(random(), Number(random() % BigInt(LENGTH / 8)) * 8);
  ftruncateSync(fd, 0);
  writeSync(fd, bytes, 0, LENGTH, 0);
  if (round % 3 === 0) ftruncateSync(fd, Number(random() % BigInt(LENGTH + 1)));
  if (round % 50 === 1) ftruncateSync(fd, 2 ** 40); // longer than any memory
  const anew = native.readLedger(fd, SLOTS, GPUS);
  judge(anew);
  // Whatever was there before, and for a reading of the same the parts of the last one.
  const { readNs: _, locksNs: __, ...since } = native.readLedger(fd, SLOTS, GPUS, last);
  const { readNs: ___, locksNs: ____, ...said } = anew;
  if (!isDeepStrictEqual(since, said)) counts.foundWrong.push('another reading after an earlier one');
  last = native.readLedger(fd, SLOTS, GPUS, anew);
  if (last.slots !== anew.slots || last.readNs < anew.readNs) counts.foundWrong.push('slots made anew');
}

// Locks anywhere in the file, and beyond its end.
const used = Buffer.from(fresh);
for (let i = 0; i < SLOTS; i++) used.writeUInt8(1, 64 + GPUS * 64 + i * (64 + GPUS * 64));
writeSync(fd, used, 0, LENGTH, 0);
for (const ranges of [['0:0'], ['7:1', '9:1'], ['3:2', '9223372036854775807:1'], ['1:9223372036854775807'], ['8:0']]) {
  const holder = spawn(join(dirname(addon), 'tests/hold_locks'), [join(folder, 'ledger'), ...ranges], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  await once(holder.stdout, 'data');
  const reading = native.readLedger(fd, SLOTS, GPUS);
  judge(reading);
  const [from = 0, length = 0] = ranges[0]?.split(':').map(Number) ?? [];
  const locked = reading.slots.filter((slot) => slot.locked).map((slot) => slot.index);
  const held = [...fresh.subarray(0, SLOTS).keys()].filter((i) => i >= from && (length === 0 || i < from + length));
  if (String(locked) !== String(held)) counts.foundWrong.push(`slots ${locked} locked by ${ranges}`);
  holder.kill('SIGKILL');
  await once(holder, 'exit');
}

// Whatever a tenant has written, it is a fresh ledger afterwards.
native.clearLedger(fd, SLOTS, GPUS);
const cleared = native.readLedger(fd, SLOTS, GPUS);
if (!cleared.whole || cleared.slots.length > 0 || native.ledgerBytes(SLOTS, GPUS) !== LENGTH)
  throw new Error(`a cleared ledger of ${cleared.slots.length} slots`);
refused('to clear a ledger of 17 GPUs', () => native.clearLedger(fd, SLOTS, 17));

const page = openSync(join(folder, 'limits'), 'w+');
const gpu = {
  uuid: 'GPU-00112233-4455-6677-8899-aabbccddeeff',
  memoryBytes: 1024,
  contextBytes: 0,
  granuleBytes: 4096,
  coresPercent: 50,
  releasesLate: true,
};
native.writePage(page, { slots: SLOTS, isolateMemory: true, gpus: [gpu, gpu, gpu] });
native.touchPage(page, true);
const entries = Array.from({ length: 200 }, () => ({
  slot: Number(random() % 10000n),
  gpu: Number(random() % 8n),
  stamp: random(),
  residualBytes: Number(random()) * (random() % 2n === 0n ? 1 : -1),
  releasedBytes: Number(random() >> 12n),
  signature: random(),
  deadStamp: random(),
}));
native.writeFeedback(page, GPUS, entries);
refused('no GPU', () => native.writePage(page, { slots: SLOTS, isolateMemory: true, gpus: [] }));
refused('17 GPUs', () => native.writePage(page, { slots: 1, isolateMemory: true, gpus: Array(17).fill(gpu) }));
refused('no slot', () => native.writePage(page, { slots: 0, isolateMemory: true, gpus: [gpu] }));
refused('5000 slots', () => native.writePage(page, { slots: 5000, isolateMemory: true, gpus: [gpu] }));
refused('another size', () => native.writePage(page, { slots: SLOTS + 1, isolateMemory: true, gpus: [gpu] }));
for (const uuid of ['', 'GPU-', `GPU-${'0'.repeat(31)}`, `GPU-${'0'.repeat(400)}`, `GPU-${'x'.repeat(32)}`]) {
  refused(`uuid ${uuid}`, () =>
    native.writePage(page, { slots: SLOTS, isolateMemory: true, gpus: [{ ...gpu, uuid }] }),
  );
}
refused('a ledger of 5000 slots', () => native.readLedger(fd, 5000, GPUS));
refused('a ledger of 17 GPUs', () => native.readLedger(fd, SLOTS, 17));
refused('a ledger without GPUs', () => native.initLedger(fd, 5000, 17));
const readOnly = openSync(join(folder, 'limits'), 'r');
refused('a read-only page', () => native.touchPage(readOnly, false));
for (const each of [fd, page, readOnly]) closeSync(each);
refused('a closed page', () => native.touchPage(page, false));

const nowhere = join(folder, 'x'.repeat(5000));
refused('a mount nowhere', () => native.mountTmpfs(nowhere, 'size=4096', false));
refused('a mount on a file', () => native.mountTmpfs(join(folder, 'limits'), 'size=4096', false));
refused('a remount of no mount', () => native.remount(folder, true));
refused('an unmount nowhere', () => native.unmount(nowhere, true));

for (const pid of [0, -1, 1, process.pid, 2 ** 31 - 1]) {
  native.readProcess(pid);
  const answer = native.signalExact(pid, 0, 'x'.repeat(5000), 0);
  if (answer === 'sent') counts.foundWrong.push(`pid ${pid} was signaled`);
}
console.log(JSON.stringify(counts));
