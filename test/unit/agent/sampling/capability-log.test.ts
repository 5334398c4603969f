// What the driver does not tell of a GPU, in words, and when they are said.
import test from 'ava';
import { createCapabilityLog, missingCapabilities } from '../../../../src/agent/sampling/capability-log.ts';
import type { SampledGpu } from '../../../../src/agent/sampling/sample.ts';
import { loggerTo } from '../../../support/product/logger.ts';
import { gpu, sampleOf } from '../node.ts';

const WHOLE: Partial<SampledGpu> = {
  utilizationPercent: 0,
  eccUncorrectedVolatile: 0,
  powerMilliwatts: 1,
  powerLimitMilliwatts: 1,
  pcieReceivedBytes: 0,
  nvlinkReceivedBytes: 0,
  reportsXids: true,
};
const without = (...names: readonly (keyof SampledGpu)[]): SampledGpu =>
  Object.fromEntries(
    Object.entries(gpu(0, WHOLE)).filter(([name]) => !names.some((one) => one === name)),
  ) as SampledGpu;

test('no missing reading is logged for a complete, a lost or a MIG GPU', (t) => {
  t.deepEqual(missingCapabilities(without()), []);
  t.deepEqual(missingCapabilities({ ...without('totalBytes'), healthy: false }), []);
  t.deepEqual(missingCapabilities({ ...without('totalBytes', 'hasProcessUtilization'), migEnabled: true }), []);
});

test('a GPU with an unknown MIG mode is named', (t) => {
  t.regex(missingCapabilities({ ...without(), migModeUnknown: true }).join(), /^its MIG mode: /);
});

const CASES: readonly [names: readonly (keyof SampledGpu)[], says: RegExp][] = [
  [['totalBytes'], /^its memory size: /],
  [['hasProcessUtilization'], /^utilization by process: /],
  [['utilizationPercent'], /^its utilization$/],
  [['eccUncorrectedVolatile'], /^its memory errors: /],
  [['powerMilliwatts'], /^its power draw$/],
  [['powerLimitMilliwatts'], /^its power limit$/],
  [['pcieReceivedBytes', 'nvlinkReceivedBytes'], /^its PCIe and NVLink traffic$/],
  [['reportsXids'], /^its Xids: /],
];
for (const [names, says] of CASES) {
  test(`a missing reading is named: ${names.join(', ')}`, (t) => {
    const words = missingCapabilities(without(...names));
    t.is(words.length, 1);
    t.regex(words[0] ?? '', says);
  });
}

test('processes are missing where a list failed, not where the driver lacks one', (t) => {
  const of = (processLists: readonly string[], failedProcessLists?: readonly string[]) =>
    missingCapabilities({ ...without(), processLists, ...(failedProcessLists && { failedProcessLists }) });
  for (const words of [of(['graphics']), of(['compute', 'mps'], ['graphics']), of(['compute'], ['mps'])])
    t.regex(words.join('; '), /^its processes: [^;]+$/);
  t.deepEqual(of(['compute']), []);
});

test('a GPU without NVLink has its traffic', (t) => {
  t.deepEqual(missingCapabilities(without('nvlinkReceivedBytes')), []);
});

test('a missing reading is logged once, and not while it fails for some samples', (t) => {
  const said: string[] = [];
  const { see } = createCapabilityLog(loggerTo(said));
  const [whole, silent] = [sampleOf([without()], []), sampleOf([without('hasProcessUtilization')], [])];
  for (let turn = 0; turn < 5; turn += 1) {
    for (let sample = 0; sample < 9; sample += 1) see(silent);
    see(whole);
  }
  t.deepEqual(said, []);
  for (let sample = 0; sample < 50; sample += 1) see(silent);
  t.is(said.length, 1);
  t.regex(said[0] ?? '', /^GPU-0: the driver does not report utilization by process: /);
});
