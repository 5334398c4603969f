// What drivers before 510 keep of a GPU, which they count as used, from CUDA's total memory.
import test from 'ava';
import { withReserve } from '../../../../src/agent/sampling/reserve.ts';
import { usableBytes } from '../../../../src/agent/sampling/sample.ts';
import { gpu, sampleOf } from '../node.ts';

const MIB = 1024 * 1024;
const of = (usable: number | undefined) => (uuid: string) => (uuid === 'GPU-0' ? usable : undefined);
const { reservedBytes: _, ...silent } = gpu(0, { totalBytes: 15360 * MIB, usedBytes: 500 * MIB });

test('what CUDA does not count is the reserve, and no longer used', (t) => {
  const [found, other] = withReserve(sampleOf([silent, gpu(1)], []), of(14940 * MIB)).gpus;
  t.is(found && usableBytes(found), 14940 * MIB);
  t.deepEqual([found?.reservedBytes, found?.usedBytes], [420 * MIB, 80 * MIB]);
  t.deepEqual(other, gpu(1), 'another GPU is as it was');
});

test('a reported, unmeasured or implausible reserve changes nothing', (t) => {
  const reported = sampleOf([{ ...silent, reservedBytes: 7 }], []);
  t.is(withReserve(reported, of(14940 * MIB)), reported);
  const sample = sampleOf([silent], []);
  for (const usable of [undefined, 15361 * MIB]) t.deepEqual(withReserve(sample, of(usable)), sample);
  t.is(withReserve(sampleOf([{ ...silent, usedBytes: 5 }], []), of(14940 * MIB)).gpus[0]?.usedBytes, 0);
});
