// How soon the next sample is wanted: a node on which nothing changes rests, and whatever is new wakes it.
import test from 'ava';
import type { SampledGpu, SampledProcess } from '../../../../src/agent/sampling/sample.ts';
import { createSamplingInterval } from '../../../../src/agent/sampling-interval.ts';
import type { NodeState } from '../../../../src/agent/usage/node-usage.ts';
import { MIB } from '../../../../src/common/quantity.ts';
import { compared, gpu, grantOf, ledgerOf, ofGrant, reading, sampledProcess, sampleOf, use } from '../node.ts';

const SETTINGS = { intervalMs: 1000, urgentIntervalMs: 250, silenceMs: 15_000 };
const PROCESSES = [sampledProcess(11, [use(0, { bytes: 300 * MIB })])];
const READING = reading(grantOf('one', 1000), ledgerOf([]));
const CONTAINERS = compared(sampleOf([gpu(0)], PROCESSES), [READING], { 11: ofGrant('one') }).containers.map(
  (container) => ({ ...container, gpus: container.gpus.map((one) => ({ ...one, bypassBytes: 0 })) }),
);

function stateOf(
  gpus: readonly SampledGpu[],
  more: Partial<NodeState['sample']> = {},
  containers = CONTAINERS,
  processes: readonly SampledProcess[] = PROCESSES,
): NodeState {
  return {
    sample: { ...sampleOf(gpus, processes), ...more },
    devices: [],
    containers,
    assigned: [],
    foreign: [],
    unknownDevices: 0,
    failures: {},
  };
}
/** The containers of each sample are made anew, as in the agent. */
const QUIET = () => stateOf([gpu(0)], {}, [...CONTAINERS]);

/** A pace whose node has been quiet until it rested. */
function rested(settings = SETTINGS) {
  const pace = createSamplingInterval(settings);
  const intervals = Array.from({ length: 11 }, () => pace.after(QUIET()));
  return { pace, intervals };
}

test('after ten samples that showed nothing new the next ones come half as often', (t) => {
  const { pace, intervals } = rested();
  t.deepEqual(intervals, [...Array<number>(10).fill(1000), 2000]);
  t.is(pace.after(QUIET()), 2000);
});

test('any change wakes the sampler: memory, work, processes, Xids or problems', (t) => {
  const news: Record<string, NodeState> = {
    memory: stateOf([gpu(0, { usedBytes: MIB })]),
    work: stateOf([gpu(0, { utilizationPercent: 1 })]),
    process: stateOf([gpu(0)], {}, CONTAINERS, [...PROCESSES]),
    list: stateOf([gpu(0, { processLists: ['compute'] })]),
    lost: stateOf([gpu(0, { healthy: false })]),
    gpu: stateOf([gpu(0), gpu(1)]),
    other: stateOf([gpu(1)]),
    xid: stateOf([gpu(0)], { xids: [{ gpu: 0, xid: 13, count: 1, atMs: 1 }] }),
    problem: stateOf([gpu(0)], { problem: 'no driver' }),
  };
  for (const [what, state] of Object.entries(news)) {
    const { pace, intervals } = rested();
    t.is(intervals.at(-1), 2000);
    t.is(pace.after(state), 1000, what);
    t.is(pace.after(QUIET()), 1000, `${what}, and back`);
  }
});

test('a container over its limit, or bypassing, is sampled often however quiet it is', (t) => {
  const past = CONTAINERS.map((one) => ({ ...one, gpus: one.gpus.map((at) => ({ ...at, bypassBytes: 1 })) }));
  const { pace } = rested();
  for (let sample = 0; sample < 20; sample += 1) t.is(pace.after(stateOf([gpu(0)], {}, past)), 250);
  t.is(pace.wake(), 250);
});

test('a request wakes the sampler, too', (t) => {
  const { pace } = rested();
  t.is(pace.wake(), 1000);
  t.is(pace.after(QUIET()), 1000);
});

test('it rests no longer than the driver keeps samples, and half the hang timeout', (t) => {
  t.is(rested({ ...SETTINGS, intervalMs: 4000 }).intervals.at(-1), 5000);
  t.is(rested({ ...SETTINGS, intervalMs: 8000, silenceMs: 16_000 }).intervals.at(-1), 8000);
  t.is(rested({ ...SETTINGS, silenceMs: 3000 }).intervals.at(-1), 1500);
});
