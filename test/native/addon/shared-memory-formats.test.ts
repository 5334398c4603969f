// Limits pages and ledgers of another build: reserved fields of a newer build are ignored, a new version is refused by
// a build that does not know it, and builds that know both versions work on one ledger.
import { spawnSync } from 'node:child_process';
import { closeSync, openSync, readFileSync, symlinkSync, writeSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { engineName, enginesIn } from '../../../src/agent/grants/engine-files.ts';
import { BUILD_FOLDER, loadNative, type Native, PAGE_SIZE_MISMATCH } from '../../../src/agent/os/addon.ts';
import { OUT_OF_MEMORY, readyClient } from '../../support/native/client.ts';
import { mappedEngines, NEXT, OTHER_ENGINES, readLedger, writeHeader } from '../../support/native/engines.ts';
import { BUILD, environment, type SimulatedNode, startNode, temporaryFolder } from '../../support/native/node.ts';
import { type GrantFiles, MIB, makeGrant } from '../../support/product/grant.ts';

const SLOTS = 64;
const today = loadNative();
// Never a build with sanitizers, like the addon itself: this process does not have their runtime.
const next = createRequire(import.meta.url)(join(BUILD_FOLDER, 'tests/engines/cotenant-next.node')) as Native;
const OWN = enginesIn(BUILD).at(-1) ?? Number.NaN;

/** Fills bytes of a file with data that no current build knows. */
function fill(grant: GrantFiles, name: 'limits' | 'ledger', places: readonly (readonly [at: number, bytes: number])[]) {
  const fd = openSync(join(grant.folder, name), 'r+');
  for (const [at, bytes] of places) writeSync(fd, Buffer.alloc(bytes, 0x5a), 0, bytes, at);
  closeSync(fd);
}

/** cot_check of native/shared-memory/limits_page.h, written behind the fields of an entry. */
function seal(grant: GrantFiles, at: number, words: number): void {
  const path = join(grant.folder, 'limits');
  const text = readFileSync(path);
  let mix = 0x9e3779b97f4a7c15n;
  for (let word = 0; word < words; word++) {
    mix = BigInt.asUintN(64, (mix ^ text.readBigUInt64LE(at + word * 8)) * 0xff51afd7ed558ccdn);
    mix ^= mix >> 32n;
  }
  const check = Buffer.alloc(8);
  check.writeBigUInt64LE(mix | 1n);
  const fd = openSync(path, 'r+');
  writeSync(fd, check, 0, 8, at + words * 8);
  closeSync(fd);
}

const offerNext = (grant: GrantFiles) =>
  symlinkSync(join(OTHER_ENGINES, engineName(NEXT)), join(grant.folder, engineName(NEXT)));

function startOnce(node: SimulatedNode, grant: GrantFiles): { readonly init: number; readonly said: string } {
  const { stdout, stderr } = spawnSync(join(BUILD, 'tests/client'), ['libcuda.so.1', 'init'], {
    env: environment({ LD_LIBRARY_PATH: node.lib }, grant.cuda),
    encoding: 'utf8',
    input: '',
  });
  return { init: Number(stdout.split(/\s/)[0]), said: stderr };
}

async function holdsToGrant(t: ExecutionContext, node: SimulatedNode, grant: GrantFiles, context: number) {
  const client = await readyClient(t, node, { preload: grant.cuda });
  await client.must(`alloc ${100 * MIB}`);
  t.is((await client.ask(`alloc ${101 * MIB}`))[0], OUT_OF_MEMORY);
  for (const build of [today, next]) {
    const fd = openSync(join(grant.folder, 'ledger'), 'r');
    const reading = build.readLedger(fd, SLOTS, 1);
    closeSync(fd);
    const slot = reading.slots.find(({ pid }) => pid === client.pid);
    t.like(slot?.gpus[0], { heldBytes: context + 100 * MIB, pendingBytes: 0 });
    t.true(reading.whole);
    t.deepEqual(reading.denied, [1]);
  }
}

test('reserved fields written by a newer build change nothing for older ones', async (t) => {
  const node = await startNode(t, '--gpu', 'l4');
  const context = node.usage().gpus[0]?.contextBytes ?? 0;
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: context + 200 * MIB }], SLOTS);
  fill(grant, 'limits', [[64 + 48, 72]]);
  seal(grant, 64, 15);
  for (let slot = 0; slot < SLOTS; slot++) fill(grant, 'limits', [[64 + 16 * 128 + slot * 64 + 48, 16]]);
  fill(grant, 'ledger', [
    [32, 32],
    [72, 56],
  ]);
  for (let slot = 0; slot < SLOTS; slot++) fill(grant, 'ledger', [[128 + slot * 128 + 56, 8]]);
  await holdsToGrant(t, node, grant, context);
});

test("an engine that knows newer formats works on today's files beside an older one", async (t) => {
  const node = await startNode(t, '--gpu', 'l4');
  const context = node.usage().gpus[0]?.contextBytes ?? 0;
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 2 * context + 200 * MIB }], SLOTS);
  offerNext(grant);
  const old = await readyClient(t, node, { preload: grant.cuda });
  await old.must(`alloc ${90 * MIB}`);
  writeHeader(grant, { engine: NEXT });
  const fresh = await readyClient(t, node, { preload: grant.cuda });
  const address = await fresh.must(`alloc ${100 * MIB}`);
  t.is((await fresh.ask(`alloc ${12 * MIB}`))[0], OUT_OF_MEMORY, 'it counts what the other one holds');
  t.deepEqual([mappedEngines(old.pid), mappedEngines(fresh.pid)], [[OWN], [NEXT]]);
  t.deepEqual(
    readLedger(grant).slots.map(({ engine }) => engine),
    [OWN, NEXT],
  );
  await fresh.must(`free ${address}`);
  await old.must(`alloc ${110 * MIB}`);
  t.is((await old.ask(`alloc ${4 * MIB}`))[0], OUT_OF_MEMORY);
});

for (const [what, words, why] of [
  ['page', { version: 2 }, /not a limits page of a known version: /],
  ['ledger', { ledgerVersion: 2 }, /the ledger has an unknown version, according to /],
] as const) {
  test(`a ${what} of the next version needs an engine that knows it; others close the GPU`, async (t) => {
    const node = await startNode(t, '--gpu', 'l4');
    const context = node.usage().gpus[0]?.contextBytes ?? 0;
    const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: context + 200 * MIB }], SLOTS);
    writeHeader(grant, words);
    const closed = startOnce(node, grant);
    t.is(closed.init, 800);
    t.regex(closed.said, why);
    t.is(closed.said.trim().split('\n').length, 1);
    offerNext(grant);
    writeHeader(grant, { engine: NEXT });
    await holdsToGrant(t, node, grant, context);
  });
}

test('an agent keeps a known version of a page and never rewrites an unknown one', (t) => {
  const path = join(temporaryFolder(t), 'limits');
  const gpu = { uuid: `GPU-${'1'.repeat(8)}-${'1'.repeat(4)}-${'1'.repeat(4)}-${'1'.repeat(4)}-${'1'.repeat(12)}` };
  const amounts = { contextBytes: 0, granuleBytes: 0, coresPercent: 0, releasesLate: false };
  const page = (memoryBytes: number, engine = 0) => ({
    slots: SLOTS,
    isolateMemory: true,
    engine,
    gpus: [{ ...gpu, ...amounts, memoryBytes }],
  });
  const fd = openSync(path, 'wx+');
  t.teardown(() => closeSync(fd));
  const words = () => {
    const text = readFileSync(path);
    return [8, 48, 52, 64 + 16].map((at) => text.readUInt32LE(at));
  };
  today.writePage(fd, page(MIB));
  t.deepEqual(words(), [1, 0, 1, MIB]);
  next.writePage(fd, page(2 * MIB, 7));
  t.deepEqual(words(), [1, 7, 1, 2 * MIB], 'processes of today have it mapped');
  t.throws(() => today.writePage(fd, { ...page(MIB), slots: SLOTS + 1 }), { code: PAGE_SIZE_MISMATCH });
  const empty = openSync(`${path}3`, 'wx');
  const unwritable = openSync(`${path}3`, 'r');
  t.teardown(() => [empty, unwritable].forEach(closeSync));
  const error = t.throws(() => today.writePage(unwritable, page(MIB))) as { code?: string } | undefined;
  t.is(error?.code, undefined, 'an empty file that cannot get its size is not a page of another size');
  const later = openSync(`${path}2`, 'wx+');
  t.teardown(() => closeSync(later));
  next.writePage(later, page(MIB));
  const text = readFileSync(`${path}2`);
  t.deepEqual([text.readUInt32LE(8), text.readUInt32LE(52)], [2, 2]);
  t.throws(() => today.writePage(later, page(2 * MIB)), {
    message:
      'limits page: another agent wrote it, of version 2 with a ledger of version 2; this one knows pages up to 1 and ledgers up to 1',
  });
  t.deepEqual(readFileSync(`${path}2`), text);
});
