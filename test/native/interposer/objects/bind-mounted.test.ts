// The interposer made for one host: its symbol table, the host libraries that it refuses, and both forms in one
// process.
import { execFileSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import fc from 'fast-check';
import { ElfError, exportsOf, parseElf } from '../../../../src/agent/containers/elf.ts';
import { mountedObject } from '../../../../src/agent/containers/mounted-object.ts';
import { OUT_OF_MEMORY, readyClient } from '../../../support/native/client.ts';
import { BUILD, COMPILER, startNode, temporaryFolder } from '../../../support/native/node.ts';
import { MIB, makeGrant, mountOver } from '../../../support/product/grant.ts';

const object = readFileSync(join(BUILD, 'libcotenant.so'));
const drivers = ['11080/', '12040/', '12080/', '', '14000/'].map((version) =>
  join(BUILD, `simulated/${version}libcuda.so.1`),
);

/** As binutils reads it, by sections, and as the loader does, by the dynamic segment. */
function exportsByBoth(path: string): [string[], string[]] {
  const listed = execFileSync('nm', ['-D', '--defined-only', path], { encoding: 'utf8' })
    .split('\n')
    .flatMap((line) => / [TWVRBDi] (\S+)$/.exec(line)?.[1] ?? []);
  return [
    listed.toSorted(),
    exportsOf(parseElf(readFileSync(path)))
      .map(({ name }) => name)
      .toSorted(),
  ];
}

test("the mounted form exports what the host's library does, and its marker only", (t) => {
  const folder = temporaryFolder(t);
  for (const driver of drivers) {
    const made = mountedObject(object, readFileSync(driver), '/real/libcuda.so.1', '/grant');
    writeFileSync(join(folder, 'made.so'), made.bytes);
    const [host] = exportsByBoth(driver);
    const right = [...host, 'cotenant_interposer'].toSorted();
    const [listed, loaded] = exportsByBoth(join(folder, 'made.so'));
    t.deepEqual(listed, right, driver);
    t.deepEqual(loaded, right, driver);
    const ours = new Set(exportsOf(parseElf(object)).map(({ name }) => name));
    t.deepEqual(
      made.passed,
      host.filter((name) => !ours.has(name)),
    );
    t.deepEqual(made.hidden.toSorted(), [...ours].filter((name) => !right.includes(name)).toSorted());
  }
});

test('a host library that the mounted form cannot be made for is refused with a reason', (t) => {
  const host = readFileSync(join(BUILD, 'simulated/libcuda.so.1'));
  const make =
    (from: Buffer, over: Buffer, library = '/real', files = '/grant') =>
    () =>
      mountedObject(from, over, library, files);
  t.throws(make(object, Buffer.from('#!/bin/sh\n'.repeat(20))), { message: /not an ELF file/ });
  t.throws(make(object, host.subarray(0, 5000)), { message: /outside of the file/ });
  t.throws(make(host, host), { message: /not an object of this build/ });
  t.throws(make(object, object), { message: /a copy of this object/ });
  t.throws(make(object, host, 'libcuda.so.1'), { message: /the real library: want an absolute path/ });
  t.throws(make(object, host, '/real', `/${'a'.repeat(2000)}`), { message: /the folder of limits.*longer than 1023/ });
  const strange = Buffer.from(host);
  strange.writeUInt16LE(40, 18);
  t.throws(make(object, strange), { message: /for machine 40/ });
  const many = readFileSync(join(BUILD, 'libcotenant-nvml.so'));
  t.throws(make(many, host), { message: /\d+ entry points are unknown to this build, which can pass 256/ });
});

test("a host's library with changed bytes is refused with a reason, or accepted", (t) => {
  const host = readFileSync(join(BUILD, 'simulated/libcuda.so.1'));
  // Headers and tables lie at the beginning; sizes, offsets and counts are what leads astray.
  const change = fc.record({
    at: fc.oneof(fc.nat(1023), fc.nat(host.length - 8)),
    value: fc.oneof(
      fc.bigInt(0n, 2n ** 64n - 1n),
      fc.constantFrom(0n, 1n, 0xffffffffn, BigInt(host.length - 4), 2n ** 31n, 2n ** 53n),
    ),
    bytes: fc.constantFrom(1, 2, 4, 8),
  });
  const changes = fc.array(change, { minLength: 1, maxLength: 4 });
  const counts = { taken: 0, refused: 0 };
  const property = fc.property(changes, fc.option(fc.nat(host.length)), (list, cut) => {
    const strange = Buffer.from(host.subarray(0, cut ?? host.length));
    for (const { at, value, bytes } of list) {
      if (at + bytes > strange.length) continue;
      for (let i = 0; i < bytes; i++) strange[at + i] = Number((value >> BigInt(8 * i)) & 0xffn);
    }
    try {
      mountedObject(object, strange, '/real', '/grant');
      counts.taken++;
    } catch (error) {
      if (!(error instanceof ElfError)) throw error;
      counts.refused++;
    }
  });
  fc.assert(property, { numRuns: 200 });
  t.true(counts.taken > 0 && counts.refused > 0, JSON.stringify(counts));
});

test("data that a host's library exports stays in that library, and is reported", (t) => {
  const folder = temporaryFolder(t);
  const source = join(folder, 'driver.c');
  writeFileSync(source, 'int cuInit(unsigned flags) { return flags != 0; }\nint cudbgEnabled = 1;\n');
  for (const style of ['gnu', 'sysv', 'both']) {
    const library = join(folder, `${style}.so`);
    execFileSync(COMPILER, ['-shared', '-fPIC', `-Wl,--hash-style=${style}`, source, '-o', library]);
    const made = mountedObject(object, readFileSync(library), '/real/libcuda.so.1', '/grant');
    t.deepEqual(made.left, ['cudbgEnabled'], style);
    t.deepEqual(made.passed, [], style);
  }
});

test('mounted, a program is held to its grant by CUDA and NVML without any preload', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 300 * MIB }]);
  const mounted = mountOver(t, node, grant);
  const client = await readyClient(t, node, { env: { LD_LIBRARY_PATH: mounted.lib } });
  const context = node.usage().gpus[0]?.contextBytes ?? 0;
  t.is(await client.must('total 0'), 300 * MIB);
  await client.must(`alloc ${100 * MIB}`);
  t.deepEqual(await client.ask('info'), [0, 200 * MIB - context, 300 * MIB]);
  t.is((await client.ask(`alloc ${200 * MIB}`))[0], OUT_OF_MEMORY);
});

test('with both forms active the second calls the first: nothing is charged twice', async (t) => {
  const node = await startNode(t, '--gpu', 't4');
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 300 * MIB }]);
  const mounted = mountOver(t, node, grant);
  const client = await readyClient(t, node, {
    preload: grant.cuda,
    library: mounted.cuda, // past the preload, by the absolute path
    env: { LD_LIBRARY_PATH: mounted.lib },
  });
  const context = node.usage().gpus[0]?.contextBytes ?? 0;
  const maps = readFileSync(`/proc/${client.pid}/maps`, 'utf8');
  t.true(maps.includes('/libcotenant.so') && maps.includes('/libcuda.so.580.95.05'), 'both are loaded');
  const at = await client.must(`alloc ${100 * MIB}`);
  t.deepEqual(await client.ask('info'), [0, 200 * MIB - context, 300 * MIB]);
  t.is((await client.ask(`alloc ${200 * MIB}`))[0], OUT_OF_MEMORY);
  await client.must(`free ${at}`);
  t.deepEqual(await client.ask('info'), [0, 300 * MIB - context, 300 * MIB]);
  const ledger = readFileSync(join(grant.folder, 'ledger'));
  t.is(ledger.readUInt32LE(20), 1, 'one slot was taken');
});

test('entry points of a newer driver pass and are counted as unknown', async (t) => {
  const node = await startNode(t, '--gpu', 't4', '--cuda', '14000');
  const grant = makeGrant(t, node, [{ gpu: 0, memoryBytes: 300 * MIB }]);
  const mounted = mountOver(t, node, grant);
  const unknown = () => Number(readFileSync(join(grant.folder, 'ledger')).readBigUInt64LE(24));
  const context = node.usage().gpus[0]?.contextBytes ?? 0;
  for (const options of [{ preload: grant.cuda }, { env: { LD_LIBRARY_PATH: mounted.lib } }]) {
    const before = unknown();
    const client = await readyClient(t, node, options);
    t.is(unknown(), before, 'nothing unknown so far');
    await client.must(`heap ${400 * MIB}`);
    t.is(unknown(), before + 1);
    await client.must(`newer ${64 * MIB}`);
    t.is(unknown(), before + 2);
    t.deepEqual(await client.ask('info'), [0, 300 * MIB - context, 300 * MIB]);
    t.is(node.usage().clients.find(({ pid }) => pid === client.pid)?.gpus[0]?.linear, 464 * MIB);
    await client.end();
  }
});
