// A grant made smaller while in use: what was held stays allowed and counted until it is given back, and never returns.
import test from 'ava';
import fc from 'fast-check';
import { allowedBytes, reportedUsage, resizeGpu, shrinkToUsage } from '../../../../src/agent/grants/resize.ts';
import type { Sample } from '../../../../src/agent/sampling/sample.ts';
import { countedBytes, type GpuGrant } from '../../../../src/api/gpu.ts';
import { gpu as sampledGpu, sampledProcess, sampleOf, use } from '../node.ts';

const gpu = (bytes: number): GpuGrant => ({
  gpuUuid: 'GPU-0',
  memoryBytes: bytes,
  limitBytes: bytes,
  coresPercent: 0,
});

const STEPS: readonly (readonly [what: string, to: number, allowed: number])[] = [
  ['resize', 50, 100],
  ['holds', 90, 90],
  ['holds', 95, 90],
  ['resize', 70, 90],
  ['holds', 80, 80],
  ['resize', 85, 85],
  ['resize', 40, 85],
  ['holds', 40, 40],
  ['holds', 60, 40],
];

test('step by step', (t) => {
  let grant = gpu(100);
  for (const [what, to, allowed] of STEPS) {
    grant = what === 'resize' ? resizeGpu(grant, to) : shrinkToUsage(grant, to);
    t.is(allowedBytes(grant), allowed, `${what} ${to}`);
    t.is(countedBytes(grant), allowed, `${what} ${to}`);
  }
  t.deepEqual(grant, gpu(40));
});

test('the allowed amount grows only with a larger grant, and is never below the grant', (t) => {
  const step = fc.tuple(fc.constantFrom('resize', 'holds'), fc.integer({ min: 1, max: 1000 }));
  t.notThrows(() => {
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 1000 }), fc.array(step), (first, steps) => {
        let grant = gpu(first);
        for (const [what, to] of steps) {
          const before = allowedBytes(grant);
          grant = what === 'resize' ? resizeGpu(grant, to) : shrinkToUsage(grant, to);
          if (what === 'resize' && grant.limitBytes !== to) throw new Error('the limit is not the new one');
          const most = what === 'resize' ? Math.max(before, to) : before;
          if (allowedBytes(grant) > most || allowedBytes(grant) < grant.limitBytes)
            throw new Error(JSON.stringify(grant));
          if (countedBytes(grant) < allowedBytes(grant)) throw new Error('the GPU could be given out twice');
        }
      }),
    );
  });
});

test('a sample without changes returns the same object', (t) => {
  const whole = gpu(10);
  t.is(shrinkToUsage(whole, 3), whole);
  const shrinking = resizeGpu(whole, 5);
  t.is(shrinkToUsage(shrinking, 10), shrinking);
});

test('missing data in a sample is not taken for a release', (t) => {
  const own = [
    sampledProcess(1, [use(0, { bytes: 70 })]),
    sampledProcess(2, [use(0, { bytes: 20 }), use(1, { bytes: 5 })]),
  ];
  const reportedOf = (sample: Sample, processes = own) => reportedUsage('GPU-0', sample, processes);
  const whole = sampleOf([sampledGpu(0), sampledGpu(1)], own);
  t.is(reportedOf(whole), 90);
  t.is(reportedUsage('GPU-1', whole, own), 5);
  t.is(reportedOf(whole, []), 0, 'no process is left');
  t.is(reportedOf(whole, [sampledProcess(1, [use(0, { listed: false })])]), 0, 'listed no more');
  const silent: [string, number | undefined][] = [
    ['the driver does not answer', reportedOf({ ...whole, problem: 'no driver' })],
    ['the GPU is not in the sample', reportedOf(sampleOf([sampledGpu(1)], own))],
    ['the GPU is lost', reportedOf(sampleOf([sampledGpu(0, { healthy: false })], own))],
    ['its process list was not answered', reportedOf(sampleOf([sampledGpu(0, { processLists: ['graphics'] })], []))],
    ['the bytes of one process are not reported', reportedOf(whole, [...own, sampledProcess(3, [use(0)])])],
  ];
  for (const [what, bytes] of silent) t.is(bytes, undefined, what);
});
