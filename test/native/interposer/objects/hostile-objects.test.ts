// Host libraries with arbitrary bytes changed, or truncated: the mounted form is made of them, or they are refused with
// a reason, and neither takes long.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import fc from 'fast-check';
import {
  DT,
  DT_GNU_HASH,
  DT_JMPREL,
  DT_VERSYM,
  ElfError,
  exportsOf,
  offsetOf,
  parseElf,
} from '../../../../src/agent/containers/elf.ts';
import { mountedObject } from '../../../../src/agent/containers/mounted-object.ts';
import { BUILD } from '../../../support/native/node.ts';

const OWN = readFileSync(join(BUILD, 'libcotenant.so'));
const HOST = readFileSync(join(BUILD, 'simulated/libcuda.so.1'));
const RUNS = 500;
const MOST_MS = 10_000;

/** Where a change is most likely to matter: headers, and the beginning of each table that is read. */
function places(): readonly (readonly [from: number, length: number])[] {
  const elf = parseElf(HOST);
  const tables = [DT.strtab, DT.symtab, DT.rela, DT_JMPREL.table, DT_GNU_HASH, DT_VERSYM].flatMap((tag) => {
    const found = elf.dynamic.get(tag);
    return found ? [offsetOf(elf, found.value)] : [];
  });
  const dynamic = [...elf.dynamic.values()].map(({ at }) => at);
  return [
    [0, 64],
    [64, 56 * elf.segments.length],
    [Math.min(...dynamic) - 8, 16 * dynamic.length],
    ...tables.map((at): [number, number] => [at, 4096]),
    [0, HOST.length],
  ];
}

const edge = fc.oneof(
  fc.bigInt({ min: 0n, max: 2n ** 64n - 1n }),
  fc.constantFrom(0n, 1n, 2n ** 31n, 2n ** 32n - 1n, 2n ** 53n, 2n ** 63n, 2n ** 64n - 1n),
  fc.nat(HOST.length * 2).map(BigInt),
);
const change = fc.record({
  place: fc.constantFrom(...places()),
  at: fc.double({ min: 0, max: 1, maxExcluded: true, noNaN: true }),
  bytes: fc.constantFrom(1, 2, 4, 8),
  edge,
});
const hostile = fc
  .record({
    changes: fc.array(change, { minLength: 1, maxLength: 3 }),
    cut: fc.option(fc.nat(HOST.length), { freq: 8 }),
  })
  .map(({ changes, cut }) => {
    const bytes = Buffer.from(HOST);
    for (const { place, at, bytes: size, edge: value } of changes) {
      const offset = Math.min(place[0] + Math.floor(at * place[1]), HOST.length - 8);
      const whole = Buffer.alloc(8);
      whole.writeBigUInt64LE(value);
      whole.copy(bytes, offset, 0, size);
    }
    return cut === null ? bytes : bytes.subarray(0, cut);
  });

test('a damaged host library is accepted for the mounted form or refused with a reason', (t) => {
  t.timeout(120_000);
  let made = 0;
  let refused = 0;
  fc.assert(
    fc.property(hostile, (host) => {
      const started = performance.now();
      try {
        const { bytes } = mountedObject(OWN, host, '/usr/lib/libcuda.so.580', '/var/lib/cotenant');
        t.true(exportsOf(parseElf(bytes)).length > 0);
        made += 1;
      } catch (error) {
        if (!(error instanceof ElfError)) throw error;
        t.regex(error.message, /\w/);
        refused += 1;
      }
      const took = performance.now() - started;
      if (took > MOST_MS) throw new Error(`it took ${Math.round(took)} ms`);
    }),
    { numRuns: RUNS },
  );
  t.log(`${made} made, ${refused} refused`);
  t.true(made > 5 && refused > 5);
});
