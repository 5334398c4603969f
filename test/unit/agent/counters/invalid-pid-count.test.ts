// Entries without a valid PID as one counter: whatever becomes of GPUs and samplers, it does not fall.
import test from 'ava';
import { createInvalidPidCount } from '../../../../src/agent/counters/invalid-pid-count.ts';

const gpu = (uuid: string, invalidPidEntries?: number) => ({ uuid, ...(invalidPidEntries && { invalidPidEntries }) });

test('the sum of all GPUs only grows, over a missing GPU and a sampler restart', (t) => {
  const invalidPids = createInvalidPidCount();
  const steps: readonly (readonly [
    gpus: readonly ReturnType<typeof gpu>[],
    sum: number | undefined,
    round?: number,
  ])[] = [
    [[], undefined],
    [[gpu('a'), gpu('b')], 0],
    [[gpu('a', 5), gpu('b', 3)], 8],
    [[gpu('b', 4)], 9],
    [[], 9],
    [[gpu('a', 6), gpu('b', 4)], 10],
    [[gpu('a'), gpu('b', 2)], 12],
    [[gpu('a', 1), gpu('b', 2)], 13],
    // Another sampler that has come as far as the one before it.
    [[gpu('a', 1), gpu('b', 3)], 17, 1],
    [[gpu('a', 1), gpu('b', 4)], 18],
  ];
  for (const [gpus, sum, round = 5] of steps) t.is(invalidPids.update({ gpus, round }), sum);
});
