import test from 'ava';
import fc from 'fast-check';
import { type MemoryAmount, nominalBytes, resolveLimit, resolveShare } from '../../../src/api/request.ts';
import { GIB, MIB } from '../../../src/common/quantity.ts';

const units = (count: number, unitBytes = GIB): MemoryAmount => ({
  kind: 'units',
  units: count,
  unitBytes,
  rounding: 'cgpu',
});

// GPU's total and limit in MiB, as ACK's own pages and users' posts show them for n of the GPU's units.
const PUBLISHED: [gpu: string, totalMiB: number, units: number, limitMiB: number][] = [
  ['T4', 15079, 3, 3231],
  ['V100', 16130, 4, 4301],
  ['V100', 16130, 2, 2150],
  ['V100', 16130, 3, 3226],
  ['T4', 15360, 3, 3072],
];

test('units resolve to every limit that is published for cGPU', (t) => {
  for (const [gpu, total, count, limit] of PUBLISHED) {
    t.is(
      resolveShare({ memory: units(count) }, total * MIB),
      limit * MIB,
      `${count} units of a ${gpu} of ${total} MiB`,
    );
  }
});

test('an amount resolves to bytes of the GPU it lies on', (t) => {
  const total = 15079 * MIB;
  const cases: [MemoryAmount, number][] = [
    [{ kind: 'bytes', bytes: 5 * GIB }, 5 * GIB],
    [{ kind: 'whole' }, total],
    [{ kind: 'percent', percent: 30 }, 150 * 30 * MIB],
    [{ kind: 'percent', percent: 12.5 }, 1875 * MIB],
    [{ kind: 'percent', percent: 33.33 }, 4999 * MIB],
    // As a product of decimals a part of a MiB less.
    [{ kind: 'percent', percent: 0.82 }, 123 * MIB],
    [units(14), total],
    [units(256, 128 * MIB), Math.floor((15079 * 256) / 117) * MIB],
    [units(10, MIB), 10 * MIB],
  ];
  for (const [memory, expected] of cases) t.is(resolveShare({ memory }, total), expected, JSON.stringify(memory));
});

test('a share with a limit other than its reservation resolves to both amounts', (t) => {
  const share = { memory: { kind: 'percent', percent: 33 }, memoryLimit: { kind: 'whole' } } as const;
  t.is(resolveShare(share, 80 * GIB), Math.floor((80 * 1024) / 100) * 33 * MIB);
  t.is(resolveLimit(share, 80 * GIB), 80 * GIB);
  t.is(resolveLimit({ memory: units(1) }, 80 * GIB), GIB);
});

test('units resolve to at least their share, and all of them fill the GPU', (t) => {
  const unit = fc.constantFrom(MIB, 128 * MIB, 256 * MIB, 512 * MIB, GIB);
  t.notThrows(() => {
    fc.assert(
      fc.property(
        unit,
        fc.integer({ min: 1024, max: 200_000 }),
        fc.integer({ min: 1, max: 300_000 }),
        (size, mib, n) => {
          const total = mib * MIB;
          const all = Math.floor(total / size);
          const resolved = resolveShare({ memory: units(n, size) }, total);
          const problem = `${n} of ${all} units of ${size} on ${total} gave ${resolved}`;
          if (n <= all && (resolved < n * size || resolved > total)) throw new Error(problem);
          if (n === all && resolved !== total) throw new Error(problem);
          if (n > all && resolved <= total) throw new Error(problem);
          if (n < all && resolved + resolveShare({ memory: units(all - n, size) }, total) > total)
            throw new Error(problem);
        },
      ),
      { numRuns: 2000 },
    );
  });
});

test('a GPU smaller than one unit cannot hold it', (t) => {
  t.is(resolveShare({ memory: units(1) }, 512 * MIB), GIB);
});

test('only amounts that need no GPU have a nominal size', (t) => {
  t.is(nominalBytes({ kind: 'bytes', bytes: 7 * MIB }), 7 * MIB);
  t.is(nominalBytes(units(3)), 3 * GIB);
  t.is(nominalBytes({ kind: 'percent', percent: 5 }), undefined);
  t.is(nominalBytes({ kind: 'whole' }), undefined);
});
