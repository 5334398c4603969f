// The smallest share that would have fitted: what decides it, and when it cannot be known.
import test from 'ava';
import fc from 'fast-check';
import { MIB } from '../../../src/common/quantity.ts';
import { type ContainerSeries, type GpuSeries, type Headroom, recommend } from '../../../src/policy/rightsizing.ts';

const NONE: Headroom = { memoryPercent: 0, coresPercent: 0 };
const gpu = (more: Partial<GpuSeries> = {}): GpuSeries => ({
  gpuUuid: 'GPU-0',
  grantedBytes: 4096 * MIB,
  grantedCoresPercent: 50,
  coresHeld: true,
  memory: { p50: 512 * MIB, p95: 900 * MIB, peak: 1000 * MIB },
  compute: { p50: 0.1, p95: 0.2, peak: 0.3 },
  denied: 0,
  ...more,
});
const of = (...gpus: readonly GpuSeries[]): ContainerSeries => ({
  namespace: 'team',
  pod: 'train',
  container: 'main',
  plain: false,
  gpuCount: gpus.length,
  stops: 0,
  gpus,
});
const sizes = (series: ContainerSeries, headroom = NONE) => {
  const { memory, cores, savedPercent } = recommend(series, headroom);
  return [memory && memory.amount / MIB, memory?.atLeast, cores?.amount, cores?.atLeast, savedPercent];
};

test('sizes are peaks rounded up to MiB and percent; the GPU with the highest decides', (t) => {
  const cases: readonly (readonly [what: string, gpus: readonly GpuSeries[], expected: readonly unknown[]])[] = [
    ['as it was', [gpu()], [1000, false, 30, false, 76]],
    ['one byte more is one MiB more', [gpu({ memory: { peak: 1000 * MIB + 1 } })], [1001, false, 30, false, 76]],
    ['a little more compute is one percent more', [gpu({ compute: { peak: 0.301 } })], [1000, false, 31, false, 76]],
    [
      '0.29 is 29 percent, whatever floating point says',
      [gpu({ compute: { peak: 0.29 } })],
      [1000, false, 29, false, 76],
    ],
    ['compute never seen is no figure', [gpu({ compute: undefined })], [1000, false, undefined, undefined, 76]],
    ['compute never used is the least there is', [gpu({ compute: { peak: 0 } })], [1000, false, 1, false, 76]],
    ['more than a GPU is a GPU', [gpu({ compute: { peak: 1.2 }, coresHeld: false })], [1000, false, 100, false, 76]],
    ['two GPUs', [gpu(), gpu({ memory: { peak: 3000 * MIB }, compute: { peak: 0.1 } })], [3000, false, 30, false, 27]],
    ['nothing was held', [gpu({ memory: { peak: 0 } })], [undefined, undefined, undefined, undefined, undefined]],
    ['the grant is not recorded', [gpu({ grantedBytes: undefined })], [1000, false, 30, false, undefined]],
    ['over its grant', [gpu({ memory: { peak: 5000 * MIB } })], [5000, false, 30, false, -22]],
  ];
  for (const [what, gpus, expected] of cases) t.deepEqual(sizes(of(...gpus)), expected, what);
});

test('where the limit was reached, the size is at least the grant', (t) => {
  t.deepEqual(sizes(of(gpu({ denied: 1 }))), [4096, true, 30, false, 0]);
  t.deepEqual(sizes(of(gpu({ denied: 1, memory: { peak: 0 } }))), [4096, true, 30, false, 0]);
  const stopped = (more: Partial<GpuSeries>) => sizes({ ...of(gpu(more)), stops: 1 });
  t.deepEqual(stopped({ memory: { peak: 1224 * MIB }, grantedBytes: 1024 * MIB }).slice(0, 2), [1224, true]);
  t.deepEqual(stopped({ memory: { peak: 1224 * MIB }, grantedBytes: undefined }).slice(0, 2), [1224, true]);
  t.deepEqual(stopped({}).slice(0, 2), [4096, true], 'it was given more since');
  t.deepEqual(sizes(of(gpu({ compute: { peak: 0.48 } }))).slice(2, 4), [50, true]);
  t.deepEqual(sizes(of(gpu({ compute: { peak: 0.48 }, coresHeld: false }))).slice(2, 4), [48, false]);
  t.deepEqual(sizes(of(gpu({ compute: { peak: 0.47 } }))).slice(2, 4), [47, false]);
  t.deepEqual(sizes(of(gpu({ compute: { peak: 1 }, grantedCoresPercent: 100 }))).slice(2, 4), [100, false]);
});

test('headroom is percent of the peak', (t) => {
  t.deepEqual(sizes(of(gpu()), { memoryPercent: 10, coresPercent: 50 }), [1100, false, 45, false, 73]);
});

test('the size holds the peak, and one MiB less would not', (t) => {
  const bytes = fc.integer({ min: 1, max: 2 ** 40 });
  t.notThrows(() => {
    fc.assert(
      fc.property(
        fc.array(bytes, { minLength: 1, maxLength: 4 }),
        fc.float({ min: 0, max: 1, noNaN: true }),
        (peaks, share) => {
          const series = of(
            ...peaks.map((peak) => gpu({ memory: { peak }, compute: { peak: share }, coresHeld: false })),
          );
          const { memory, cores } = recommend(series, NONE);
          if (memory === undefined || cores === undefined) throw new Error('no size');
          const most = Math.max(...peaks);
          if (memory.amount % MIB !== 0 || memory.amount < most || memory.amount - MIB >= most)
            throw new Error('memory');
          if (cores.amount < share * 100 - 1e-5 || cores.amount > Math.max(1, share * 100 + 1))
            throw new Error('cores');
        },
      ),
    );
  });
});
