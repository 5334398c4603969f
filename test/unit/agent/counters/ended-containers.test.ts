// Counters of containers that end, and of samples with gaps between them.
import test from 'ava';
import { accumulate, KEEP_MS } from '../../../../src/agent/counters/accumulate.ts';
import { NO_TOTALS } from '../../../../src/agent/counters/totals.ts';
import type { SampledProcess } from '../../../../src/agent/sampling/sample.ts';
import { MIB } from '../../../../src/common/quantity.ts';
import { compared, gpu, grantOf, owners, reading, sampleOf } from '../node.ts';
import { busy, foreign, OWNERS, one, run, START, type Tick } from './ticks.ts';

test('an ended container is shown for five more minutes, then forgotten', (t) => {
  const keep = KEEP_MS / 1000;
  t.is(keep, 300);
  const totals = run([
    { second: 0, processes: [busy(11, 500_000), busy(21, 250_000)] },
    { second: 1, ended: true },
    { second: keep, ended: true },
    { second: keep + 1, ended: true },
  ]);
  t.deepEqual(
    totals.map((each) => one(each)?.smSeconds),
    [0.5, 0.5, 0.5, undefined],
  );
  t.deepEqual(
    totals.map((each) => foreign(each)?.smSeconds),
    [0.25, 0.25, 0.25, undefined],
  );
});

test('a container that is there before and after a gap keeps its counters', (t) => {
  const processes = [busy(11, 100e6, { bytes: 50 * MIB }), busy(21, 50e6)];
  const ticks = [0, 1, 2, 362, 363, 10_000].map((second) => ({ second, processes: second === 0 ? [] : processes }));
  const totals = run(ticks);
  t.deepEqual(
    totals.map((each) => [one(each)?.smSeconds, (one(each)?.peakBytes ?? 0) / MIB, foreign(each)?.smSeconds]),
    [[0, 0, undefined], ...Array(5).fill([100, 50, 50])],
  );
});

test('a container that ended in a gap is shown once; clock changes age nothing', (t) => {
  const [begin, silent]: [Tick, Tick] = [
    { second: 0, processes: [busy(11, 500_000), busy(21, 250_000)] },
    { second: 900, ended: true },
  ];
  const shown = (ticks: readonly Tick[]) => run(ticks).map((each) => [one(each)?.smSeconds, foreign(each)?.smSeconds]);
  t.deepEqual(shown([begin, silent, { second: 901, ended: true }]), [
    [0.5, 0.25],
    [0.5, 0.25],
    [undefined, undefined],
  ]);
  for (const setSeconds of [-1e6, 1e6]) {
    const after = [1, 299, 302].map((second) => ({ second, ended: true, setSeconds }));
    t.deepEqual(shown([begin, ...after]), [
      [0.5, 0.25],
      [0.5, 0.25],
      [0.5, 0.25],
      [undefined, undefined],
    ]);
  }
});

test("totals follow a container's state: unchanged, grown, late, gone and back", (t) => {
  const grants = [reading(grantOf('one', 100))];
  const [first, other] = [busy(11, 1_000_000), busy(11, 2_000_000)];
  const nodeState = (second: number, process: SampledProcess) =>
    compared(sampleOf([gpu(0)], [process], START + second * 1000), grants, OWNERS);
  const state = nodeState(0, first);
  const at = (second: number): typeof state => ({
    ...state,
    sample: { ...state.sample, bootNs: state.sample.bootNs + second * 1e9 },
  });
  const begun = accumulate(NO_TOTALS, state, owners(OWNERS));
  const later = accumulate(begun, at(1), owners(OWNERS));
  t.deepEqual(one(later), one(begun));
  const grown = accumulate(later, nodeState(2, other), owners(OWNERS));
  t.is(one(grown)?.smSeconds, 2);
  const minute = accumulate(later, at(61), owners(OWNERS));
  t.is(one(minute)?.smPeakRatio, 0, 'a minute has passed');
  const gone = accumulate(later, { ...at(2), containers: [] }, owners(OWNERS));
  t.is(one(gone)?.seenMs, state.sample.bootNs / 1e6 + 1000, 'it was there in the sample before');
  t.is(one(accumulate(gone, at(3), owners(OWNERS)))?.seenMs, undefined, 'it is there again');
});
